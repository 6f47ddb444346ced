"""What the benchmarks of a training step share: flags, models, and a step of ours."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import flags, markdown, save

__all__ = ["SIZES", "STAGINGS", "Size", "arguments_of", "decoder_of", "save_steps", "step_of_ours"]

STAGINGS = ("no-copy", "snapshot")


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A model and its work per step."""

    name: str
    layers: int
    width: int
    batch: int
    sequence: int
    grad_accum: int
    bucket_mb: float = 25.0


SIZES = (
    Size(name="small, G=8", layers=2, width=64, batch=4, sequence=128, grad_accum=8),
    Size(name="10M, G=1", layers=8, width=320, batch=1, sequence=64, grad_accum=1),
    Size(name="10M, G=8", layers=8, width=320, batch=1, sequence=64, grad_accum=8),
)


def arguments_of(document: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags, with ``sizes`` to measure, ``rounds``, and ``job`` as the job's settings.

    Args:
        document: The script's docstring.
        arguments: Its command line; None takes the process's own.
    """
    parser = flags(document)
    parser.add_argument("--rounds", type=int, default=40, help="counted steps of each variant")
    parser.add_argument("--transport", default="tcp", choices=["tcp", "sm"], help="of ulfmrun")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.sizes = SIZES[:1] if options.smoke else SIZES
    options.rounds = 3 if options.smoke else options.rounds
    return options


def decoder_of(size: Size, *, ranks: int = 1) -> tuple[Any, Any]:
    """Return the reference program's model, and the text for replicas of this many ranks."""
    import torch

    from grad_txn.programs.text import ByteText, read_text
    from integrations_hsdp.model import Decoder, ModelShape

    torch.manual_seed(0)
    shape = ModelShape(layers=size.layers, width=size.width, sequence=size.sequence)
    text = ByteText(read_text(None), batch=ranks * size.batch, sequence=size.sequence, seed=0)
    return Decoder(shape), text


def step_of_ours(
    world: Any,
    gradients: Any,
    microbatch_of: Callable[[int], Any],
    size: Size,
    *,
    staging: Any,
    settings: dict[str, Any],
    check_every: int = 100,
) -> Callable[[], None]:
    """Return one step of a job of ours, as a user would write it.

    Args:
        world: An `ulfm_core.World`.
        gradients: Where the model's gradients are found, with the wrapped model.
        microbatch_of: Id -> the arguments of the model.
        size: The model's work per step.
        staging: How the job keeps gradients before their reduction.
        settings: What `run_job` handed to the script; the log goes into its scratch folder.
        check_every: How often the replicas are compared.
    """
    import torch

    from grad_txn.job import Job
    from grad_txn.log.events import EventLog
    from workload_policy import StaticWorld

    job = Job(
        world,
        gradients,
        torch.optim.AdamW(gradients.model.parameters(), lr=1e-3),
        policy=StaticWorld(),
        grad_accum=size.grad_accum,
        log=EventLog(Path(settings["scratch"], f"{staging}-{check_every}"), world.rank),
        max_norm=1.0,
        staging=staging,
        check_every=check_every,
        tokens_per_microbatch=world.replica_size * size.batch * size.sequence,
    )
    steps = job.steps(settings["rounds"] + 1000)

    def step() -> None:
        current = next(steps)
        for microbatch in current:
            current.backward(gradients.model(*microbatch_of(microbatch)))

    return step


def save_steps(
    folder: Path,
    name: str,
    rows: Sequence[dict[str, Any]],
    *,
    columns: Sequence[str],
    baseline: str,
) -> None:
    """Print and write the rows of `jobs.take_turns` as a table.

    Args:
        folder: Where to write.
        name: Name of the files.
        rows: What was measured.
        columns: Keys of a row that are shown before the figures.
        baseline: What the ratios are to, in the table's head.
    """
    heads = [*columns, "step (ms)", "CPU (ms)"]
    heads += [f"step / {baseline} (quartiles)", f"CPU / {baseline}"]
    cells = []
    for row in rows:
        low, ratio, high = row["ratio"]
        cells.append(
            [
                *(str(row[key]) for key in columns),
                f"{1e3 * row['seconds']:.1f}",
                f"{1e3 * row['cpu_seconds']:.1f}",
                f"{ratio:.2f} ({low:.2f} to {high:.2f})",
                f"{row['cpu_ratio']:.2f}",
            ]
        )
    save(folder, name, rows, markdown(heads, cells))

"""A step without failures, against plain torch DDP on gloo.

    python benchmarks/step.py --out bench-output        (or: nox -s bench)

For each detection mode and model size, one job of four processes holds all variants, each with a
model copy of its own, and takes one step of each in turn, again and again. What counts is the ratio
to plain DDP in the same round: these machines are noisy, and noise hits neighbours alike. The
processor time is that of all ranks together; where ranks outnumber cores, it is what a step costs.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs import RANKS, arguments_of, hand_back, run_job, take_turns, written

BASELINE = "DDP on gloo"
DEFAULT_DDP = "DDP on gloo, with its own bucket copies"  # gradient_as_bucket_view=False
STAGINGS = ("no-copy", "snapshot")
DETECTIONS = ("deferred", "guarded")


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    options = arguments_of(__doc__, arguments)
    if options.job:
        _job(json.loads(options.job))
        return 0
    rounds, sizes = (3, SIZES[:1]) if options.smoke else (options.rounds, SIZES)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        for detection in DETECTIONS[:1] if options.smoke else DETECTIONS:
            settings = {"size": asdict(size), "detection": detection, "rounds": rounds}
            measured = run_job(__file__, settings, transport=options.transport)
            rows += [{"size": size.name, "detection": detection, **row} for row in measured]
    written(
        options.out / "step.json",
        rows,
        columns={
            "model": lambda row: row["size"],
            "detection": lambda row: row["detection"] if row["variant"] in STAGINGS else "",
            "variant": lambda row: row["variant"],
        },
        baseline="DDP",
    )
    return 0


# ----------------------------------------------------------------------------------- in the job


def _job(settings: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import ulfm_core

    world = ulfm_core.init(detection=settings["detection"])
    size, rounds = Size(**settings["size"]), settings["rounds"]
    scratch = Path(settings["scratch"])
    torch.set_num_threads(1)
    store = dist.FileStore(str(scratch / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=RANKS)
    alone = [dist.new_group([rank]) for rank in range(RANKS)][world.rank]
    steps = {
        BASELINE: _plain(size, bucket_view=True),
        DEFAULT_DDP: _plain(size, bucket_view=False),
    }
    for staging in STAGINGS:
        steps[staging] = _ours(size, world, alone, staging, scratch / staging, rounds)
    rows = take_turns(world, steps, rounds, baseline=BASELINE)
    if world.rank == 0:
        hand_back(settings, rows)
    world.barrier().wait()


def decoder_of(size: Size, *, ranks: int = 1) -> tuple[Any, Any]:
    """Return the reference program's model, and the text for replicas of this many ranks."""
    import torch

    from integrations_hsdp.data import ByteText, read_text
    from integrations_hsdp.model import Decoder, ModelShape

    torch.manual_seed(0)
    shape = ModelShape(layers=size.layers, width=size.width, sequence=size.sequence)
    text = ByteText(read_text(None), batch=ranks * size.batch, sequence=size.sequence, seed=0)
    return Decoder(shape), text


def _model_of(size: Size) -> tuple[Any, Any, Any]:
    import torch

    model, text = decoder_of(size)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), text


def _plain(size: Size, *, bucket_view: bool) -> Callable[[], None]:
    """What a user would write: no_sync on all microbatches but the last, clip, step."""
    import contextlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model, optimizer, text = _model_of(size)
    wrapped = DistributedDataParallel(
        model, bucket_cap_mb=size.bucket_mb, gradient_as_bucket_view=bucket_view
    )
    cursor = 0

    def step() -> None:
        nonlocal cursor
        mean = torch.zeros(())
        for index in range(size.grad_accum):
            last = index == size.grad_accum - 1
            with contextlib.nullcontext() if last else wrapped.no_sync():
                microbatch = cursor + dist.get_rank() * size.grad_accum + index
                loss = wrapped(*text.microbatch(microbatch)) / size.grad_accum
                loss.backward()
                mean += loss.detach()
        cursor += RANKS * size.grad_accum
        dist.all_reduce(mean)  # the loss that a training loop shows
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(mean)

    return step


def _ours(
    size: Size, world: Any, alone: Any, staging: Any, out: Path, rounds: int
) -> Callable[[], None]:
    from grad_txn.events import EventLog
    from grad_txn.job import Job
    from integrations_hsdp.ddp import DDPGradients
    from workload_policy import StaticWorld

    model, optimizer, text = _model_of(size)
    gradients = DDPGradients(model, group=alone, bucket_mb=size.bucket_mb)
    job = Job(
        world,
        gradients,
        optimizer,
        policy=StaticWorld(),
        grad_accum=size.grad_accum,
        log=EventLog(out, world.rank),
        max_norm=1.0,
        staging=staging,
        tokens_per_microbatch=size.batch * size.sequence,
    )
    steps = job.steps(rounds + 1000)

    def step() -> None:
        current = next(steps)
        for microbatch in current:
            current.backward(gradients.model(*text.microbatch(microbatch)))

    return step


if __name__ == "__main__":
    sys.exit(main())

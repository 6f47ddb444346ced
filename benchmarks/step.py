"""A step without failures, against plain torch DDP on gloo.

    python benchmarks/step.py --out bench-output        (or: nox -s bench)

For each detection mode and model size, one job of four processes holds all variants, each with a
model copy of its own, and takes one step of each in turn, again and again. What counts is the ratio
to plain DDP in the same round: these machines are noisy, and noise hits neighbours alike.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RANKS = 4
BASELINE = "DDP on gloo"
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--rounds", type=int, default=40, help="counted steps of each variant")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        _job(json.loads(options.job), Path(options.out))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for size in SIZES[:1] if options.smoke else SIZES:
        for detection in DETECTIONS:
            job = {
                "size": asdict(size),
                "detection": detection,
                "rounds": 3 if options.smoke else options.rounds,
            }
            rows += _run(job)
    table = _table(rows)
    print(table)
    (options.out / "step.json").write_text(json.dumps(rows, indent=1))
    (options.out / "step.md").write_text(table + "\n")
    return 0


def _run(job: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "ulfm_core.launch", "-n", str(RANKS), __file__]
        command += ["--job", json.dumps(job), "--out", scratch]
        subprocess.run(command, check=True, timeout=900)
        times: dict[str, list[float]] = json.loads((Path(scratch) / "times.json").read_text())
    baseline = times[BASELINE]
    rows = []
    for variant, seconds in times.items():
        ratios = sorted(ours / theirs for ours, theirs in zip(seconds, baseline, strict=True))
        quarter = len(ratios) // 4
        rows.append(
            {
                "size": job["size"]["name"],
                "detection": "-" if variant == BASELINE else job["detection"],
                "variant": variant,
                "median_ms": 1e3 * statistics.median(seconds),
                "ratio": statistics.median(ratios),
                "ratio_quartiles": [ratios[quarter], ratios[-1 - quarter]],
                "ratio_of_medians": statistics.median(seconds) / statistics.median(baseline),
            }
        )
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| model | detection | variant | step (ms) | ratio to DDP, median (quartiles) |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        low, high = row["ratio_quartiles"]
        lines.append(
            f"| {row['size']} | {row['detection']} | {row['variant']} | {row['median_ms']:.1f} "
            f"| {row['ratio']:.3f} ({low:.3f} to {high:.3f}) |"
        )
    return "\n".join(lines)


# ----------------------------------------------------------------------------------- in the job


def _job(job: dict[str, Any], scratch: Path) -> None:
    import torch
    import torch.distributed as dist

    import ulfm_core

    world = ulfm_core.init(detection=job["detection"])
    size = Size(**job["size"])
    torch.set_num_threads(1)
    store = dist.FileStore(str(scratch / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=RANKS)
    alone = [dist.new_group([rank]) for rank in range(RANKS)][world.rank]
    steps = {BASELINE: _plain(size)}
    for staging in STAGINGS:
        steps[staging] = _ours(size, world, alone, staging, scratch / staging, job["rounds"])
    times: dict[str, list[float]] = {name: [] for name in steps}
    warm_up = 2
    for number in range(job["rounds"] + warm_up):
        # Whoever comes first finds the caches as the last one left them: take turns.
        names = list(steps)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            dist.barrier()
            begun = time.perf_counter()
            steps[name]()
            if number >= warm_up:
                times[name].append(time.perf_counter() - begun)
    if world.rank == 0:
        (scratch / "times.json").write_text(json.dumps(times))
    dist.barrier()


def _model(size: Size) -> tuple[Any, Any, Any]:
    import torch

    from integrations_hsdp.data import ByteText, read_text
    from integrations_hsdp.model import Decoder, ModelShape

    torch.manual_seed(0)
    shape = ModelShape(layers=size.layers, width=size.width, sequence=size.sequence)
    model = Decoder(shape)
    text = ByteText(read_text(None), batch=size.batch, sequence=size.sequence, seed=0)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), text


def _plain(size: Size) -> Callable[[], None]:
    """What a user would write: no_sync on all microbatches but the last, clip, step."""
    import contextlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model, optimizer, text = _model(size)
    wrapped = DistributedDataParallel(
        model, bucket_cap_mb=size.bucket_mb, gradient_as_bucket_view=True
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

    model, optimizer, text = _model(size)
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
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

"""A step without failures, against plain torch DDP on gloo.

    python benchmarks/step.py --out bench-output        (or: nox -s bench)

For each detection mode and model size, one job of four processes holds all variants, each with a
model copy of its own, and takes one step of each in turn, again and again. What counts is the ratio
to plain DDP in the same round: these machines are noisy, and noise hits neighbours alike. The
processor time is that of all ranks together; where ranks outnumber cores, it is what a step costs.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from jobs import RANKS, hand_back, join_gloo, run_job, take_turns
from training import STAGINGS, Size, arguments_of, decoder_of, save_steps, step_of_ours

BASELINE = "DDP on gloo"
DEFAULT_DDP = "DDP on gloo, with its own bucket copies"  # gradient_as_bucket_view=False
COMPARED = "no-copy, replicas compared at every step"  # by default at every hundredth
DETECTIONS = ("deferred", "guarded")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    options = arguments_of(__doc__, arguments)
    if options.job:
        _job(options.job)
        return 0
    rows: list[dict[str, Any]] = []
    for size in options.sizes:
        for detection in DETECTIONS[:1] if options.smoke else DETECTIONS:
            settings = {"size": asdict(size), "detection": detection, "rounds": options.rounds}
            measured = run_job(__file__, settings, transport=options.transport)
            rows += [{"model": size.name, "detection": detection, **row} for row in measured]
    columns = ("model", "detection", "variant")
    save_steps(options.out, "step", rows, columns=columns, baseline="DDP")
    return 0


# ----------------------------------------------------------------------------------- in the job


def _job(settings: dict[str, Any]) -> None:
    import torch.distributed as dist

    import ulfm_core

    world = ulfm_core.init(detection=settings["detection"])
    size = Size(**settings["size"])
    join_gloo(world, settings)
    alone = [dist.new_group([rank]) for rank in range(RANKS)][world.rank]
    steps = {
        BASELINE: _plain(size, bucket_view=True),
        DEFAULT_DDP: _plain(size, bucket_view=False),
    }
    for staging in STAGINGS:
        steps[staging] = _ours(world, alone, size, staging=staging, settings=settings)
    steps[COMPARED] = _ours(world, alone, size, staging="no-copy", settings=settings, check_every=1)
    rows = take_turns(world, steps, settings["rounds"], baseline=BASELINE)
    hand_back(world, settings, rows)


def _plain(size: Size, *, bucket_view: bool) -> Callable[[], None]:
    """What a user would write: no_sync on all microbatches but the last, clip, step."""
    import contextlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model, text = decoder_of(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
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
    world: Any, alone: Any, size: Size, *, staging: str, settings: dict[str, Any], **more: Any
) -> Callable[[], None]:
    from integrations_hsdp.ddp import DDPGradients

    model, text = decoder_of(size)
    gradients = DDPGradients(model, process_group=alone, bucket_mb=size.bucket_mb)
    return step_of_ours(
        world, gradients, text.microbatch, size, staging=staging, settings=settings, **more
    )


if __name__ == "__main__":
    sys.exit(main())

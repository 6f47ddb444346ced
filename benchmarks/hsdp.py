"""A step of sharded replicas without failures, against torch's own HSDP on gloo.

    python benchmarks/hsdp.py --out bench-output        (or: nox -s bench)

Two replicas of two ranks. One job holds all variants, each with a model of its own, and takes one
step of each in turn; see `step.py`, which does the same for replicas of one rank. Both sides gather
parameters once a step and reduce inside the replica once a step, in its last microbatch.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from jobs import RANKS, hand_back, join_gloo, run_job, take_turns
from training import STAGINGS, Size, arguments_of, decoder_of, save_steps, step_of_ours

SHARDS = 2
BASELINE = "torch HSDP on gloo"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    options = arguments_of(__doc__, arguments)
    if options.job:
        _job(options.job)
        return 0
    rows: list[dict[str, Any]] = []
    for size in options.sizes:
        for sharding in ("fsdp2", "fsdp1"):
            settings = {"size": asdict(size), "sharding": sharding, "rounds": options.rounds}
            measured = run_job(__file__, settings, transport=options.transport)
            rows += [{"model": size.name, "sharding": sharding, **row} for row in measured]
    columns = ("model", "sharding", "variant")
    save_steps(options.out, "hsdp", rows, columns=columns, baseline="HSDP")
    return 0


# ----------------------------------------------------------------------------------- in the job


def _job(settings: dict[str, Any]) -> None:
    import torch.distributed as dist

    import ulfm_core

    world = ulfm_core.init(replica_size=SHARDS)
    size = Size(**settings["size"])
    join_gloo(world, settings)
    replicas = [dist.new_group([first, first + 1]) for first in range(0, RANKS, SHARDS)]
    mine = replicas[world.replica]
    steps = {BASELINE: _plain(size, settings["sharding"])}
    for staging in STAGINGS:
        steps[staging] = _ours(world, mine, size, staging=staging, settings=settings)
    rows = take_turns(world, steps, settings["rounds"], baseline=BASELINE)
    hand_back(world, settings, rows)


def _mine(text: Any, size: Size, position: int) -> Callable[[int], Any]:
    """How a rank takes its rows of a microbatch: as many as the size says, of all ranks' rows."""
    rows = slice(position * size.batch, (position + 1) * size.batch)
    return lambda number: (part[rows] for part in text.microbatch(number))


def _plain(size: Size, sharding: str) -> Callable[[], None]:
    """What a user would write: no synchronization in all microbatches but the last; clip, step."""
    import contextlib

    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from integrations_hsdp.model import Block

    mesh = init_device_mesh("cpu", (RANKS // SHARDS, SHARDS), mesh_dim_names=("replica", "shard"))
    decoder, text = decoder_of(size, ranks=SHARDS)
    replica, position = divmod(dist.get_rank(), SHARDS)
    mine = _mine(text, size, position)
    model: Any = decoder
    if sharding == "fsdp1":
        model = FullyShardedDataParallel(
            decoder,
            device_mesh=mesh,
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    else:
        for module in (*decoder.blocks, decoder):
            fully_shard(module, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    cursor = 0

    def step() -> None:
        nonlocal cursor
        mean = torch.zeros(())
        for index in range(size.grad_accum):
            last = index == size.grad_accum - 1
            number = cursor + replica * size.grad_accum + index
            synchronized: Any = contextlib.nullcontext()
            if sharding == "fsdp1" and not last:
                synchronized = model.no_sync()
            elif sharding == "fsdp2":
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last)
            with synchronized:
                loss = model(*mine(number)) / size.grad_accum
                loss.backward()
            mean += loss.detach()
        cursor += RANKS // SHARDS * size.grad_accum
        dist.all_reduce(mean)  # the loss that a training loop shows
        if sharding == "fsdp1":
            model.clip_grad_norm_(1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(mean)

    return step


def _ours(
    world: Any, replica: Any, size: Size, *, staging: str, settings: dict[str, Any]
) -> Callable[[], None]:
    from integrations_hsdp.wrapping import wrap

    decoder, text = decoder_of(size, ranks=SHARDS)
    gradients = wrap(
        decoder,
        process_group=replica,
        sharding=settings["sharding"],
        bucket_mb=size.bucket_mb,
        accumulate="unsharded",  # as the baseline does
    )
    mine = _mine(text, size, world.position)
    return step_of_ours(world, gradients, mine, size, staging=staging, settings=settings)


if __name__ == "__main__":
    sys.exit(main())

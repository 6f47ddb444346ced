"""A step of sharded replicas without failures, against torch's own HSDP on gloo.

    python benchmarks/hsdp.py --out bench-output        (or: nox -s bench)

Two replicas of two ranks. One job holds all variants, each with a model of its own, and takes one
step of each in turn; see `step.py`, which does the same for replicas of one rank. Both sides gather
parameters once a step and reduce inside the replica once a step, in its last microbatch.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs import RANKS, arguments_of, hand_back, run_job, take_turns, written
from step import SIZES, STAGINGS, Size, decoder_of

SHARDS = 2
BASELINE = "torch HSDP on gloo"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    options = arguments_of(__doc__, arguments)
    if options.job:
        _job(json.loads(options.job))
        return 0
    rounds, sizes = (3, SIZES[:1]) if options.smoke else (options.rounds, SIZES)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        for sharding in ("fsdp2", "fsdp1"):
            settings = {"size": asdict(size), "sharding": sharding, "rounds": rounds}
            measured = run_job(__file__, settings, transport=options.transport)
            rows += [{"size": size.name, "sharding": sharding, **row} for row in measured]
    written(
        options.out / "hsdp.json",
        rows,
        columns={
            name: lambda row, name=name: row[name] for name in ("size", "sharding", "variant")
        },
        baseline="HSDP",
    )
    return 0


# ----------------------------------------------------------------------------------- in the job


def _job(settings: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    import ulfm_core

    world = ulfm_core.init(replica_size=SHARDS)
    size, rounds, sharding = Size(**settings["size"]), settings["rounds"], settings["sharding"]
    scratch = Path(settings["scratch"])
    torch.set_num_threads(1)
    store = dist.FileStore(str(scratch / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=RANKS)
    replicas = [dist.new_group([first, first + 1]) for first in range(0, RANKS, SHARDS)]
    steps = {BASELINE: _plain(size, sharding)}
    for staging in STAGINGS:
        steps[staging] = _ours(
            size, world, replicas[world.replica], sharding, staging, scratch / staging, rounds
        )
    rows = take_turns(world, steps, rounds, baseline=BASELINE)
    if world.rank == 0:
        hand_back(settings, rows)
    world.barrier().wait()


def _mine(size: Size, position: int) -> Callable[[Any, int], Any]:
    """How a rank takes its rows of a microbatch: as many as the size says, of all ranks' rows."""
    rows = slice(position * size.batch, (position + 1) * size.batch)
    return lambda text, number: (part[rows] for part in text.microbatch(number))


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
    mine = _mine(size, position)
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
                loss = model(*mine(text, number)) / size.grad_accum
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
    size: Size,
    world: Any,
    replica: Any,
    sharding: Any,
    staging: Any,
    out: Path,
    rounds: int,
) -> Callable[[], None]:
    import torch

    from grad_txn.events import EventLog
    from grad_txn.job import Job
    from integrations_hsdp.wrapping import wrap
    from workload_policy import StaticWorld

    decoder, text = decoder_of(size, ranks=SHARDS)
    gradients = wrap(decoder, group=replica, sharding=sharding, bucket_mb=size.bucket_mb)
    optimizer = torch.optim.AdamW(gradients.model.parameters(), lr=1e-3)
    job = Job(
        world,
        gradients,
        optimizer,
        policy=StaticWorld(),
        grad_accum=size.grad_accum,
        log=EventLog(out, world.rank),
        max_norm=1.0,
        staging=staging,
        tokens_per_microbatch=SHARDS * size.batch * size.sequence,
    )
    mine = _mine(size, world.position)
    steps = job.steps(rounds + 1000)

    def step() -> None:
        current = next(steps)
        for microbatch in current:
            current.backward(gradients.model(*mine(text, microbatch)))

    return step


if __name__ == "__main__":
    sys.exit(main())

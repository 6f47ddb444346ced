"""Sharded replicas: a gradient shard between microbatches, or the whole; bytes and time.

    python benchmarks/accumulate.py --out bench-output        (or: nox -s bench)

The small model, two replicas of two ranks, G = 1, 2 and 8 microbatches a step. One job holds both
settings, each with a model of its own, and takes one step of each in turn. Told are the bytes of
gradients that a rank holds between microbatches (its buckets, and what FSDP keeps), the greatest of
a step, and the time of a step by that of the other setting.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from jobs import RANKS, hand_back, join_gloo, run_job, take_turns
from tables import markdown, save
from training import SIZES, Size, arguments_of, decoder_of, step_of_ours

SHARDS = 2
BASELINE = "unsharded"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    options = arguments_of(__doc__, arguments)
    if options.job:
        _job(options.job)
        return 0
    rows: list[dict[str, Any]] = []
    small = SIZES[0]
    for grad_accum in (2,) if options.smoke else (1, 2, 8):
        for sharding in ("fsdp2", "fsdp1"):
            settings = {
                "size": asdict(replace(small, grad_accum=grad_accum)),
                "sharding": sharding,
                "rounds": options.rounds,
            }
            measured = run_job(__file__, settings, transport=options.transport)
            rows += [{"sharding": sharding, "G": grad_accum} | row for row in measured]
    heads = ["sharding", "G", "accumulate", "gradients of a rank (kB)", "step (ms)"]
    cells = []
    for row in rows:
        low, ratio, high = row["ratio"]
        told = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        named = [str(row[key]) for key in ("sharding", "G", "variant")]
        cells.append([*named, f"{row['bytes'] / 1e3:,.0f}", f"{1e3 * row['seconds']:.1f}", told])
    save(options.out, "accumulate", rows, markdown([*heads, "step / unsharded (quartiles)"], cells))
    return 0


# ----------------------------------------------------------------------------------- in the job


def _job(settings: dict[str, Any]) -> None:
    import torch.distributed as dist

    import ulfm_core
    from integrations_hsdp.wrapping import wrap

    world = ulfm_core.init(replica_size=SHARDS)
    size = Size(**settings["size"])
    join_gloo(world, settings)
    replicas = [dist.new_group([first, first + 1]) for first in range(0, RANKS, SHARDS)]
    rows_of_mine = slice(world.position * size.batch, (world.position + 1) * size.batch)
    steps: dict[str, Callable[[], None]] = {}
    held: dict[str, list[int]] = {}
    for accumulate in ("sharded", "unsharded"):
        decoder, text = decoder_of(size, ranks=SHARDS)
        gradients = wrap(
            decoder,
            process_group=replicas[world.replica],
            sharding=settings["sharding"],
            bucket_mb=size.bucket_mb,
            accumulate=accumulate,
        )
        watched = held[accumulate] = [0]

        def mine(
            number: int, *, text: Any = text, gradients: Any = gradients, watched: Any = watched
        ) -> Any:
            if len(watched) <= 2 * size.grad_accum:  # the first steps, which are not timed
                watched.append(_bytes_of(gradients))
            return (part[rows_of_mine] for part in text.microbatch(number))

        scratch = {**settings, "scratch": f"{settings['scratch']}/{accumulate}"}
        steps[accumulate] = step_of_ours(
            world, gradients, mine, size, staging="no-copy", settings=scratch
        )
    rows = take_turns(world, steps, settings["rounds"], baseline=BASELINE)
    hand_back(world, settings, [row | {"bytes": max(held[row["variant"]])} for row in rows])


def _bytes_of(gradients: Any) -> int:
    """Bytes of the buckets and of all gradients that FSDP and its parameters hold."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    from grad_txn.gradients import local_part

    found: list[Any] = [*gradients.buckets, *(p.grad for p in gradients.model.parameters())]
    for module in gradients.model.modules():
        # No public name tells what FSDP keeps.
        if isinstance(module, FullyShardedDataParallel):
            found.append(module._handle.flat_param.grad)  # type: ignore[union-attr]  # noqa: SLF001
        elif isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001
            for one in () if group is None else group.fsdp_params:
                found.append(one.unsharded_accumulated_grad)
                found.append(getattr(getattr(one, "_unsharded_param", None), "grad", None))
    storages = [local_part(grad).untyped_storage() for grad in found if grad is not None]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


if __name__ == "__main__":
    sys.exit(main())

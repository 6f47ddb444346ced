"""One all-reduce of float32: ours against gloo's and MPI's, in one job, taking turns.

    python benchmarks/allreduce.py --out bench-output        (or: nox -s bench)

Four ranks sum buffers of 4 KiB to 64 MiB: with gloo through `torch.distributed` (in place, as it
always is), with ours into another buffer and in place, and with `MPI_Allreduce` of the same MPI on
a communicator of the application's. For each transport of `ulfmrun` and each size: the time from a
barrier until the last rank has its result, and the processor time that all ranks together spend on
it. Where ranks outnumber cores, as on a small test machine, the second decides: what an all-reduce
burns is missing in the backward beside it. Every sum is checked.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jobs import RANKS, hand_back, join_gloo, run_job, take_turns
from tables import flags, markdown, save

KIB = 1024
SIZES = tuple(4 * KIB * 4**power for power in range(8))  # 4 KiB to 64 MiB
SMOKE_SIZES = (4 * KIB, 1024 * KIB)
TRANSPORTS = ("tcp", "sm")
BASELINE = "gloo"
MPI = "MPI_Allreduce"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    parser = flags(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="counted turns of each variant")
    parser.add_argument("--transports", nargs="+", default=TRANSPORTS, choices=TRANSPORTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="in bytes")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        _job(options.job)
        return 0
    if options.smoke:
        options.rounds, options.sizes, options.transports = 3, SMOKE_SIZES, TRANSPORTS[:1]
    rows: list[dict[str, Any]] = []
    for transport in options.transports:
        settings = {"rounds": options.rounds, "sizes": options.sizes}
        measured = run_job(__file__, settings, transport=transport)
        rows += [{"transport": transport, **row} for row in measured]
    save(options.out, "allreduce", rows, _table(rows))
    return 0


def _table(rows: Sequence[dict[str, Any]]) -> str:
    heads = ["ulfmrun", "size", "variant", "time (ms)", "GB/s", "CPU (ms)"]
    heads += ["time / gloo (quartiles)", "CPU / gloo"]
    cells = []
    for row in rows:
        low, ratio, high = row["ratio"]
        size = row["bytes"] // KIB
        milliseconds = 1e3 * row["seconds"]
        cells.append(
            [
                row["transport"],
                f"{size} KiB" if size < KIB else f"{size // KIB} MiB",
                row["variant"],
                f"{milliseconds:.2f}",
                f"{row['bytes'] / row['seconds'] / 1e9:.2f}",
                f"{1e3 * row['cpu_seconds']:.2f}",
                f"{ratio:.2f} ({low:.2f} to {high:.2f})",
                f"{row['cpu_ratio']:.2f}",
            ]
        )
    return markdown(heads, cells)


# ----------------------------------------------------------------------------------- in the job


def _job(settings: dict[str, Any]) -> None:
    import ulfm_core

    world = ulfm_core.init(communicators=True)  # MPI's own all-reduce needs one
    join_gloo(world, settings)
    comm = world.comm().Dup()
    rows = []
    for size in settings["sizes"]:
        measured = _compare(world, comm, size, settings["rounds"])
        rows += [{"bytes": size, **row} for row in measured]
    comm.Free()
    hand_back(world, settings, rows)


def _compare(world: Any, comm: Any, size: int, rounds: int) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist
    from mpi4py.MPI import SUM

    source = torch.full((size // 4,), float(world.rank + 1))
    result = torch.empty_like(source)
    expected = float(sum(range(1, RANKS + 1)))

    def check(name: str) -> None:
        if not bool((result == expected).all()):
            raise AssertionError(f"{name} sums {size} bytes wrongly")

    variants: dict[str, Callable[[], object]] = {
        BASELINE: lambda: dist.all_reduce(result),
        "ours": lambda: world.all_reduce(source, result).wait(),
        "ours, in place": lambda: world.all_reduce(result).wait(),
        MPI: lambda: comm.Allreduce(source.numpy(), result.numpy(), op=SUM),
    }
    return take_turns(
        world,
        variants,
        rounds,
        baseline=BASELINE,
        calls=max(1, min(20, 256 * KIB // size)),  # small ones are over too soon to be timed alone
        before=lambda: result.copy_(source),
        after=check,
    )


if __name__ == "__main__":
    sys.exit(main())

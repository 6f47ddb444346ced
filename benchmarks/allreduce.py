"""One all-reduce of float32: ours against gloo's and MPI's, in one job, taking turns.

    python benchmarks/allreduce.py --out bench-output

For each transport and size: the time from a barrier until the last rank has its result, and the
processor time that all ranks together spend on it. Where ranks outnumber cores, as on a small test
machine, the second decides: what an all-reduce burns is missing in the backward beside it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jobs import RANKS, hand_back, markdown, quartiles, run_job

KIB = 1024
SIZES = tuple(4 * KIB * 4**power for power in range(8))  # 4 KiB to 64 MiB
SMOKE_SIZES = (4 * KIB, 1024 * KIB)
BASELINE = "gloo"
MPI = "MPI_Allreduce"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--rounds", type=int, default=15, help="counted turns of each variant")
    parser.add_argument("--transports", nargs="+", default=["tcp", "sm"], choices=["tcp", "sm"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="in bytes")
    parser.add_argument("--smoke", action="store_true", help="a few turns, to see that it runs")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        _job(json.loads(options.job))
        return 0
    rounds, sizes = (3, SMOKE_SIZES) if options.smoke else (options.rounds, options.sizes)
    rows: list[dict[str, Any]] = []
    for transport in options.transports[:1] if options.smoke else options.transports:
        settings = {"rounds": rounds, "sizes": list(sizes)}
        measured = run_job(__file__, settings, transport=transport)
        rows += [{"transport": transport, **row} for row in measured]
    table = _table(rows)
    print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "allreduce.json").write_text(json.dumps(rows, indent=1))
    (options.out / "allreduce.md").write_text(table + "\n")
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
    import torch
    import torch.distributed as dist

    import ulfm_core

    world = ulfm_core.init()
    torch.set_num_threads(1)
    store = dist.FileStore(f"{settings['scratch']}/store", RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=RANKS)
    rows = [row for size in settings["sizes"] for row in _compare(world, size, settings["rounds"])]
    if world.rank == 0:
        hand_back(settings, rows)
    world.barrier().wait()


def _compare(world: Any, size: int, rounds: int) -> list[dict[str, Any]]:
    import torch
    import torch.distributed as dist
    from mpi4py.MPI import SUM

    source = torch.full((size // 4,), float(world.rank + 1))
    result = torch.empty_like(source)
    expected = float(sum(range(1, RANKS + 1)))
    comm = world.comm().Dup()

    def in_place_by_gloo() -> None:
        dist.all_reduce(result)

    variants: dict[str, Callable[[], object]] = {
        BASELINE: in_place_by_gloo,
        "ours": lambda: world.all_reduce(source, result).wait(),
        "ours, in place": lambda: world.all_reduce(result).wait(),
        MPI: lambda: comm.Allreduce(source.numpy(), result.numpy(), op=SUM),
    }
    calls = max(1, min(20, 256 * KIB // size))
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):  # the first one warms up
        names = list(variants)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            spent = torch.zeros(2, dtype=torch.float64)
            for _ in range(calls):
                result.copy_(source)
                world.barrier().wait()
                begun, begun_cpu = time.perf_counter(), time.process_time()
                variants[name]()
                spent[0] += time.perf_counter() - begun
                spent[1] += time.process_time() - begun_cpu
                if not bool((result == expected).all()):
                    raise AssertionError(f"{name} sums wrongly")
            spent /= calls
            latest = spent[:1].clone()
            world.all_reduce(latest, op="max").wait()
            world.all_reduce(spent).wait()
            if number:
                seconds[name].append(float(latest))
                cpu_seconds[name].append(float(spent[1]))
    comm.Free()

    def ratios(of: dict[str, list[float]], name: str) -> list[float]:
        return [own / base for own, base in zip(of[name], of[BASELINE], strict=True)]

    return [
        {
            "bytes": size,
            "variant": name,
            "seconds": quartiles(seconds[name])[1],
            "cpu_seconds": quartiles(cpu_seconds[name])[1],
            "ratio": quartiles(ratios(seconds, name)),
            "cpu_ratio": quartiles(ratios(cpu_seconds, name))[1],
        }
        for name in variants
    ]


if __name__ == "__main__":
    sys.exit(main())

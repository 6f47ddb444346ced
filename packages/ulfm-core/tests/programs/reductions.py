"""Every type, operation and kind of size against numpy. Says a digest: equal bits on every rank."""

import hashlib
import sys
from typing import Any

import numpy as np
from dlpack import BFloat16, words_of

import ulfm_core
from ulfm_core.collectives import Operation
from ulfm_core.testing import say

world = ulfm_core.init(detection="guarded" if "guarded" in sys.argv else "deferred", wait_limit=60)
RANK, SIZE = world.rank, world.initial_size
COMBINE: dict[Operation, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
FLOATS = ("float64", "float32", "float16", "bfloat16")
# Fewer elements than ranks; either side of the 16 KiB from which the ring takes over, for each
# width; several segments of 256 KiB, and nothing that ranks or segments would divide.
SIZES = (0, 1, 5, 2048, 2049, 4096, 4097, 8193, 16_385)
LARGE = 876_543
digest = hashlib.sha256()
cases = 0


def values(dtype: str, op: Operation, size: int, rank: int) -> Any:
    """What a rank puts in: floats whose combination is exact in float32, whatever the order."""
    random = np.random.default_rng([size, rank])
    if dtype in INTEGERS:  # over the whole range, so that sums and products wrap
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, size, np.dtype(dtype), endpoint=True)
    wide = "float64" if dtype == "float64" else "float32"
    if op == "prod":
        return random.choice([1.0, -1.0, 2.0, 0.5], size).astype(wide)
    # Multiples of 1/128 below 1: exact in bfloat16, while their sums need more bits than it has.
    return (random.integers(-127, 128, size) / 128).astype(wide)


def expected(dtype: str, op: Operation, size: int, ranks: list[int]) -> Any:
    parts = [values(dtype, op, size, rank) for rank in ranks]
    total = np.zeros_like(values(dtype, op, size, 0)) if not parts else parts[0]
    for part in parts[1:]:
        total = COMBINE[op](total, part)
    if dtype == "float16":
        return total.astype(np.float16).view(np.uint16)
    return words_of(total) if dtype == "bfloat16" else total


def buffer(dtype: str, content: Any) -> Any:
    if dtype == "bfloat16":
        return BFloat16(content)
    return content.astype(np.float16) if dtype == "float16" else content.copy()


def bits(dtype: str, held: Any) -> Any:
    if dtype == "bfloat16":
        return held.words
    return held.view(np.uint16) if dtype == "float16" else held


def check(
    dtype: str, op: Operation, size: int, spares: tuple[int, ...] = (), *, place: str
) -> None:
    global cases  # noqa: PLW0603 - a program, not a module
    mine = values(dtype, op, size, RANK)
    source = buffer(dtype, mine)
    target = source if place == "in" else buffer(dtype, np.full_like(mine, 77))
    world.all_reduce(
        source, None if place == "in" else target, op=op, contribute=RANK not in spares
    ).result()
    wanted = expected(dtype, op, size, [rank for rank in range(SIZE) if rank not in spares])
    np.testing.assert_array_equal(bits(dtype, target), wanted, f"{dtype} {op} {size} {spares}")
    if place == "out":
        np.testing.assert_array_equal(bits(dtype, source), bits(dtype, buffer(dtype, mine)))
    digest.update(bits(dtype, target).tobytes())
    cases += 1


for dtype in (*INTEGERS, *FLOATS):
    for op in COMBINE:
        for size in SIZES:
            check(dtype, op, size, place="out")
    if dtype in {"float64", "bfloat16", "int8"}:
        check(dtype, "sum", LARGE, place="out")
    for size in (3, 5000, 60_001):
        check(dtype, "sum", size, place="in")
        check(dtype, "sum", size, (SIZE - 1,), place="out")
        check(dtype, "sum", size, (0, SIZE // 2), place="in")
        check(dtype, "sum", size, tuple(range(SIZE)), place="out")

# Where the order of additions shows, all ranks still hold the same bits.
for size in (1000, 60_001):
    rough = np.random.default_rng(RANK).standard_normal(size).astype(np.float32)
    out = np.empty_like(rough)
    world.all_reduce(rough, out).result()
    exact = sum(np.random.default_rng(rank).standard_normal(size) for rank in range(SIZE))
    np.testing.assert_allclose(out, exact, rtol=1e-4, atol=1e-4)
    digest.update(out.tobytes())

# What 16 bits cannot hold, and what they hold only just.
edges = np.array([65504, 65504, 6e-8, -6e-8, np.inf, np.nan, -0.0, 1e-5], np.float16)
out16 = np.empty_like(edges)
world.all_reduce(edges, out16).result()
with np.errstate(over="ignore"):
    np.testing.assert_array_equal(out16, (edges.astype(np.float32) * SIZE).astype(np.float16))
say(digest=digest.hexdigest(), cases=cases)

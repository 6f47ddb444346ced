"""broadcast, all_gather and barrier."""

import sys
import time

import numpy as np

import ulfm_core
from ulfm_core.testing import say

world = ulfm_core.init(
    detection="guarded" if "guarded" in sys.argv else "deferred", wait_limit=60, communicators=True
)
RANK, SIZE = world.rank, world.initial_size
SIZES = (0, 1, 3, 4097, 300_001)


def held(size: int, rank: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.arange(size) + 10_000_000 * rank


for size in SIZES:
    for root in range(SIZE):
        data = held(size, RANK)
        if root == RANK:
            data.flags.writeable = False  # the root only reads
        world.broadcast(data, root=root).result()
        np.testing.assert_array_equal(data, held(size, root))
    everyone = np.full(size * SIZE, -1)
    world.all_gather(held(size, RANK), everyone).result()
    np.testing.assert_array_equal(
        everyone, np.concatenate([held(size, rank) for rank in range(SIZE)])
    )

# Several on their way at once, of every kind, in one order.
buffers = [held(50_000, RANK) for _ in range(6)]
gathered = np.empty(SIZE, np.int64)
works = [world.all_reduce(buffers[0]), world.broadcast(buffers[1], root=SIZE - 1)]
works += [world.barrier(), world.all_gather(held(1, RANK), gathered), world.all_reduce(buffers[2])]
for work in works:
    work.result()
np.testing.assert_array_equal(buffers[0], sum(held(50_000, rank) for rank in range(SIZE)))
np.testing.assert_array_equal(buffers[1], held(50_000, SIZE - 1))
np.testing.assert_array_equal(gathered, 10_000_000 * np.arange(SIZE))

# The application's own messages keep apart from those.
comm = world.comm()
works = [world.all_reduce(held(20_000, RANK)) for _ in range(5)]
for number in range(50):
    got = comm.sendrecv((RANK, number), dest=(RANK + 1) % SIZE, source=(RANK - 1) % SIZE)
    assert got == ((RANK - 1) % SIZE, number)
for work in works:
    work.result()

begun = time.monotonic()
if RANK == SIZE - 1:
    time.sleep(0.4)
world.barrier().result()
say(waited=time.monotonic() - begun)

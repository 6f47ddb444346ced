"""Reduces for a while, wherever the outside may kill it. Writes its pid to the given folder."""

import os
import sys
import time
from pathlib import Path

import numpy as np

import ulfm_core
from ulfm_core import Outcome
from ulfm_core.testing import say

folder, replica_size, elements, seconds = (
    Path(sys.argv[1]),
    int(sys.argv[2]),
    int(sys.argv[3]),
    float(sys.argv[4]),
)
world = ulfm_core.init(replica_size=replica_size, wait_limit=30, recovery_limit=20)
mine = np.full(elements, world.rank + 1, np.float32)
total = np.empty_like(mine)
(folder / f"{world.rank}.new").write_text(str(os.getpid()))
(folder / f"{world.rank}.new").rename(folder / f"{world.rank}.pid")
until = time.monotonic() + seconds
step, done = 0, False
while not done:
    while True:
        works = [world.all_reduce(mine, total) for _ in range(4)]
        reduced = [work.wait() for work in works] == [Outcome.OK] * len(works)
        consensus = world.consensus(reduced, record=[world.rank, step])
        if consensus.passed:
            break
        assert consensus.repair is not None
        assert consensus.repair.records == tuple((rank, step) for rank in world.members)
    column = [rank for rank in world.members if rank % replica_size == world.position]
    assert (total == sum(rank + 1 for rank in column)).all()
    # Over for all or for none, or those who go on would count those who leave as dead.
    step, done = step + 1, not world.agree(time.monotonic() < until).flag
say(done=step, members=world.members)

"""Two interleaved subgroups, before and after a death: subgroups.py REPLICA_SIZE."""

import os
import signal
import sys

import numpy as np

import ulfm_core
from ulfm_core.testing import say

VICTIM = 3
world = ulfm_core.init(replica_size=int(sys.argv[1]), wait_limit=60)
RANK = world.rank
subgroup = world.subgroup([0, 2, 4] if RANK % 2 == 0 else [5, 3, 1])  # not in order


def collectives() -> None:
    members, size = subgroup.members, subgroup.size
    for count in (1, 5000, 300_000):
        array = np.full(count, RANK, np.float32)
        world.all_reduce(array, among=subgroup).result()
        assert (array == sum(members)).all(), count
    array = np.full(3, RANK, np.float32)
    world.broadcast(array, root=size - 1, among=subgroup).result()
    assert (array == members[-1]).all()
    gathered = np.zeros((size, 2), np.float32)
    world.all_gather(np.full(2, RANK, np.float32), gathered, among=subgroup).result()
    assert gathered[:, 1].tolist() == list(members)
    world.barrier(among=subgroup).result()


collectives()
both = np.ones(1000)
world.all_reduce(both).result()  # the group in between: other tags, other counts
assert both[0] == world.group_size
refused = []
for ranks in ([RANK, 6], [RANK, RANK], [(RANK + 1) % 6]):
    try:
        world.subgroup(ranks)
    except ulfm_core.UsageError as error:
        refused.append(str(error))
try:
    world.broadcast(both, root=3, among=subgroup)
except ulfm_core.UsageError as error:
    refused.append(str(error))
if RANK == VICTIM:
    os.kill(os.getpid(), signal.SIGKILL)
outcome = world.all_reduce(np.ones(300_000), among=subgroup).wait()
try:
    passed = world.consensus(outcome is ulfm_core.Outcome.OK).passed
except ulfm_core.ReplicaCondemnedError:
    say(condemned=True)
    ulfm_core.leave(0)
collectives()
say(passed=passed, refused=refused, members=subgroup.members, index=subgroup.rank)

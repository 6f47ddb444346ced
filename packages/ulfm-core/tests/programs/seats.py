"""The world and its membership, before and after a death: seats.py REPLICA_SIZE VICTIM."""

import os
import signal
import sys

import numpy as np

import ulfm_core
from ulfm_core import Membership, Outcome
from ulfm_core.testing import say

replica_size, victim = map(int, sys.argv[1:])
world = ulfm_core.init(replica_size=replica_size, wait_limit=30)
first = world.membership
assert first == Membership.initial(world.initial_size, replica_size)
assert first[world.rank].replica == world.replica
assert first[world.rank].position == world.position
if world.rank == victim:
    os.kill(os.getpid(), signal.SIGKILL)
outcome = world.all_reduce(np.ones(100_000)).wait()
repair = world.consensus(outcome is Outcome.OK).repair
assert repair is not None
assert repair.membership == first.without(first.ranks_of(first.replica_of(victim)))
assert repair.members == repair.membership.ranks
assert world.membership == repair.membership
say(
    living=world.living,
    members=world.members,
    group=world.membership.group_of(world.position),
    group_rank=world.group_rank,
    leader=world.membership.leader,
)

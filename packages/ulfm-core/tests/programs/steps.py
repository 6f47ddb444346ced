"""A job that reduces step by step, and whose ranks SIGKILL themselves where they are told to.

Takes JSON: `kills` is a list of [rank, place, step]. Places in a step: `idle`, `between` (one
reduction done, others queued), `inside` (in the middle of one), `after` (all reduced, nothing
agreed), `committed` (the step agreed on). Places in the repairs of a step: those of
`World.on_repair_phase`. Every rank says what each repair told it, and its last line.
"""

import json
import os
import signal
import sys
import threading
import time

import numpy as np

import ulfm_core
from ulfm_core import Outcome
from ulfm_core.testing import say

options = json.loads(sys.argv[1])
world = ulfm_core.init(
    replica_size=options.get("replica_size", 1),
    detection=options.get("detection", "deferred"),
    wait_limit=30,
    recovery_limit=20,
)
kills = {(place, step) for rank, place, step in options["kills"] if rank == world.rank}
step = 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at(place: str) -> None:
    if (place, step) in kills:
        die()


world.on_repair_phase(lambda phase, _round: at(phase))
small = np.full(1000, world.rank + 1, np.float32)
large = np.full(options.get("large", 400_000), world.rank + 1, np.float32)
sums = [np.empty_like(small), np.empty_like(large), np.empty_like(small)]
for step in range(options.get("steps", 6)):
    while True:
        at("idle")
        if ("idle", step) in {(place, step) for _, place, step in options["kills"]}:
            time.sleep(0.05)  # the others do nothing while it happens
        works = [world.all_reduce(small, sums[0])]
        if ("between", step) in kills:
            works[0].wait()
            die()
        works += [world.all_reduce(large, sums[1]), world.all_reduce(small, sums[2])]
        if ("inside", step) in kills:
            threading.Timer(0.002, die).start()
        outcomes = [work.wait() for work in works]
        reduced = outcomes == [Outcome.OK] * len(works)
        for outcome, out in zip(outcomes, sums, strict=True):  # who ignores it sees it all the same
            assert outcome is Outcome.OK or np.isnan(out[:1000]).all(), (outcome, out)
        if ("inside", step) in kills:
            time.sleep(5)  # it was quicker than the timer
        at("after")
        consensus = world.consensus(reduced, record=[world.rank, 100 * step])
        if consensus.passed:
            break
        repair = consensus.repair
        assert repair is not None
        assert world.members == repair.members
        assert world.epoch == repair.epoch
        say(
            step=step,
            epoch=repair.epoch,
            failed=repair.failed,
            members=repair.members,
            records=repair.records,
            rounds=repair.rounds,
        )
    total = sum(rank + 1 for rank in world.members if rank % world.replica_size == world.position)
    for out in sums:
        assert (out == total).all(), (out, total)
    at("committed")
say(done=step + 1, members=world.members, epoch=world.epoch)

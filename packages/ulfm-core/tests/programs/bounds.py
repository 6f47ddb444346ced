"""Ranks that hang, are slow, wait, or lose a peer. The first argument says which."""

import contextlib
import os
import signal
import sys
import threading
import time

import numpy as np

import ulfm_core
from ulfm_core import Outcome
from ulfm_core.testing import say

case = sys.argv[1]
if case == "peer":
    # A child that outlives the rank and says when it ended: it reads a pipe nobody else holds.
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        say(ended=time.time())
        os._exit(0)
    os.close(reading)

world = ulfm_core.init(
    replica_size=2 if case in {"peer", "quiesce-replicas"} else 1,
    detection="guarded" if case.startswith("quiesce-") else "deferred",
    wait_limit=1.5 if case == "wait" else 30,
    recovery_limit=2 if case == "frozen" else 20,
)
rank = world.rank
data = np.ones(10_000)


def reduce_until_agreed() -> tuple[int, ...]:
    while True:
        reduced = world.all_reduce(data, np.empty_like(data)).wait() is Outcome.OK
        if world.consensus(reduced).passed:
            return world.members


def peer() -> None:
    """Rank 3 sits in a call that is not MPI's when rank 2, the rest of its replica, dies."""
    world.barrier().result()
    if rank == 2:
        time.sleep(0.2)
        say(killed=time.time())
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 3:
        threading.Event().wait(60)
    say(members=reduce_until_agreed())


def hang() -> None:
    """Rank 1 stops making progress."""
    world.set_step_limit(1.0)
    members: tuple[int, ...] = ()
    for step in range(3):
        world.beat(f"step {step}, forward")
        if rank == 1 and step == 2:
            time.sleep(60)
        members = reduce_until_agreed()
    say(members=members)


def slow() -> None:
    """Rank 1 takes longer than the others' step limit, who wait for it, but not than its own."""
    world.set_step_limit(2.0 if rank == 1 else 0.4)
    members: tuple[int, ...] = ()
    for step in range(2):
        world.beat(f"step {step}")
        if rank == 1:
            time.sleep(0.8)
        members = reduce_until_agreed()
    with world.waiting():  # for something of the application's own
        time.sleep(0.8)
    say(members=members)


def wait() -> None:
    """Rank 1 never comes to the reduction that rank 0 and 2 wait in."""
    if rank == 1:
        time.sleep(4)
        say(alive=True)
        os._exit(0)
    world.all_reduce(data).wait()


def quiesce() -> None:
    """Rank 0 knows of a failure that the others do not see, and that is none of MPI's."""
    world.barrier().result()
    if rank == 0:
        time.sleep(0.2)
        world.quiesce()
        skipped = world.all_reduce(data, np.empty_like(data))
        outcomes = [skipped.wait()]
    else:
        outcomes = [world.all_reduce(data, np.empty_like(data)).wait() for _ in range(2)]
    consensus = world.consensus(all(outcome is Outcome.OK for outcome in outcomes))
    assert consensus.repair is not None
    out = np.empty_like(data)
    world.all_reduce(data, out).result()
    assert (out == world.group_size).all()
    say(
        outcomes=[outcome.name for outcome in outcomes],
        all_alive=consensus.agreement.all_alive,
        failed=consensus.repair.failed,
        epoch=world.epoch,
    )


def signals() -> None:
    """A handler runs while its rank waits for a late peer."""
    heard: list[float] = []
    if rank == 0:
        begun = time.monotonic()
        signal.signal(signal.SIGALRM, lambda *_: heard.append(time.monotonic() - begun))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    else:
        time.sleep(1.5)
    world.barrier().result()
    say(heard=heard)


def callback() -> None:
    """A callback must not wait on the thread that it would wait for."""
    caught: list[str] = []

    def wait_for_another() -> None:
        try:
            world.barrier().wait()
        except RuntimeError as error:
            caught.append(str(error))
        done.set()

    done = threading.Event()
    world.barrier().when_done(wait_for_another)
    done.wait(10)
    late = threading.Event()
    work = world.barrier()
    work.wait()
    work.when_done(late.set)  # done already: called at once
    with contextlib.suppress(ZeroDivisionError):
        work.when_done(lambda: print(1 // 0))  # told on standard error, and no more
    assert late.is_set()
    say(caught=caught)


def frozen() -> None:
    """A repair whose rank 1 stands still in a callback: its recovery limit ends it."""
    world.on_repair_phase(lambda phase, _round: time.sleep(60 * (rank == 1 and phase == "fence")))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    say(members=reduce_until_agreed())


def one() -> None:
    """Nobody but oneself."""
    say(members=reduce_until_agreed(), failed=world.known_failed())


globals()[case.partition("-")[0]]()

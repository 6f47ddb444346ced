"""Ranks that are stopped, or nearly so. The first argument says how rank 1 is."""

import os
import signal
import sys
import time

import numpy as np

import ulfm_core
from ulfm_core import Outcome
from ulfm_core.rank import keeper
from ulfm_core.testing import say

case = sys.argv[1]
world = ulfm_core.init(wait_limit=20)
data = np.ones(1000)


def stop_for(seconds: float, target: int) -> None:
    """Stop this process, or with a negative number its group, and have it go on after a while."""
    if os.fork() == 0:
        os.setsid()  # out of the group
        os.kill(target, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(target, signal.SIGCONT)
        os._exit(0)
    for _ in range(16):  # work of its own, most of it afterwards
        time.sleep(0.05)


def stopped() -> None:
    """For good, while it waits for nobody."""
    os.kill(os.getpid(), signal.SIGSTOP)


def signalled() -> None:
    """As before, after signals that were meant for the whole job and that it outlived."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
        os.killpg(0, number)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGSTOP)


def unlimited() -> None:
    """For longer than the limit of the others, having none itself."""
    world.set_step_limit(0)
    stop_for(3, os.getpid())


def frozen() -> None:
    """With all that belongs to it, as a container is, for longer than its limit."""
    stop_for(3, -os.getpgid(0))


def dead() -> None:
    """Killed, and its keeper has to go with it."""
    os.kill(os.getpid(), signal.SIGKILL)


say(keeper=keeper._keeper)
world.set_step_limit(1.5)
world.beat("step 7, forward")
if world.rank == 1:
    globals()[case]()
while True:
    reduced = world.all_reduce(data, np.empty_like(data)).wait() is Outcome.OK
    if world.consensus(reduced).passed:
        break
say(members=world.members)

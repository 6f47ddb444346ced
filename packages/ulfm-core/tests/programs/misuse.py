"""What a program can do wrong. Says the type and the words of each refusal."""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from dlpack import BFloat16

import ulfm_core
from ulfm_core import Outcome
from ulfm_core.testing import say

case = sys.argv[1]
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])


def refused(name: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - which one is the question
        kinds = [kind.__name__ for kind in type(error).__mro__]
        say(case=name, kinds=kinds, words=str(error))
    else:
        say(case=name, kinds=[], words="went through")


if case == "arguments":
    wrong: dict[str, dict[str, Any]] = {
        "replica size": {"replica_size": 4},
        "no replica size": {"replica_size": 0},
        "detection": {"detection": "eager"},
        "wait limit": {"wait_limit": 0},
        "recovery limit": {"recovery_limit": float("nan")},
    }
    for name, options in wrong.items():
        refused(name, partial(ulfm_core.init, **options))
    world = ulfm_core.init()
    refused("twice", ulfm_core.init)
    refused("step limit", lambda: world.set_step_limit(-1))
    assert world.consensus().passed  # nothing of this did any harm
elif case == "buffers":
    world = ulfm_core.init()
    whole = np.zeros((8, 8), np.float32)
    other = np.zeros(64, np.float64)
    read_only = np.zeros(64, np.float32)
    read_only.flags.writeable = False
    attempts: dict[str, Callable[[], Any]] = {
        "not contiguous": lambda: world.all_reduce(whole[:, ::2]),
        "complex": lambda: world.all_reduce(np.zeros(4, complex)),
        "big endian": lambda: world.all_reduce(np.zeros(4, ">f4")),
        "unsigned": lambda: world.all_reduce(np.zeros(4, np.uint32)),
        "no buffer": lambda: world.all_reduce([1.0, 2.0]),
        "read-only": lambda: world.all_reduce(read_only),
        "bytes": lambda: world.all_reduce(b"abc"),
        "other type": lambda: world.all_reduce(whole, other),
        "other size": lambda: world.all_reduce(whole, np.zeros(63, np.float32)),
        "overlap": lambda: world.all_reduce(whole[:4], whole[2:6]),
        "operation": lambda: world.all_reduce(whole, op="mean"),  # type: ignore[arg-type]
        "spare": lambda: world.all_reduce(whole, op="max", contribute=False),
        "root": lambda: world.broadcast(whole, root=3),
        "gather size": lambda: world.all_gather(whole, np.zeros(64, np.float32)),
        "gather overlap": lambda: world.all_gather(whole[2:4], whole[:6]),
        "used capsule": lambda: world.all_reduce(Stale()),
    }

    class Stale(BFloat16):
        def __init__(self) -> None:
            super().__init__([1.0])
            self.capsule = super().__dlpack__()

        def __dlpack__(self, **_: Any) -> Any:
            world.barrier().result()
            import ctypes

            rename = ctypes.pythonapi.PyCapsule_SetName
            rename.argtypes = (ctypes.py_object, ctypes.c_char_p)
            rename(self.capsule, b"used_dltensor")
            return self.capsule

    for name, attempt in attempts.items():
        refused(name, attempt)
    out = np.zeros_like(whole)
    world.all_reduce(whole + 1, out).result()
    assert (out == world.initial_size).all()
elif case == "mismatch":
    # The ranks disagree on the size: those who see it say so, the others do not wait for ever.
    world = ulfm_core.init(wait_limit=20)
    work = world.all_reduce(np.zeros(1000 if world.rank == 0 else 900, np.float32))
    refused("mismatch", work.result)
    consensus = world.consensus(work.outcome is Outcome.OK)
    assert consensus.repair is not None
    say(members=consensus.repair.members)
elif case == "different arguments":
    refused("different", lambda: ulfm_core.init(replica_size=RANK + 1))
elif case == "dies in init":
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    refused("init", lambda: ulfm_core.init(wait_limit=20))
elif case == "never joins":
    if RANK == 1:
        sys.exit(0)
    refused("init", lambda: ulfm_core.init(wait_limit=2))

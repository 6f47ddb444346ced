"""The one way out of a job.

After a failure `MPI_Finalize` may hang, and a rank that merely exits looks to its peers like one that died. `leave()`
flushes, agrees with the survivors that all are done, finalizes within a bound, and ends the process with the right
exit code. `init()` registers it, so that a program that simply returns takes this way too.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import sys
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ulfm_core._farewell import say_farewell

if TYPE_CHECKING:
    from ulfm_core.world import World

__all__ = ["leave"]

AGREE_SECONDS = 30.0
FINALIZE_SECONDS = 5.0
UNCAUGHT_EXCEPTION = 1

_world: World | None = None
_code_at_exit = 0


def leave(code: int = 0) -> NoReturn:
    """End this process, as every rank of a job should.

    With code 0 the survivors first agree that all of them are done (bounded by 30 s, for a peer that is late), then
    MPI is finalized (bounded by 5 s). With any other code the process ends at once: to its peers it is one more
    failure. Exit functions registered with `atexit` are not run.

    Collective over the survivors when `code` is 0. Never returns.
    """
    say_farewell(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    logging.shutdown()
    world = _world
    if world is None or code != 0:
        _exit_now(code)
    world._leave(AGREE_SECONDS)  # noqa: SLF001 - the two modules are one concept, split for size
    from ulfm_core import _core  # noqa: PLC0415 - the native core needs MPI, which only init() loads

    _core.leave(code, True, FINALIZE_SECONDS)


def _exit_now(code: int) -> NoReturn:
    import os  # noqa: PLC0415

    os._exit(code)


def register(world: World) -> None:
    """Make `leave()` the way that this process ends. Called by `init()`."""
    global _world  # noqa: PLW0603 - one process is one rank of one job
    _world = world
    previous = sys.excepthook

    def remember(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _code_at_exit  # noqa: PLW0603
        _code_at_exit = UNCAUGHT_EXCEPTION
        previous(kind, error, trace)

    sys.excepthook = remember
    atexit.register(leave_at_exit)


def leave_at_exit() -> None:
    """The exit function that `register()` adds. `ulfmrun` removes it, to run the others first."""
    leave(_code_at_exit)


def in_world() -> bool:
    """Return whether this process has joined a world, and so has to leave it."""
    return _world is not None

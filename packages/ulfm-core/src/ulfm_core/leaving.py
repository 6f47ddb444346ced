"""The one way out of a job.

After a failure `MPI_Finalize` may hang, and a rank that merely exits looks to its peers like one
that died. `leave()` flushes, agrees with the survivors that all are done, finalizes within a bound,
and ends the process with the right exit code. `init()` registers it, so that a program that simply
returns takes this way too.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from ulfm_core.codes import FAILED, FINISHED
from ulfm_core.rank import keeper
from ulfm_core.rank.farewell import say_farewell

if TYPE_CHECKING:
    from types import TracebackType

    from ulfm_core.world import World

__all__ = ["leave"]

AGREE_SECONDS = 30.0
FINALIZE_SECONDS = 5.0

_world: World | None = None
_owner = 0  # the process that is the rank
_code_at_exit = FINISHED


def leave(code: int = FINISHED) -> NoReturn:
    """End this process, as every rank of a job should.

    With code 0 the survivors first agree that all of them are done (bounded by 30 s, for a peer
    that is late), then MPI is finalized (bounded by 5 s). With any other code the process ends at
    once: to its peers it is one more failure. Exit functions registered with `atexit` are not run.

    Collective over the survivors when `code` is 0. Never returns.
    """
    if not _forked():  # a forked child is not the rank, and has none of its threads
        say_farewell(code)
    _flush()
    logging.shutdown()
    if code == FINISHED and not _forked():
        _part(code)
    keeper.end()
    os._exit(code)


def _part(code: int) -> bool:
    """Part from the other survivors and from MPI; False if our threads are still at it."""
    if _world is None:
        return True
    ended, together = _world._leave(AGREE_SECONDS)  # noqa: SLF001 - the two modules are one concept
    if together:  # else finalizing would only hold up those who go on: to them, this is a death
        from ulfm_core import _core  # it needs MPI, which only init() loads

        _core.finalize(code, FINALIZE_SECONDS)
    return ended


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def register(world: World) -> None:
    """Make `leave()` the way that this process ends. Called by `init()`."""
    global _world, _owner  # noqa: PLW0603 - one process is one rank of one job
    _world = world
    _owner = os.getpid()
    previous = sys.excepthook

    def remember(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        global _code_at_exit  # noqa: PLW0603
        _code_at_exit = FAILED
        previous(kind, error, trace)

    sys.excepthook = remember
    atexit.register(leave_at_exit)


def leave_at_exit() -> None:
    """The exit function that `register()` adds. `ulfmrun` removes it, to run the others first."""
    if _forked():
        return
    if _code_at_exit:
        leave(_code_at_exit)
    # Python does not say here with which code it is about to end (`sys.exit(3)`), so it has to do
    # that itself.
    _flush()
    if not _part(_code_at_exit):
        os._exit(_code_at_exit)


def _forked() -> bool:
    return _world is not None and os.getpid() != _owner


def in_world() -> bool:
    """Return whether this process has joined a world, and so has to leave it."""
    return _world is not None


def in_replica_of_several() -> bool:
    """Return whether another rank's death ends this process."""
    return _world is not None and not _forked() and _world.replica_size > 1

"""The keeper of a rank: a process that ends the rank when all of it stands still.

A guard inside the rank bounds what the rank does. But a rank that is stopped (SIGSTOP) has no guard
that runs, is alive to MPI, and everybody waits for it. So `start` forks a small process before the
rank has MPI, torch or a thread. The two share a page, where the guard moves a counter and leaves
the step limit and where the rank stands (`pulse.hpp`). When the counter has not moved for the step
limit, the keeper says so and kills the rank, which is then dead like any other.

The keeper measures in its own ticks. If the machine, the container or the whole process group was
frozen, so was the keeper, and nobody is killed when they thaw. It ends with the rank, and for as
long as there is no step limit it does nothing.
"""

import contextlib
import mmap
import os
import select
import signal
import struct
import time
from pathlib import Path
from typing import NoReturn

from ulfm_core.rank.process import die_with_parent, name_process

__all__ = ["end", "page", "start"]

_TICK = 0.25  # seconds
_LEAST = 1.0  # seconds: on a loaded machine a guard may come late
_SPEAK = 1.0  # seconds for a line on standard error, which nobody may read
# struct Pulse in pulse.hpp: the counter, the limit, which of two texts is whole, the texts.
_PULSE = struct.Struct("=QdI228s256s256s")

_page: mmap.mmap | None = None
_keeper = 0
_owner = 0  # the rank: what it forks has no guard


def start() -> None:
    """Give this process a keeper. Call before it has a thread; once."""
    global _page, _keeper, _owner  # noqa: PLW0603 - a process has one keeper
    _page = mmap.mmap(-1, mmap.PAGESIZE)  # shared, and without a name
    _owner = os.getpid()
    _keeper = os.fork()
    if _keeper == 0:
        _be_keeper(_page, _owner)


def page() -> mmap.mmap | None:
    """Return the page for `Guard.publish`; None if this process has no keeper."""
    return _page if os.getpid() == _owner else None


def end() -> None:
    """End the keeper, if there is one; the process itself is about to end."""
    global _keeper  # noqa: PLW0603
    if _keeper and os.getpid() == _owner:
        with contextlib.suppress(OSError):  # somebody may have waited for it
            os.kill(_keeper, signal.SIGKILL)
            os.waitpid(_keeper, 0)
        _keeper = 0


def _be_keeper(page: mmap.mmap, rank: int) -> NoReturn:
    try:
        _become_quiet()
        _watch(page, rank)
    finally:
        os._exit(0)


def _become_quiet() -> None:
    """Die with the rank and by nothing else, and hold nothing open but standard error."""
    die_with_parent(signal.SIGKILL)
    name_process("ulfm-keeper")
    # What is meant for the job reaches the whole group, and a rank may choose to live on. What
    # stops the group stops the keeper, too: a job that is suspended is not to be killed.
    stops = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL if number in stops else signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _watch(page: mmap.mmap, rank: int) -> None:
    last = -1
    silent = 0
    # The signal comes when the parent ends; the comparison is for one that ended before it was set.
    while os.getppid() == rank:
        time.sleep(_TICK)
        beats, limit, *_ = _PULSE.unpack_from(page)
        if beats != last or limit <= 0:
            last, silent = beats, 0
            continue
        silent += 1
        if silent * _TICK >= max(limit, _LEAST):
            _say(_last_line(page, rank, silent * _TICK))
            if os.getppid() == rank:
                os.kill(rank, signal.SIGKILL)
            return


def _last_line(page: mmap.mmap, rank: int, seconds: float) -> str:
    _, _, current, identity, *where = _PULSE.unpack_from(page)
    try:
        letter = Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        letter = "?"
    what = {"T": "its process has been stopped", "t": "a debugger has stopped its process"}
    return (
        f"{_text(identity)}: {what.get(letter, 'its process has not run')} for {seconds:.1f} s, at:"
        f" {_text(where[current & 1])}; its keeper kills it, the others go on without it\n"
    )


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="replace")


def _say(line: str) -> None:
    # A pipe that nobody reads must not keep the rank alive.
    with contextlib.suppress(OSError):
        if select.select([], [2], [], _SPEAK)[1]:
            os.write(2, line.encode(errors="replace"))

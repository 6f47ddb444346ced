"""The bounds on what a rank does: nothing waits for ever."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ulfm_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ulfm_core import _core

__all__ = ["Bounds"]


class Bounds:
    """What a rank tells its guard, the thread that ends it when it can no longer be of use.

    `ulfm_core.World` is one.
    """

    def __init__(self, guard: _core.Guard) -> None:
        self._guard = guard

    def beat(self, where: str) -> None:
        """Tell the guard that the application is alive, and where; this restarts its step limit.

        Local, cheap.
        """
        self._guard.beat(where)

    def set_step_limit(self, seconds: float) -> None:
        """End this process when `seconds` pass without a `beat` while it waits for nobody.

        Under `ulfmrun` the same bound holds for a process that is stopped as a whole (SIGSTOP),
        waiting or not. 0 means no limit. Local.
        """
        if seconds < 0:
            message = f"a step limit of {seconds} s is negative: give seconds, or 0 for none"
            raise UsageError(message)
        self._guard.set_step_limit(seconds)

    def set_last_words(self, file: int | None, line: str = "") -> None:
        """Have the guard write `line` to a file descriptor before it ends this process.

        In it `{time}` becomes the seconds since the epoch and `{reason}` why, as within a JSON
        string; both once at most. None: nothing is written. Local.
        """
        self._guard.set_last_words(-1 if file is None else file, line)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Suspend the step limit: this process waits for others, and the wait limit bounds that."""
        self._guard.begin_wait()
        try:
            yield
        finally:
            self._guard.end_wait()

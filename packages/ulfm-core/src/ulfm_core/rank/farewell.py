"""A rank's last word to `ulfmrun`: its exit code, and why it refused its input if it did.

All ranks refuse a bad input at once and in the same words. So that the reader sees them once,
standard error runs a fifth of a second late: what was said right before an exit with code 2 is
then still here, and goes to `ulfmrun` instead, which prints it once.
"""

import io
import math
import os
import sys
import threading
import time
from collections import deque
from typing import BinaryIO, TextIO

from ulfm_core import environment
from ulfm_core.codes import BAD_INPUT
from ulfm_core.rank.report import report

__all__ = ["hold_stderr", "keep_refusal", "say_farewell"]

_held: "_HeldStderr | None" = None
_said = False


def hold_stderr() -> None:
    """From now on, pass `sys.stderr` on with a short delay. Without `ulfmrun`, do nothing."""
    global _held  # noqa: PLW0603 - a process has one standard error
    if environment.channel() is not None and _held is None:
        sys.stderr = _held = _HeldStderr(sys.stderr)


def keep_refusal(code: int) -> None:
    """Once a program has ended with this code: keep what it said, if that was a refusal.

    Until `say_farewell`, however long its exit functions take.
    """
    if _held and code == BAD_INPUT:
        _held.keep()


def say_farewell(code: int) -> None:
    """Tell `ulfmrun` that this rank ended its program, with this code. Only the first call counts.

    Whoever ends the process of a rank that has done its work calls this before; a rank of which
    nothing was heard counts as lost.
    """
    global _said  # noqa: PLW0603 - a process ends once
    if _said:
        return
    _said = True
    refusal = _held.take() if _held and code == BAD_INPUT else ""
    if not report("exit", code=code, said=refusal):
        sys.stderr.write(refusal)
    if _held:
        _held.release()


class _HeldStderr(io.TextIOBase):
    """Standard error, a fifth of a second late.

    All ranks refuse a bad input at once and in the same words. What a rank said right before it
    left with code 2 is therefore still here, and goes to `ulfmrun`, which prints it once.
    """

    def __init__(self, stream: TextIO, *, delay: float = 0.2) -> None:
        self._stream = stream
        self._delay = delay
        self._pieces: deque[tuple[float, str]] = deque()  # (when it is due, text)
        self._lock = threading.Lock()
        self._written = threading.Event()
        self._direct = False
        self._kept = False
        threading.Thread(target=self._pass_on, name="stderr", daemon=True).start()
        os.register_at_fork(after_in_child=self._forked)

    def write(self, text: str) -> int:
        if self._direct:
            return self._stream.write(text)
        self._pieces.append((time.monotonic() + self._delay, text))
        self._written.set()
        return len(text)

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def buffer(self) -> BinaryIO:
        return self._stream.buffer

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def take(self, due: float = math.inf) -> str:
        """Return what was due by then and has not been passed on, and now never will be."""
        text = ""
        with self._lock:
            if self._kept and due < math.inf:
                return ""
            while self._pieces and self._pieces[0][0] <= due:
                text += self._pieces.popleft()[1]
        return text

    def keep(self) -> None:
        """From now on pass nothing on, for `take` to have."""
        with self._lock:
            self._kept = True

    def release(self) -> None:
        """Pass everything on, and from now on at once."""
        self._direct = True
        self._stream.write(self.take())
        self._stream.flush()

    def _pass_on(self) -> None:
        while not self._direct:
            self._written.wait()
            self._written.clear()
            while self._pieces and not self._kept:
                time.sleep(self._delay / 4)
                self._stream.write(self.take(time.monotonic()))
                self._stream.flush()

    def _forked(self) -> None:
        # A child has no thread to pass its words on; those of the parent are the parent's.
        self._lock = threading.Lock()
        self._pieces.clear()
        self._direct = True

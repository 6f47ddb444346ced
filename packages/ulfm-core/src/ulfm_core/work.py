"""An operation on its way, and how it ended."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from ulfm_core.errors import PeerLostError, UlfmError
from ulfm_core.garbage import spoil

if TYPE_CHECKING:
    from collections.abc import Callable

    from ulfm_core import _core
    from ulfm_core.bounds import Bounds

__all__ = ["Outcome", "Work"]


class Outcome(enum.Enum):
    """How a collective ended on this rank.

    Other ranks may see another outcome: only a consensus is common.
    """

    PENDING = 0
    OK = 1
    FAILED = 2
    """A peer died, or another rank saw one die, while it ran: the destination holds garbage."""
    QUIESCED = 3
    """Not attempted, because a failure was already known in this epoch."""


class Work:
    """A collective on its way.

    Attributes:
        epoch: The world epoch it was submitted in.
    """

    def __init__(
        self, native: _core.Work, bounds: Bounds, epoch: int, destination: Any = None
    ) -> None:
        self._native = native
        self._bounds = bounds
        self._destination = destination
        self.epoch = epoch

    def __repr__(self) -> str:
        return f"<Work {self._native.name!r} epoch {self.epoch}: {self.outcome.name}>"

    def done(self) -> bool:
        """Whether it has ended, one way or another."""
        return self._native.done()

    def wait(self) -> Outcome:
        """Block until it has ended and return how. Does not raise because a peer died.

        Look at the outcome, or call `result`, which raises. Unless it is OK, the first 1024
        elements of a floating destination are NaN; integers are left as they are, and wrong. OK is
        this rank's own: what a peer got may be garbage all the same, until a consensus has passed.

        Bounded by the world's `wait_limit`: the guard ends a process whose operation stalls.

        Raises:
            UlfmError: It ended by something that is no failure of a process (a bug or a misuse).
        """
        if not self._native.done():
            with self._bounds.waiting():
                self._native.wait()
        if self._native.fatal:
            raise UlfmError(self._native.message)
        outcome, destination = self.outcome, self._destination
        self._destination = None
        if outcome is not Outcome.OK and destination is not None:
            spoil(destination)
        return outcome

    def result(self) -> None:
        """Block until it has ended; raise unless it succeeded here.

        Raises:
            PeerLostError: It failed or was not attempted.
        """
        outcome = self.wait()
        if outcome is not Outcome.OK:
            raise PeerLostError(
                self._native.message or "not attempted: a failure is already known in this epoch",
                epoch=self.epoch,
            )

    @property
    def outcome(self) -> Outcome:
        """How it ended; `PENDING` until then."""
        return Outcome(int(self._native.outcome))

    @property
    def seconds(self) -> float:
        """How long it ran, without the time in the queue. Meaningful once done."""
        return self._native.seconds

    def when_done(self, then: Callable[[], None]) -> None:
        """Call `then` on the communication thread when it has ended (at once if it has)."""
        self._native.when_done(then)

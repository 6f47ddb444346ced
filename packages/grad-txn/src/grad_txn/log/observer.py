"""Who is told about a job's steps and failures while it runs."""

from typing import Protocol

from grad_txn.log.lines import CommitLine, FailureLine

__all__ = ["Observer"]


class Observer(Protocol):
    """Somebody who wants to see what happens: a console, a metrics sink.

    Called on the leader of the lowest living replica only, with the lines that go into the log.
    """

    def step(self, line: CommitLine) -> None:
        """Take the line of a step that has committed."""
        ...

    def failure(self, line: FailureLine, *, seconds: float) -> None:
        """Take what was decided upon a failure.

        Args:
            line: The decision.
            seconds: From the first sign of the failure to the table of survivors.
        """
        ...

"""The end of a rank that a failure schedule names: a real SIGKILL, right where it stands."""

import os
import signal
from collections.abc import Iterable

from grad_txn.failures.places import At
from grad_txn.failures.schedule import Kill
from grad_txn.log.events import EventLog
from grad_txn.log.lines import InjectLine

__all__ = ["FailureInjector"]


class FailureInjector:
    """Kills this process where the schedule says so; a `grad_txn.failures.places.Places`.

    Args:
        schedule: The whole schedule of the job.
        replica: Replica of this process.
        position: Index of this process inside its replica.
        log: Event log of this process; it gets the ``inject`` line before the end.
    """

    def __init__(
        self, schedule: Iterable[Kill], replica: int, position: int, log: EventLog
    ) -> None:
        self._mine = [k for k in schedule if (k.replica, k.position) == (replica, position)]
        self._log = log

    def expects(self, at: At, step: int) -> bool:
        """Say whether this process is to die at that place of that step."""
        return any(kill.at == at and kill.step == step for kill in self._mine)

    def reached(
        self, at: At, step: int, *, bucket: int | None = None, microbatch: int | None = None
    ) -> None:
        """Take that this process is at a place; does not return if it is to die there.

        Args:
            at: The place.
            step: The optimizer step in progress.
            bucket: At ``during_sync``: the bucket just reduced, from 0.
            microbatch: At ``forward`` and ``during_extension``: index of the microbatch in this
                replica's list for the step, from 0.
        """
        for kill in self._mine:
            if (
                kill.at == at
                and kill.step == step
                and kill.bucket in (None, bucket)
                and kill.microbatch in (None, microbatch)
            ):
                self._die(
                    InjectLine(
                        step=step,
                        at=kill.at,
                        replica=kill.replica,
                        position=kill.position,
                        bucket=bucket,
                        microbatch=microbatch,
                    )
                )

    def _die(self, line: InjectLine) -> None:
        """Write this process's last line and end it; what is not a process overrides this."""
        self._log.last_words(line)
        os.kill(os.getpid(), signal.SIGKILL)

"""The places in a step where a rank can be made to die, and who is told when one is reached."""

from enum import StrEnum
from typing import Protocol

__all__ = ["NOWHERE", "At", "Places"]


class At(StrEnum):
    """Where in a step a rank dies, in the order a step passes these places."""

    FORWARD = "forward"
    BEFORE_SYNC = "before_sync"
    DURING_SYNC = "during_sync"
    AFTER_SYNC = "after_sync"
    DURING_REPAIR = "during_repair"
    DURING_RESTORE = "during_restore"
    DURING_EXTENSION = "during_extension"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    OPTIMIZER = "optimizer"

    @property
    def in_recovery(self) -> bool:
        """Whether the place exists only while another death is being recovered from."""
        return self in (At.DURING_REPAIR, At.DURING_RESTORE, At.DURING_EXTENSION)

    @property
    def committed(self) -> bool:
        """Whether the step is committed by then, so that the next step sees the death."""
        return self in (At.AFTER_COMMIT, At.OPTIMIZER)


class Places(Protocol):
    """Who is told where in a step this process is."""

    def expects(self, at: At, step: int) -> bool:
        """Say whether this process is to die at that place of that step."""
        ...

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
        ...


class _Nowhere:
    """Expects no death and lets every place be passed."""

    def expects(self, at: At, step: int) -> bool:  # noqa: ARG002
        return False

    def reached(
        self, at: At, step: int, *, bucket: int | None = None, microbatch: int | None = None
    ) -> None:
        pass


NOWHERE: Places = _Nowhere()
"""For a process that no schedule kills."""

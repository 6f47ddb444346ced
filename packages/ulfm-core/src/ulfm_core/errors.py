"""What can go wrong, for callers to catch."""

from __future__ import annotations

__all__ = [
    "NotLaunchedError",
    "PeerLostError",
    "ReplicaCondemnedError",
    "UlfmError",
    "UnsupportedMPIError",
    "UsageError",
]


class UlfmError(Exception):
    """Base of all errors of this package."""


class UsageError(UlfmError, ValueError):
    """An argument has a value that cannot work; the message names it and the fix."""


class NotLaunchedError(UsageError):
    """The process was not started as one rank of an MPI job."""


class UnsupportedMPIError(UsageError):
    """The MPI has no fault tolerance: another library, an old version, or started without it."""


class PeerLostError(UlfmError, RuntimeError):
    """An operation could not complete because a peer died.

    A `RuntimeError` too, as torch's own communication errors are.

    Attributes:
        epoch: the world epoch the operation ran in. The world must be repaired before anything else
            can succeed.
    """

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class ReplicaCondemnedError(UlfmError):
    """A peer of this process's own replica died: the replica is lost, and this process must leave.

    At once: the others wait for that, and the guard ends it after five seconds.

    Attributes:
        failed: initial ranks that are gone.
        epoch: the epoch of the survivors' repaired world.
    """

    def __init__(self, message: str, *, failed: tuple[int, ...], epoch: int) -> None:
        super().__init__(message)
        self.failed = failed
        self.epoch = epoch

"""Errors of grad_txn. What a user can get wrong is also a ``ValueError``."""

__all__ = ["ExtraMissingError", "GradTxnError", "LogError", "ScheduleError"]


class GradTxnError(Exception):
    """Base of every error raised by grad_txn."""


class ScheduleError(GradTxnError, ValueError):
    """A failure schedule that cannot be read, or that does not fit the job."""


class LogError(GradTxnError, ValueError):
    """An event log that cannot be written or read."""


class ExtraMissingError(GradTxnError, ImportError):
    """A feature needs a library that is an optional extra of grad-txn."""

    def __init__(self, feature: str, *, library: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs {library}, which is not installed; "
            f"run: pip install 'grad-txn[{extra}]'",
            name=library,
        )

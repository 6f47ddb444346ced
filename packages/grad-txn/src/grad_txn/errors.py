"""Errors of grad_txn. What a user can get wrong is also a ``ValueError``."""

__all__ = [
    "CheckpointError",
    "DivergenceError",
    "ExtraMissingError",
    "GradTxnError",
    "InvariantError",
    "LogError",
    "ScheduleError",
    "StartError",
    "UsageError",
]


class GradTxnError(Exception):
    """Base of every error raised by grad_txn."""


class UsageError(GradTxnError, ValueError):
    """An argument, or the order of calls, that cannot work."""


class CheckpointError(GradTxnError, ValueError):
    """A checkpoint that cannot be written, found or resumed from."""


class InvariantError(GradTxnError):
    """The agreed contributions of a step do not sum to what they must. The step is not committed.

    Attributes:
        step: The step.
        total: What the contributions sum to.
        target: What they must sum to: B.
    """

    def __init__(self, *, step: int, total: int, target: int) -> None:
        super().__init__(
            f"step {step} would commit {total} microbatches instead of {target}; "
            "it is not committed"
        )
        self.step = step
        self.total = total
        self.target = target


class DivergenceError(GradTxnError):
    """Replicas that must agree do not: another step, another gradient layout."""


class StartError(DivergenceError, ValueError):
    """Ranks that would begin from different things: another seed, plan, model or checkpoint."""


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

"""Errors of integrations_3d. What a user can get wrong is also a ``ValueError``."""

from pathlib import Path

from grad_txn.errors import GradTxnError

__all__ = ["ConfigError", "NanotronMissingError", "NothingLeftError"]


class ConfigError(GradTxnError, ValueError):
    """A Nanotron configuration, or something that goes with it, that cannot work."""


class NothingLeftError(GradTxnError, ValueError):
    """All steps were done already.

    Attributes:
        step: The step that the checkpoint is the state before.
        where: The checkpoint.
    """

    def __init__(self, *, step: int, where: Path) -> None:
        super().__init__(
            f"{where} is the state before step {step}, so nothing is left to do; give more steps"
        )
        self.step = step
        self.where = where


class NanotronMissingError(GradTxnError, ImportError):
    """Nanotron, or something it needs, cannot be imported."""

    def __init__(self, reason: str, *, name: str | None) -> None:
        super().__init__(
            f"Nanotron cannot be imported ({reason}); for a trial on CPUs run: "
            "pip install 'integrations-3d[nanotron]', for GPUs install it from its repository",
            name=name,
        )

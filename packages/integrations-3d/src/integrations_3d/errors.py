"""Errors of integrations_3d. What a user can get wrong is also a ``ValueError``."""

from grad_txn.errors import GradTxnError

__all__ = ["ConfigError", "NanotronMissingError"]


class ConfigError(GradTxnError, ValueError):
    """A Nanotron configuration, or something that goes with it, that cannot work."""


class NanotronMissingError(GradTxnError, ImportError):
    """Nanotron, or something it needs, cannot be imported."""

    def __init__(self, reason: str, *, name: str | None) -> None:
        super().__init__(
            f"Nanotron cannot be imported ({reason}); for a trial on CPUs run: "
            "pip install 'integrations-3d[nanotron]', for GPUs install it from its repository",
            name=name,
        )

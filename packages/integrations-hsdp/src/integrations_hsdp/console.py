"""What a person sees of a run; it lives in `grad_txn.console`."""

from grad_txn.console import Console

__all__ = ["Console"]

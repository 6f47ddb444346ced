"""A replica as a torch.distributed world of its own; it lives in `grad_txn.replica`."""

from grad_txn.replica import replica_world

__all__ = ["replica_world"]

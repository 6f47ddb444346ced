"""What torch passes to a process group, as ulfm_core wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ulfm_core.errors import UsageError

if TYPE_CHECKING:
    from ulfm_core.collectives import Operation

__all__ = ["bytes_of", "copy_into", "listed", "nested", "operation_of", "root_of"]

_OPERATIONS: tuple[tuple[Any, Operation], ...] = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "sum"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.PRODUCT, "prod"),
)


def operation_of(opts: Any, tensors: list[torch.Tensor]) -> tuple[Operation, bool]:
    """Return how to combine, and whether to divide by the number of ranks afterwards."""
    wanted = getattr(opts, "reduceOp", opts)
    if wanted is None:
        wanted = dist.ReduceOp.SUM
    for known, operation in _OPERATIONS:
        if wanted == known:
            averaged = known == dist.ReduceOp.AVG
            for tensor in tensors:
                if averaged and not tensor.dtype.is_floating_point:
                    message = f"AVG needs floating-point tensors, not {tensor.dtype}"
                    raise TypeError(message)
                if tensor.dtype is torch.bool and operation == "sum":
                    message = "bool tensors have no SUM: use MAX (or) or MIN (and)"
                    raise TypeError(message)
            return operation, averaged
    name = getattr(getattr(wanted, "op", wanted), "name", wanted)
    message = f"the ulfm backend has no reduction {name}: use SUM, AVG, MIN, MAX or PRODUCT"
    raise NotImplementedError(message)


def root_of(opts: Any) -> int:
    """Return the root that torch's options name."""
    return int(getattr(opts, "rootRank", 0))


def listed(tensors: Any) -> list[torch.Tensor]:
    """Return the tensors as a list, be it one or several."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def nested(tensors: Any) -> list[list[torch.Tensor]]:
    """Return lists of tensors, be it one list or several."""
    tensors = list(tensors)
    return [tensors] if isinstance(tensors[0], torch.Tensor) else [list(inner) for inner in tensors]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """View the memory of a tensor of any dtype."""
    if not tensor.is_contiguous():
        message = f"a tensor of shape {tuple(tensor.shape)} is not contiguous: pass .contiguous()"
        raise UsageError(message)
    return tensor.detach().view(-1).view(torch.uint8)


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy as many elements, whatever their shapes."""
    target.detach().copy_(source.view(target.shape))

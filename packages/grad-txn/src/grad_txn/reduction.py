"""One tensor of every living rank, combined: what `Job.reduce` attempts, and what it returns."""

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from grad_txn.communicator import Control
from grad_txn.errors import UsageError
from ulfm_core import Membership, Outcome

__all__ = ["Op", "Reduced", "Reduction"]

Op = Literal["sum", "mean", "min", "max"]

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """What `Job.reduce` returns: equal on all living ranks, to the last bit.

    Attributes:
        value: Of the shape, dtype and device of the tensor that was given.
        replicas: Whose ranks' tensors are in it, in order. One that died before it stood is not
            among them; if its part of the data matters, deal the data out again.
    """

    value: Tensor
    replicas: tuple[int, ...]


class Reduction:
    """A reduction over all living ranks, attempted until it stands.

    Args:
        control: Who is there.
        tensor: This rank's.
        op: How to combine.

    Raises:
        UsageError: The tensor, or the operation, cannot be reduced.
    """

    def __init__(self, control: Control, tensor: Tensor, op: Op) -> None:
        if op not in get_args(Op):
            raise UsageError(f"op is {op!r}; use one of {', '.join(get_args(Op))}")
        if isinstance(tensor, DTensor):
            raise UsageError("the tensor is a DTensor; give its full_tensor(), or its to_local()")
        if tensor.dtype not in (*_FLOATS, *_INTEGERS):
            raise UsageError(f"a tensor of {tensor.dtype} cannot be reduced; convert it to a float")
        if op == "mean" and tensor.dtype not in _FLOATS:
            raise UsageError(f"the mean of {tensor.dtype} is no {tensor.dtype}; convert it first")
        self._control = control
        self._tensor = tensor
        self._op = op
        # On the host: a few numbers, which no device has to wait for.
        self._input = tensor.detach().cpu().contiguous().reshape(-1)
        self._kind = f"{op} of {tuple(tensor.shape)} {tensor.dtype}"

    def attempt(self, members: Membership) -> Tensor | None:
        """Reduce among these; None where it failed here, an empty tensor where the inputs differ.

        Collective over them.
        """
        control, everyone = self._control, self._control.subgroup(members.ranks)
        # First that all mean the same: messages of different lengths would be taken for others.
        digest = hashlib.sha256(self._kind.encode()).digest()
        code = int.from_bytes(digest[:7], "big")
        extremes = torch.tensor([code, -code])
        if control.all_reduce(extremes, op="max", among=everyone).wait() is not Outcome.OK:
            return None
        if int(extremes[0]) != -int(extremes[1]):
            return torch.empty(0, dtype=torch.bool)
        total = self._input.clone()
        operation = "sum" if self._op == "mean" else self._op
        if control.all_reduce(total, op=operation, among=everyone).wait() is not Outcome.OK:
            return None
        return total

    def result(self, total: Tensor, members: Membership) -> Reduced:
        """Make the result of an attempt that stands.

        Raises:
            UsageError: The ranks did not give the same kind of tensor. Raised on all of them.
        """
        if total.dtype is torch.bool:
            raise UsageError(f"the ranks reduce different things, this one the {self._kind}")
        if self._op == "mean":
            total = total / len(members.ranks)
        value = total.reshape(self._tensor.shape).to(self._tensor.device)
        return Reduced(value=value, replicas=members.living)

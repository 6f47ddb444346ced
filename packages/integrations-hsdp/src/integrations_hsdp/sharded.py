"""Finished gradients of a replica whose parameters are sharded over its ranks.

What FSDP2 and FSDP1 have in common. When the framework has reduced gradients inside the replica,
this rank holds its shard of them. Here that shard is added to flat buckets of its own, and the
parameters' `grad` is taken away: an extended pass then leaves the sum of the extra microbatches
alone, and what is reduced across replicas is never something that the framework may still add to.

The framework reduces after every microbatch (`accumulate="sharded"`), so that no rank holds more
than a shard of gradients between microbatches; or after the last of a pass (`"unsharded"`), from a
sum that it keeps of the whole gradients until then, which saves the other reductions.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grad_txn.errors import UsageError
from grad_txn.gradients import local_part
from grad_txn.replica import of_all_ranks

__all__ = ["Accumulate", "ShardedGradients"]

Accumulate = Literal["sharded", "unsharded"]
"""What is kept of the gradients between the microbatches of a pass, see the module."""


@dataclass(kw_only=True, slots=True)
class _Slot:
    """Where a parameter's gradient has its place."""

    bucket: int
    view: Tensor
    grad: Tensor  # the same memory, as the optimizer wants to see it
    fresh: bool = True  # what the view holds is of an earlier step


class ShardedGradients:
    """Flat buckets of this rank's gradient shards; the larger part of a `Gradients`.

    Args:
        parameters: The sharded parameters, in the order of registration.
        process_group: The replica's.
        bucket_mb: Bucket size, in MiB.
        accumulate: Keep this rank's shard between microbatches, or the framework's whole gradients.
        as_grad: Makes of a view of a bucket what the parameter's `grad` is to be.

    Memory: one gradient shard, which the framework does not keep any more. Between microbatches
    also, with ``accumulate="unsharded"``, the replica's whole gradients in the type of reduction.

    Raises:
        UsageError: `accumulate` is neither.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        process_group: dist.ProcessGroup,
        bucket_mb: float,
        accumulate: Accumulate,
        as_grad: Callable[[Tensor, nn.Parameter], Tensor],
    ) -> None:
        if accumulate not in {"sharded", "unsharded"}:
            raise UsageError(f'accumulate={accumulate!r}: use "sharded" or "unsharded"')
        self._process_group = process_group
        self._each = accumulate == "sharded"
        self._ready: Callable[[int], None] | None = None
        self._told = 0
        self._slots: dict[nn.Parameter, _Slot] = {}
        self._buckets: list[Tensor] = []
        self._sizes: list[int] = []
        self._waiting: list[int] = []
        # Backward finishes the last layers first.
        for members in _grouped(list(parameters)[::-1], limit=bucket_mb * 2**20):
            self._add_bucket(members, as_grad)
        self.hide()

    @property
    def buckets(self) -> Sequence[Tensor]:
        """One flat tensor for each group of parameters, in about the order backward fills them."""
        return self._buckets

    def zero(self) -> None:
        """Let the next microbatch accumulate on zero."""
        self.hide()
        for slot in self._slots.values():
            slot.fresh = True

    def norm(self, sums: Sequence[Tensor]) -> float:
        """Return the global norm of all shards. Collective over the replica."""
        mine = float(torch.nn.utils.get_total_norm(sums)) ** 2
        return math.sqrt(math.fsum(square for (square,) in self._of_all([mine])))

    def mean_losses(self, losses: Sequence[float]) -> list[float]:
        """Return the means over the replica's ranks. Collective over the replica."""
        of_all = self._of_all(losses)
        return [sum(parts) / len(of_all) for parts in zip(*of_all, strict=True)]

    def hide(self) -> None:
        """Take the gradients away from the parameters, for the framework to start anew. Local."""
        for parameter in self._slots:
            parameter.grad = None

    def expose(self) -> None:
        """Give the parameters what the buckets hold, for the optimizer. Local."""
        for parameter, slot in self._slots.items():
            parameter.grad = slot.grad

    def start_last(self, ready: Callable[[int], None]) -> None:
        """Prepare for a backward after which every bucket is final. Local."""
        self._ready = ready
        self._told = 0
        self._waiting = list(self._sizes)

    def end_microbatch(self) -> None:
        """Move what backward has left to the buckets; tell of all, if they are final."""
        if self._ready is not None:
            self.finish_last()
        elif self._each:
            for parameter in self.with_gradient():
                self.add(parameter)

    def collect(self, parameter: nn.Parameter) -> None:
        """Move a gradient that was just reduced inside the replica to its bucket. Local."""
        if self._ready is not None:
            self.take(parameter)
        else:
            self.add(parameter)

    def take(self, parameter: nn.Parameter) -> None:
        """Add a parameter's final gradient to its bucket, and tell if that is full. Local."""
        self.add(parameter)
        self._waiting[self._slots[parameter].bucket] -= 1
        self._tell(everything=False)

    def add(self, parameter: nn.Parameter) -> None:
        """Move what is in a parameter's gradient to its bucket. Local.

        Raises:
            UsageError: It is not this rank's shard.
        """
        slot, grad = self._slots[parameter], parameter.grad
        assert grad is not None
        shard = local_part(grad)
        if shard.shape != slot.view.shape:
            raise UsageError(
                f"a gradient of shape {tuple(shard.shape)} was not reduced inside the replica to "
                f"this rank's {tuple(slot.view.shape)}: FSDP1 needs every module it wraps to be "
                'used in the last microbatch, or accumulate="sharded"'
            )
        if slot.fresh:
            slot.view.copy_(shard)
            slot.fresh = False
        else:
            slot.view.add_(shard)
        parameter.grad = None

    def with_gradient(self) -> list[nn.Parameter]:
        """Return the parameters that have a gradient of their own now. Local."""
        return [parameter for parameter in self._slots if parameter.grad is not None]

    def finish_last(self) -> None:
        """Take what is left, and tell of all buckets. Local."""
        for parameter in self.with_gradient():
            self.take(parameter)
        for slot in self._slots.values():
            if slot.fresh:  # a parameter that no microbatch of this step has used
                slot.view.zero_()
                slot.fresh = False
        self._tell(everything=True)
        self._ready = None

    def _tell(self, *, everything: bool) -> None:
        """Call `ready` for buckets in their order: it is that of the reductions on all replicas."""
        while self._told < len(self._buckets) and (everything or self._waiting[self._told] == 0):
            self._told += 1
            assert self._ready is not None
            self._ready(self._told - 1)

    def _add_bucket(
        self,
        members: Sequence[nn.Parameter],
        as_grad: Callable[[Tensor, nn.Parameter], Tensor],
    ) -> None:
        shards = [local_part(parameter.detach()) for parameter in members]
        # One element at least: a rank may hold nothing of a parameter with few rows.
        numbers = max(1, sum(shard.numel() for shard in shards))
        bucket = torch.zeros(numbers, dtype=shards[0].dtype, device=shards[0].device)
        offset = 0
        for parameter, shard in zip(members, shards, strict=True):
            view = bucket[offset : offset + shard.numel()].view(shard.shape)
            offset += shard.numel()
            self._slots[parameter] = _Slot(
                bucket=len(self._buckets), view=view, grad=as_grad(view, parameter)
            )
        self._buckets.append(bucket)
        self._sizes.append(len(members))

    def _of_all(self, values: Sequence[float]) -> list[list[float]]:
        device = self._buckets[0].device
        return of_all_ranks(values, process_group=self._process_group, device=device)


def _grouped(parameters: Sequence[nn.Parameter], *, limit: float) -> Iterable[list[nn.Parameter]]:
    """Split parameters into runs of one type and device, and of `limit` bytes."""
    members: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        shard = local_part(parameter.detach())
        same = not members or (
            members[0].dtype == parameter.dtype and members[0].device == parameter.device
        )
        if members and (not same or size >= limit):
            yield members
            members, size = [], 0
        members.append(parameter)
        size += shard.numel() * shard.element_size()
    if members:
        yield members

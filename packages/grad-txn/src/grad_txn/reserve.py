"""Gradients that do not count, kept in case they do: redundant stacks (SPARe).

Under a policy with redundant stacks a replica also computes shard types that count elsewhere. The
gradient of each of them is kept apart from what counts here. If its supplier dies before the
commit, it is added to this replica's sum, and nothing is computed again.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["Reserve"]


class Reserve:
    """The gradients of the redundant stacks that one rank has computed, step after step.

    Args:
        buckets: The gradient buckets, see `grad_txn.gradients.Gradients`.

    Memory: a copy of the buckets for each redundant stack of a step, kept for the steps to come.
    """

    def __init__(self, buckets: Sequence[Tensor]) -> None:
        self._buckets = tuple(bucket.detach() for bucket in buckets)
        self._free: list[tuple[Tensor, ...]] = []
        self._kept: dict[int, tuple[Tensor, ...]] = {}
        # Of each bucket, what counts and was not added to it yet.
        self._missing: list[list[Tensor]] = [[] for _ in self._buckets]

    def clear(self) -> None:
        """Forget the stacks of the last step. Local."""
        self._free.extend(self._kept.values())
        self._kept.clear()
        for parts in self._missing:
            parts.clear()

    def keep(self, shard_type: int) -> None:
        """Take what the buckets hold as the gradient of this type, and leave zeros. Local."""
        place = self._free.pop() if self._free else tuple(map(torch.empty_like, self._buckets))
        for bucket, kept in zip(self._buckets, place, strict=True):
            kept.copy_(bucket)
            bucket.zero_()
        self._kept[shard_type] = place

    def count(self, shard_types: Iterable[int]) -> None:
        """Have the gradients of these types added to the buckets, each once. Local.

        Raises:
            KeyError: This rank has not kept one of them.
        """
        for shard_type in shard_types:
            for parts, part in zip(self._missing, self._kept[shard_type], strict=True):
                parts.append(part)

    def complete(self, index: int) -> None:
        """Add to bucket `index` what counts and is not in it yet. Local."""
        for part in self._missing[index]:
            self._buckets[index].add_(part)
        self._missing[index].clear()

"""The few numbers that every rank brings to the agreement that closes a step.

They are summed over the cross-replica group, in one message. What must be *equal* on all ranks goes
along as numbers of which the sum alone shows whether they were: by the inequality of Cauchy and
Schwarz, n times the sum of squares is the square of the sum only where all n are the same. The
numbers are small enough for float64 to hold every one of these sums exactly.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

__all__ = ["MARK_BITS", "Sums"]

_WORD_BITS = 15  # squares below 2**30: exact for up to 2**23 ranks
_WORDS = 4
MARK_BITS = _WORD_BITS * _WORDS
"""How many bits a mark has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """One rank's numbers, or their sums over the ranks of the cross-replica group.

    Attributes:
        loss: Losses of the microbatches that count, each times its weight.
        weight: The weights of these microbatches.
        microbatches: How many they are.
        overflows: Ranks whose gradients are no numbers because the loss scale was too high.
        alike: Whether all ranks had the same mark; of one rank alone, True.
    """

    loss: float
    weight: float
    microbatches: int
    overflows: int = 0
    alike: bool = True

    def to_tensor(self, mark: int, row: Sequence[int] = ()) -> Tensor:
        """Return them as they travel: float64 on the CPU, to be summed.

        Args:
            mark: What must be the same on all ranks, below ``2**MARK_BITS``.
            row: Further numbers to be summed, as many on all ranks, each sum below ``2**53``.
        """
        words = [mark >> _WORD_BITS * index & (1 << _WORD_BITS) - 1 for index in range(_WORDS)]
        marks = itertools.chain.from_iterable((word, word * word) for word in words)
        own = (1, self.microbatches, self.overflows, self.loss, self.weight)
        return torch.tensor([*own, *marks, *row], dtype=torch.float64)

    @classmethod
    def from_tensor(cls, summed: Tensor) -> tuple[Self, list[int]]:
        """Return the sums of what `to_tensor` of all ranks gave, and of their rows."""
        ranks, microbatches, overflows, loss, weight, *rest = summed.tolist()
        marks, row = rest[: 2 * _WORDS], rest[2 * _WORDS :]
        pairs = zip(marks[::2], marks[1::2], strict=True)
        sums = cls(
            loss=loss,
            weight=weight,
            microbatches=round(microbatches),
            overflows=round(overflows),
            # In whole numbers: the products do not fit a float.
            alike=all(int(ranks) * int(squares) == int(total) ** 2 for total, squares in pairs),
        )
        return sums, [int(number) for number in row]

"""Whether all replicas still hold the same parameters and the same optimizer state.

They must, to the last bit: all start alike and apply the same sums. A seed that differs, a setting
of one optimizer, a processor that rounds differently, a bit that flips: all of these train on
without an error. So at the first step, and at each that a number divides, every rank's fingerprint
of what it holds goes along with the sums that close the step, and is read from them by all.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from grad_txn.errors import UsageError
from grad_txn.fingerprint import Fingerprint

__all__ = ["Sameness", "Verdict"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the fingerprints of all replicas say.

    Attributes:
        differing: Replicas that hold something else than the majority does; where there is none,
            all of them.
        majority: Whether more than half of the replicas hold the same.
    """

    differing: tuple[int, ...] = ()
    majority: bool = True

    @property
    def same(self) -> bool:
        """Whether all replicas hold the same."""
        return not self.differing


class Sameness:
    """Compares what the replicas hold, where it is due.

    Args:
        held: Returns the tensors of this rank that must be the same in all replicas. Called at the
            beginning of a step.
        every: Compare before every so manieth step, too; 0 for the first step of a run alone.

    Raises:
        UsageError: `every` is negative.
    """

    def __init__(self, held: Callable[[], Iterable[Tensor]], *, every: int) -> None:
        if every < 0:
            raise UsageError(f"check_every is {every}; give a number of steps, or 0 for never")
        self.every = every
        self._held = held
        self._first: int | None = None
        self._step: int | None = None
        self._pending: Fingerprint | None = None
        self._value = 0
        self.same_before: int | None = None
        """The last step before which all replicas were found to be the same."""

    def begin(self, step: int) -> None:
        """Start to take the fingerprint of the state before this step, if it is due. Local."""
        if self._first is None:
            self._first = step
        due = step == self._first or (self.every and step % self.every == 0)
        if due and self._step != step:
            self._step = step
            self._pending = Fingerprint(self._held())

    def row(self, step: int, members: Sequence[int], replica: int) -> list[int]:
        """Return what goes along with this step's sums: a place for each living replica. Local.

        Empty where nothing is due. Waits for the fingerprint.
        """
        if self._step != step:
            return []
        if self._pending is not None:
            self._value, self._pending = self._pending.value(), None
        return [self._value if member == replica else 0 for member in members]

    def judge(self, step: int, members: Sequence[int], summed: Sequence[int]) -> Verdict:
        """Return what the summed rows of all replicas say. Equal on all ranks of the group."""
        if not summed:
            return Verdict()
        value, count = Counter(summed).most_common(1)[0]
        if count == len(members):
            self.same_before = step
            return Verdict()
        if 2 * count <= len(members):
            return Verdict(differing=tuple(members), majority=False)
        pairs = zip(members, summed, strict=True)
        return Verdict(differing=tuple(member for member, one in pairs if one != value))

"""What a failure costs, by strategy.

Each strategy knows who is alive, how many stacks every living group computes in a step, and what
the loss of groups in the middle of a step asks for: nothing, more compute, or a restart.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from spare_planner.errors import QuantityError
from spare_planner.placement import Placement
from spare_planner.reorder import Stacks
from spare_planner.theory import patch_probability

__all__ = [
    "CheckpointOnly",
    "Elastic",
    "EstimatedSpare",
    "Loss",
    "Replication",
    "Spare",
    "Strategy",
]


class Loss(NamedTuple):
    """What losing groups in a step asks for.

    Attributes:
        fatal: Only a restart helps.
        patch: Stacks to compute on top before the sum is tried again.
        patchers: How many groups compute them, at the same time.
    """

    fatal: bool = False
    patch: float = 0.0
    patchers: int = 1


_NOTHING = Loss()
_FATAL = Loss(fatal=True)


class Strategy(Protocol):
    """A way of living with failures."""

    stacks: float
    """What each living group computes in a step."""
    draws: float
    """Independent draws of straggling in that; their relative spread shrinks with its root."""
    alive: int
    """How many groups live."""
    at_once: bool
    """A failure ends the step at once, not when gradients are to be summed."""

    def lose(self, groups: Sequence[int]) -> Loss:
        """Take note of groups that have died in this step."""

    def rejoin(self, groups: Sequence[int]) -> None:
        """Take groups back, between two steps."""

    def reset(self) -> None:
        """Take all groups back: a restart."""


class CheckpointOnly:
    """No redundancy at all: any failure is a restart from the last checkpoint."""

    at_once = True

    def __init__(self, groups: int) -> None:
        self.stacks = self.draws = 1.0
        self.alive = groups

    def lose(self, groups: Sequence[int]) -> Loss:  # noqa: ARG002 - whichever they are
        """Return that it is fatal."""
        return _FATAL

    def rejoin(self, groups: Sequence[int]) -> None:
        """Do nothing: nobody is ever missing."""

    def reset(self) -> None:
        """Do nothing: nobody is ever missing."""


class Elastic:
    """The batch is dealt out again over the living groups (ReCoVer): N/(N-k) stacks each.

    What the dead had not contributed is computed again in the same step. Nothing is redundant and
    nothing is lost while one group lives.

    Args:
        groups: N.
        microbatches: How many microbatches a stack is made of; only whole ones can be dealt out.
            None for a batch that can be split as finely as one likes.
    """

    at_once = False

    def __init__(self, groups: int, *, microbatches: int | None = None) -> None:
        if microbatches is not None and microbatches < 1:
            raise QuantityError(f"a stack has at least 1 microbatch, got {microbatches}")
        self._groups = groups
        self._microbatches = microbatches
        self.stacks = self.draws = 1.0
        self.alive = groups

    def lose(self, groups: Sequence[int]) -> Loss:
        """Return the lost share of the batch as a patch, dealt over everybody left."""
        share = self.stacks * len(groups)
        self.alive -= len(groups)
        if not self.alive:
            return _FATAL
        patch = self._whole(share / self.alive)
        self._deal()
        return Loss(patch=patch, patchers=self.alive)

    def rejoin(self, groups: Sequence[int]) -> None:
        """Deal the batch over more groups."""
        self.alive += len(groups)
        self._deal()

    def reset(self) -> None:
        """Deal the batch over all groups."""
        self.alive = self._groups
        self._deal()

    def _deal(self) -> None:
        self.stacks = self.draws = self._whole(self._groups / self.alive)

    def _whole(self, stacks: float) -> float:
        if self._microbatches is None:
            return stacks
        # A share that is whole but for rounding must not become one more.
        return max(1, -int(-(stacks * self._microbatches - 1e-9) // 1)) / self._microbatches


class Replication:
    """Each batch share is computed by r groups, a set; the job lives while every set does.

    There are round(N/r) sets of neighbouring groups. If r does not divide N, the last ones have one
    group more or less than r.

    Args:
        groups: N.
        redundancy: r.
        one_draw: A group's straggling is drawn once a step and not once a stack, as in the authors'
            simulator.
    """

    at_once = False

    def __init__(self, groups: int, *, redundancy: int, one_draw: bool = False) -> None:
        if not 1 <= redundancy <= groups:
            raise QuantityError(
                f"redundancy must be from 1 to {groups}, the number of groups, got {redundancy}"
            )
        sets = max(1, round(groups / redundancy))
        # Extra or missing groups one a set, from the last set on.
        first = np.arange(groups) // redundancy
        over = np.arange(groups - sets * redundancy) % sets
        first[sets * redundancy :] = sets - 1 - over
        self._set_of: list[int] = first.tolist()
        self._sizes: list[int] = np.bincount(first, minlength=sets).tolist()
        self._groups = groups
        self.stacks = float(redundancy)
        self.draws = 1.0 if one_draw else float(redundancy)
        self.reset()

    def lose(self, groups: Sequence[int]) -> Loss:
        """Return that it is fatal if a set has nobody left."""
        self.alive -= len(groups)
        fatal = False
        for group in groups:
            which = self._set_of[group]
            self._left[which] -= 1
            fatal = fatal or not self._left[which]
        return _FATAL if fatal else _NOTHING

    def rejoin(self, groups: Sequence[int]) -> None:
        """Give sets their groups back."""
        self.alive += len(groups)
        for group in groups:
            self._left[self._set_of[group]] += 1

    def reset(self) -> None:
        """Give all sets all their groups."""
        self._left = list(self._sizes)
        self.alive = self._groups


class Spare:
    """SPARe as it runs: every failure goes through the reordering itself.

    Args:
        placement: Who hosts which shard types.
    """

    at_once = False

    def __init__(self, placement: Placement) -> None:
        self._stacks = Stacks(placement)
        self.stacks = self.draws = 1.0
        self.alive = self._groups = placement.groups

    def lose(self, groups: Sequence[int]) -> Loss:
        """Return the patch that the reordering asks for."""
        self.alive -= len(groups)
        done = self._stacks.fail(groups)
        if done.wiped_out:
            return _FATAL
        self.stacks = self.draws = float(done.stacks)
        if done.covered:
            return _NOTHING
        return Loss(patch=1.0, patchers=max(1, len(done.patched)))

    def rejoin(self, groups: Sequence[int]) -> None:
        """Let the reordering use groups again."""
        self.alive += len(groups)
        self._stacks.rejoin(groups)
        self.stacks = self.draws = float(self._stacks.depth)

    def reset(self) -> None:
        """Go back to the first order."""
        self._stacks.reset()
        self.stacks = self.draws = 1.0
        self.alive = self._groups


class EstimatedSpare:
    """SPARe without its matchings: fast for any number of groups.

    Wipe-outs are exact: a type without a living host. The number of stacks is the lower bound
    ceil(N/(N-k)) after k failures, which the reordering reaches in more than 99.8% of all states,
    and whether a failure asks for a patch is drawn with the `patch_probability`
    of the theory.

    Args:
        placement: Who hosts which shard types.
        rng: Draws the patches.
    """

    at_once = False

    def __init__(self, placement: Placement, *, rng: np.random.Generator) -> None:
        self._table = placement.table
        self._groups = placement.groups
        self._redundancy = placement.redundancy
        self._rng = rng
        n, r = placement.groups, placement.redundancy
        self._harmless: list[float] = (1 - patch_probability(n, r, np.arange(n))).tolist()
        self.stacks = self.draws = 1.0
        self.reset()

    def lose(self, groups: Sequence[int]) -> Loss:
        """Return whether a type is gone, and else a patch as likely as one is needed."""
        hosts, table = self._hosts, self._table
        no_patch = 1.0
        fatal = False
        for group in groups:
            types = table[group]
            hosts[types] -= 1
            fatal = fatal or not hosts[types].all()
            no_patch *= self._harmless[self._groups - self.alive]
            self.alive -= 1
        if fatal:
            return _FATAL
        stacks = float(-(-self._groups // self.alive))
        deeper = stacks > self.stacks
        self.stacks = self.draws = max(self.stacks, stacks)
        if deeper or self._rng.random() >= no_patch:
            return Loss(patch=1.0, patchers=2)
        return _NOTHING

    def rejoin(self, groups: Sequence[int]) -> None:
        """Give types their hosts back, and order everything anew."""
        for group in groups:
            self._hosts[self._table[group]] += 1
        self.alive += len(groups)
        self.stacks = self.draws = float(-(-self._groups // self.alive))

    def reset(self) -> None:
        """Give all types all their hosts."""
        self._hosts = np.full(self._groups, self._redundancy)
        self.alive = self._groups
        self.stacks = self.draws = 1.0

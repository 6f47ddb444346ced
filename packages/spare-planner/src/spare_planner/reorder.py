"""Reordering after failures: the fewest stacks, then the fewest moves (SPARe, RECTLR).

Each group computes the first S of its r stacks in a step, and each type is supplied by one group
that computes it. When groups die:

* phase 0: if the survivors' first S stacks still hold every type, nothing changes;
* phase 1: else the smallest S* >= S is found with which the survivors can supply every type;
* phase 2: and among all orders that do it with S* stacks, one with the fewest *moves*.

A move is a type supplied from a stack position that did not hold it: its supplier held it beyond
the first S* positions of the order right before the failure. So what movement is measured against
is that order, cut at the new depth S*; a type that a deeper S* alone brings into reach has not
moved. Types that were displaced come right after the first S* positions.

The work is incremental: a failure takes their supplier from a few types only, see
`spare_planner.augment`. Without a deeper S* a failure costs far less than a pass over all groups.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from spare_planner.augment import Augmentation
from spare_planner.errors import StaleError, WipeOutError
from spare_planner.orders import Orders
from spare_planner.placement import Placement

__all__ = ["Reordering", "Stacks"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Reordering:
    """What a failure, or a return, has changed.

    Attributes:
        stacks: How many stacks each living group computes from here on, S.
        moves: How many types are supplied from a position that did not hold them.
        patched: Living groups that compute something they did not compute before, sorted: those
            with a move among their first S stacks, or all when S has grown.
        uncovered: Types that no survivor was computing, sorted: what has to be computed again in
            the step of the failure.
        lost: Types that no living group hosts, sorted. If there are any nothing else has changed.
    """

    stacks: int
    moves: int
    patched: tuple[int, ...]
    uncovered: tuple[int, ...]
    lost: tuple[int, ...]
    _read_order: Callable[[], dict[int, tuple[int, ...]]] = field(repr=False)

    @property
    def covered(self) -> bool:
        """Whether phase 0 held: the survivors compute every type already."""
        return not self.uncovered

    @property
    def wiped_out(self) -> bool:
        """Whether a type has lost all its hosts, which only a global restart brings back."""
        return bool(self.lost)

    @property
    def order(self) -> dict[int, tuple[int, ...]]:
        """All r types that each living group hosts, in the order in which it computes them.

        Put together when read, which takes a pass over all groups.

        Raises:
            StaleError: The stacks have changed since.
        """
        return self._read_order()


class Stacks:
    """The order of every group's stacks, as failures change it.

    >>> from spare_planner import place
    >>> stacks = Stacks(place(7, 3))
    >>> change = stacks.fail([0])
    >>> change.stacks, change.moves, change.uncovered
    (2, 0, (0,))

    Args:
        placement: Who hosts what.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._orders = Orders(placement)
        self._lost: tuple[int, ...] = ()
        self._version = 0

    @classmethod
    def from_order(
        cls, placement: Placement, order: Mapping[int, Sequence[int]], depth: int
    ) -> Self:
        """Return stacks in a known state.

        Args:
            placement: Who hosts what.
            order: Living group -> all r types it hosts, in order.
            depth: How many stacks each of them computes; they must cover every type.

        Raises:
            GroupError: A group does not exist, or its order is not one of what it hosts.
            WipeOutError: Some type is in nobody's first `depth` stacks.
        """
        stacks = cls(placement)
        uncovered = stacks._orders.adopt(order, depth)
        if uncovered:
            raise WipeOutError(lost=tuple(uncovered))
        return stacks

    def reset(self) -> None:
        """Go back to the placement's own order with all groups alive, one stack deep."""
        self._version += 1
        self._orders.reset()
        self._lost = ()

    # ----------------------------------------------------------------------------- what is

    @property
    def depth(self) -> int:
        """How many stacks each living group computes, S."""
        return self._orders.depth

    @property
    def survivors(self) -> int:
        """How many groups are alive."""
        return self._orders.survivors

    @property
    def living(self) -> tuple[int, ...]:
        """The groups that are alive, sorted."""
        return self._orders.living

    @property
    def lost(self) -> tuple[int, ...]:
        """The types that no living group hosts, sorted: not empty after a wipe-out."""
        return self._lost

    @property
    def suppliers(self) -> tuple[int, ...]:
        """The one living group that supplies each type; -1 for all that a wipe-out took."""
        return tuple(self._orders.assignment.supplier)

    def order(self, group: int) -> tuple[int, ...]:
        """Return all r types a living group hosts, in the order in which it computes them.

        Raises:
            GroupError: It does not exist or is not alive.
        """
        self._orders.check((group,), alive=True)
        return self._orders.of(group)

    # ---------------------------------------------------------------------------- what happens

    def fail(self, groups: Iterable[int]) -> Reordering:
        """Lose groups, all at once, and reorder the survivors.

        Args:
            groups: Living groups, in any order.

        Raises:
            GroupError: One does not exist, is not alive, or is named twice.
            WipeOutError: An earlier failure was a wipe-out; `reset` first.
        """
        dead = self._begin(groups, alive=True)
        orders, assignment = self._orders, self._orders.assignment
        supplier = assignment.supplier
        orphans = sorted(t for g in dead for t in orders.front[g] if supplier[t] == g)
        for group in dead:
            orders.remove(group)
        uncovered = assignment.cover(orphans)
        self._lost = tuple(t for t in uncovered if not assignment.hosts[t])
        if self._lost or not uncovered:
            return self._reordering(uncovered=uncovered)
        before = orders.depth
        placed = self._assign(uncovered)
        moves = orders.move(placed)
        patched = sorted(placed) if orders.depth == before else self.living
        return self._reordering(moves=moves, patched=patched, uncovered=uncovered)

    def rejoin(self, groups: Iterable[int]) -> Reordering:
        """Bring groups back, between two steps, with the order that the placement gave them.

        The depth becomes the smallest that suffices. If it stays, nothing moves. If it shrinks,
        types move as little as that depth allows; but once all groups are back, so is the
        placement's own order.

        Args:
            groups: Groups that are not alive, in any order.

        Raises:
            GroupError: One does not exist, is alive, or is named twice.
            WipeOutError: An earlier failure was a wipe-out; `reset` first.
        """
        returned = self._begin(groups, alive=False)
        orders = self._orders
        for group in returned:
            orders.bring_back(group)
        if orders.survivors == self.placement.groups:
            computed = [set(front[:1]) for front in orders.front]
            self.reset()
            changed = [g for g, front in enumerate(orders.front) if front[0] not in computed[g]]
            return self._reordering(moves=len(changed), patched=changed)
        for depth in range(-(-self.placement.groups // orders.survivors), orders.depth):
            placed = self._shrink(depth)
            if placed is not None:
                moves = orders.move(placed)
                return self._reordering(moves=moves, patched=sorted(placed))
        return self._reordering()

    def _begin(self, groups: Iterable[int], *, alive: bool) -> list[int]:
        """Check the groups of a change, and begin it."""
        if self._lost:
            raise WipeOutError(lost=self._lost)
        chosen = sorted(groups)
        self._orders.check(chosen, alive=alive)
        self._version += 1
        return chosen

    def _reordering(
        self,
        *,
        moves: int = 0,
        patched: Sequence[int] = (),
        uncovered: Sequence[int] = (),
    ) -> Reordering:
        version = self._version

        def read() -> dict[int, tuple[int, ...]]:
            if version != self._version:
                raise StaleError("the stacks have changed since: read `order` before they do")
            return {group: self.order(group) for group in self.living}

        return Reordering(
            stacks=self.depth,
            moves=moves,
            patched=tuple(patched),
            uncovered=tuple(uncovered),
            lost=self._lost,
            _read_order=read,
        )

    # ------------------------------------------------------------------------- phases 1 and 2

    def _assign(self, uncovered: Sequence[int]) -> dict[int, list[int]]:
        """Supply the uncovered types, as deep as it takes; return the moves by group.

        r stacks always suffice: then every host of a type computes it.
        """
        orders = self._orders
        while True:
            if orders.depth * orders.survivors >= self.placement.groups:
                augmentation = Augmentation(orders.assignment, orders.depth)
                if augmentation.add(uncovered):
                    return augmentation.placed
            orders.deepen()
            uncovered = orders.assignment.cover(uncovered)

    def _shrink(self, depth: int) -> dict[int, list[int]] | None:
        """Try a smaller depth; return the moves by group, or None with nothing changed."""
        orders, assignment = self._orders, self._orders.assignment
        before, front, back = orders.depth, list(orders.front), list(orders.back)
        supplier, load = list(assignment.supplier), list(assignment.load)
        orders.cut(depth)
        augmentation = Augmentation(assignment, depth)
        if augmentation.add(orders.supply_anew()):
            return augmentation.placed
        orders.depth = before
        orders.front[:], orders.back[:] = front, back
        assignment.supplier[:], assignment.load[:] = supplier, load
        return None

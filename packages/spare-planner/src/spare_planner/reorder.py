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

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from spare_planner.augment import Assignment, Augmentation
from spare_planner.errors import GroupError, StaleError, WipeOutError
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
        self._rows: list[list[int]] = placement.table.tolist()
        self._all_hosts: list[list[int]] = placement.hosts.tolist()
        self._version = 0
        self.reset()

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
        if not 1 <= depth <= placement.redundancy:
            raise GroupError(f"depth must be from 1 to {placement.redundancy}, got {depth}")
        stacks._check_groups(order, alive=True)
        for group, types in order.items():
            if sorted(types) != sorted(stacks._rows[group]):
                raise GroupError(f"group {group} does not host {list(types)}, in any order")
        for group in range(placement.groups):
            if group not in order:
                stacks._remove(group)
        stacks._depth = depth
        for group, types in order.items():
            stacks._front[group] = list(types[:depth])
            stacks._back[group] = list(types[depth:])
        uncovered = stacks._supply_anew()
        if uncovered:
            raise WipeOutError(lost=tuple(uncovered))
        return stacks

    def reset(self) -> None:
        """Go back to the placement's own order with all groups alive, one stack deep."""
        groups = self.placement.groups
        self._version += 1
        self._depth = 1
        self._front = [row[:1] for row in self._rows]
        self._back = [row[1:] for row in self._rows]
        self._alive = [True] * groups
        self._survivors = groups
        self._lost: tuple[int, ...] = ()
        self._assignment = Assignment(
            front=self._front,
            hosts=[list(hosts) for hosts in self._all_hosts],
            supplier=[-1] * groups,
            load=[0] * groups,
        )
        self._assignment.cover(range(groups))

    # ----------------------------------------------------------------------------- what is

    @property
    def depth(self) -> int:
        """How many stacks each living group computes, S."""
        return self._depth

    @property
    def survivors(self) -> int:
        """How many groups are alive."""
        return self._survivors

    @property
    def living(self) -> tuple[int, ...]:
        """The groups that are alive, sorted."""
        return tuple(group for group, alive in enumerate(self._alive) if alive)

    @property
    def lost(self) -> tuple[int, ...]:
        """The types that no living group hosts, sorted: not empty after a wipe-out."""
        return self._lost

    @property
    def suppliers(self) -> tuple[int, ...]:
        """The one living group that supplies each type; -1 for all that a wipe-out took."""
        return tuple(self._assignment.supplier)

    def order(self, group: int) -> tuple[int, ...]:
        """Return all r types a living group hosts, in the order in which it computes them.

        Raises:
            GroupError: It does not exist or is not alive.
        """
        self._check_groups((group,), alive=True)
        return (*self._front[group], *self._back[group])

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
        supplier = self._assignment.supplier
        orphans = sorted(t for g in dead for t in self._front[g] if supplier[t] == g)
        for group in dead:
            self._remove(group)
        uncovered = self._assignment.cover(orphans)
        self._lost = tuple(t for t in uncovered if not self._assignment.hosts[t])
        if self._lost or not uncovered:
            return self._reordering(uncovered=uncovered)
        before = self._depth
        placed = self._assign(uncovered)
        moves = self._move(placed)
        patched = sorted(placed) if self._depth == before else self.living
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
        for group in returned:
            row = self._rows[group]
            self._front[group], self._back[group] = row[: self._depth], row[self._depth :]
            self._alive[group] = True
            for t in row:
                insort(self._assignment.hosts[t], group)
        self._survivors += len(returned)
        before, living = self._depth, self.living
        if self._survivors == self.placement.groups:
            computed = [set(front[:1]) for front in self._front]
            self.reset()
            changed = [g for g in living if self._front[g][0] not in computed[g]]
            return self._reordering(moves=len(changed), patched=changed)
        for depth in range(-(-self.placement.groups // self._survivors), before):
            placed = self._shrink(depth)
            if placed is not None:
                moves = self._move(placed)
                return self._reordering(moves=moves, patched=sorted(placed))
        return self._reordering()

    def _begin(self, groups: Iterable[int], *, alive: bool) -> list[int]:
        """Check the groups of a change, and begin it."""
        if self._lost:
            raise WipeOutError(lost=self._lost)
        chosen = sorted(groups)
        self._check_groups(chosen, alive=alive)
        self._version += 1
        return chosen

    def _check_groups(self, groups: Iterable[int], *, alive: bool) -> None:
        seen = set()
        for group in groups:
            if not 0 <= group < self.placement.groups:
                raise GroupError(
                    f"there is no group {group}: groups are 0 to {self.placement.groups - 1}"
                )
            if self._alive[group] != alive:
                raise GroupError(f"group {group} is {'not alive' if alive else 'alive already'}")
            if group in seen:
                raise GroupError(f"group {group} is named twice")
            seen.add(group)

    def _remove(self, group: int) -> None:
        self._alive[group] = False
        self._survivors -= 1
        self._assignment.load[group] = 0
        for t in self._rows[group]:
            self._assignment.hosts[t].remove(group)

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
            stacks=self._depth,
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
        while True:
            if self._depth * self._survivors >= self.placement.groups:
                augmentation = Augmentation(self._assignment, self._depth)
                if augmentation.add(uncovered):
                    return augmentation.placed
            self._depth += 1
            for front, back, alive in zip(self._front, self._back, self._alive, strict=True):
                if alive:
                    front.append(back.pop(0))
            uncovered = self._assignment.cover(uncovered)

    def _shrink(self, depth: int) -> dict[int, list[int]] | None:
        """Try a smaller depth; return the moves by group, or None with nothing changed."""
        before, front, back = self._depth, list(self._front), list(self._back)
        supplier, load = list(self._assignment.supplier), list(self._assignment.load)
        for group in self.living:
            order = front[group] + back[group]
            self._front[group], self._back[group] = order[:depth], order[depth:]
        self._depth = depth
        augmentation = Augmentation(self._assignment, depth)
        if augmentation.add(self._supply_anew()):
            return augmentation.placed
        self._depth = before
        self._front[:], self._back[:] = front, back
        self._assignment.supplier[:], self._assignment.load[:] = supplier, load
        return None

    def _supply_anew(self) -> list[int]:
        """Choose all suppliers again from what is computed; return the types that have none."""
        self._assignment.load[:] = [0] * self.placement.groups
        return self._assignment.cover(range(self.placement.groups))

    def _move(self, placed: Mapping[int, list[int]]) -> int:
        """Put moved types into the places they have been given; return how many there are.

        A type that is supplied keeps its position. Moved ones take the last of the other positions,
        so that the stacks computed first change least.
        """
        moves = 0
        for group, types in placed.items():
            front, back = self._front[group], self._back[group]
            free = [i for i, t in enumerate(front) if self._assignment.supplier[t] != group]
            taken = free[len(free) - len(types) :]
            displaced = [front[i] for i in taken]
            for i, t in zip(taken, sorted(types), strict=True):
                front[i] = t
                back.remove(t)
            back[:0] = displaced
            moves += len(types)
        return moves

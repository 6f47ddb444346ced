"""The orders of all groups: who is alive, what each computes in which order, who supplies what.

A group's order is all r types that it hosts. It computes the first S of them, its *front*, and only
hosts the rest, its *back*. Of the groups that compute a type one supplies it. Here is what can be
done to one group or to all; when to do it is `spare_planner.reorder`'s affair.
"""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence

from spare_planner.augment import Assignment
from spare_planner.errors import GroupError
from spare_planner.placement import Placement

__all__ = ["Orders"]


class Orders:
    """The orders of all groups, changed in place.

    Attributes:
        placement: Who hosts what.
        depth: How many stacks each living group computes, S.
        front: The types that each group computes, in order.
        back: The types that each group hosts and does not compute, in order.
        alive: Whether each group is alive.
        survivors: How many are.
        assignment: Which living group supplies each type.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self._rows: list[list[int]] = placement.table.tolist()
        self._all_hosts: list[list[int]] = placement.hosts.tolist()
        self.reset()

    def reset(self) -> None:
        """Go back to the placement's own order with all groups alive, one stack deep."""
        groups = self.placement.groups
        self.depth = 1
        self.front = [row[:1] for row in self._rows]
        self.back = [row[1:] for row in self._rows]
        self.alive = [True] * groups
        self.survivors = groups
        self.assignment = Assignment(
            front=self.front,
            hosts=[list(hosts) for hosts in self._all_hosts],
            supplier=[-1] * groups,
            load=[0] * groups,
        )
        self.assignment.cover(range(groups))

    @property
    def living(self) -> tuple[int, ...]:
        """The groups that are alive, sorted."""
        return tuple(group for group, alive in enumerate(self.alive) if alive)

    def of(self, group: int) -> tuple[int, ...]:
        """Return all r types that a living group hosts, in order."""
        return (*self.front[group], *self.back[group])

    def check(self, groups: Iterable[int], *, alive: bool) -> None:
        """Check that groups are named once each and are alive, or are not.

        Raises:
            GroupError: One is not, or does not exist.
        """
        seen = set()
        for group in groups:
            if not 0 <= group < self.placement.groups:
                raise GroupError(
                    f"there is no group {group}: groups are 0 to {self.placement.groups - 1}"
                )
            if self.alive[group] != alive:
                raise GroupError(f"group {group} is {'not alive' if alive else 'alive already'}")
            if group in seen:
                raise GroupError(f"group {group} is named twice")
            seen.add(group)

    def adopt(self, order: Mapping[int, Sequence[int]], depth: int) -> list[int]:
        """Put groups into a known order, from a fresh start; those that are not named are dead.

        Returns:
            The types that nobody computes then.

        Raises:
            GroupError: A group does not exist, its order is not one of what it hosts, or the depth
                is out of range.
        """
        most = self.placement.redundancy
        if not 1 <= depth <= most:
            raise GroupError(f"depth must be from 1 to {most}, got {depth}")
        self.check(order, alive=True)
        for group, types in order.items():
            if sorted(types) != sorted(self._rows[group]):
                raise GroupError(f"group {group} does not host {list(types)}, in any order")
        for group in range(self.placement.groups):
            if group not in order:
                self.remove(group)
        self.depth = depth
        for group, types in order.items():
            self.front[group] = list(types[:depth])
            self.back[group] = list(types[depth:])
        return self.supply_anew()

    def remove(self, group: int) -> None:
        """Take a group out; what it supplied has to be supplied by others."""
        self.alive[group] = False
        self.survivors -= 1
        self.assignment.load[group] = 0
        for t in self._rows[group]:
            self.assignment.hosts[t].remove(group)

    def bring_back(self, group: int) -> None:
        """Take a group in, with the placement's order at the depth of the others."""
        row = self._rows[group]
        self.front[group], self.back[group] = row[: self.depth], row[self.depth :]
        self.alive[group] = True
        self.survivors += 1
        for t in row:
            insort(self.assignment.hosts[t], group)

    def deepen(self) -> None:
        """Have every living group compute one stack more."""
        self.depth += 1
        for front, back, alive in zip(self.front, self.back, self.alive, strict=True):
            if alive:
                front.append(back.pop(0))

    def cut(self, depth: int) -> None:
        """Have every living group compute only so many stacks."""
        for group in self.living:
            order = self.front[group] + self.back[group]
            self.front[group], self.back[group] = order[:depth], order[depth:]
        self.depth = depth

    def supply_anew(self) -> list[int]:
        """Choose all suppliers again from what is computed; return the types that have none."""
        self.assignment.load[:] = [0] * self.placement.groups
        return self.assignment.cover(range(self.placement.groups))

    def move(self, placed: Mapping[int, list[int]]) -> int:
        """Put types into the fronts of groups that are to supply them; return how many there are.

        A type that is supplied keeps its position. Moved ones take the last of the other positions,
        so that the stacks computed first change least.
        """
        moves = 0
        for group, types in placed.items():
            front, back = self.front[group], self.back[group]
            free = [i for i, t in enumerate(front) if self.assignment.supplier[t] != group]
            taken = free[len(free) - len(types) :]
            displaced = [front[i] for i in taken]
            for i, t in zip(taken, sorted(types), strict=True):
                front[i] = t
                back.remove(t)
            back[:0] = displaced
            moves += len(types)
        return moves

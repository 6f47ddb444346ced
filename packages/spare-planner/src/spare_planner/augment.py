"""Minimal movement: shortest augmenting paths from types to groups (SPARe, RECTLR phases 1 and 2).

Every type needs one living group that computes it, its *supplier*, and a group supplies as many
types as it computes stacks. A type costs nothing with a supplier that computes it already and one
move with one that only hosts it. A cheapest assignment of all types is a min-cost flow. When groups
die only their types lose their supplier, and what is left is still a cheapest assignment of the
rest; so each lost type is added by one shortest path, which may push other types on to further
groups (successive shortest paths, with potentials that keep all lengths non-negative). Searches
stay near the failure as long as stacks have room. Where no path exists, no assignment does: the
stacks are too few.
"""

from collections.abc import Sequence

__all__ = ["Assignment", "Augmentation"]


class Assignment:
    """Which group supplies each type, and what may change about it.

    Attributes:
        front: The types each group computes, one list a group; its length is the number of stacks.
        hosts: The living groups that host each type.
        supplier: The group that supplies each type; -1 for none.
        load: How many types each group supplies.
    """

    __slots__ = ("front", "hosts", "load", "supplier")

    def __init__(
        self,
        *,
        front: list[list[int]],
        hosts: list[list[int]],
        supplier: list[int],
        load: list[int],
    ) -> None:
        self.front = front
        self.hosts = hosts
        self.supplier = supplier
        self.load = load

    def cover(self, types: Sequence[int]) -> list[int]:
        """Give each type a supplier that computes it already; return those that have none.

        Such a group always has room: what it supplies are other types of those it computes.
        """
        front, uncovered = self.front, []
        for t in types:
            for group in self.hosts[t]:
                if t in front[group]:
                    self.supplier[t] = group
                    self.load[group] += 1
                    break
            else:
                self.supplier[t] = -1
                uncovered.append(t)
        return uncovered


class Augmentation:
    """Adds types to an assignment whose suppliers all compute what they supply.

    Attributes:
        placed: Group -> types it has to supply without computing them yet: the moves.
    """

    def __init__(self, assignment: Assignment, depth: int) -> None:
        self.placed: dict[int, list[int]] = {}
        self._assignment = assignment
        self._depth = depth
        self._journal: list[tuple[int, int, int]] = []  # type, supplier before and after
        # Nodes that are not here have the potential 0. A type and its supplier have the same, up to
        # the cost of the edge between them.
        self._type_potential: dict[int, int] = {}
        self._group_potential: dict[int, int] = {}

    def add(self, types: Sequence[int]) -> bool:
        """Supply all of these types too, with the fewest moves; whether that can be done.

        If not, the assignment is what it was.
        """
        if all(self._add(t) for t in types):
            return True
        supplier, load = self._assignment.supplier, self._assignment.load
        for t, before, after in reversed(self._journal):
            supplier[t] = before
            load[after] -= 1
            if before >= 0:
                load[before] += 1
        return False

    def _add(self, added: int) -> bool:
        """Find a shortest path from a type to a group with room, level by level, and take it.

        All costs are whole numbers, so levels replace a priority queue.
        """
        front, hosts = self._assignment.front, self._assignment.hosts
        load, depth = self._assignment.load, self._depth
        type_potential, group_potential = self._type_potential, self._group_potential
        distance: dict[int, int] = {}
        reached_from: dict[int, int] = {}
        levels: list[list[int]] = []
        end, length = -1, -1  # the nearest group with room so far
        level: int | None = 0
        types = [added]
        while level is not None and (end < 0 or level < length):
            for t in types:
                base = level + type_potential.get(t, 0)
                for group in hosts[t]:
                    reach = base - group_potential.get(group, 0)
                    if t not in front[group]:
                        reach += 1
                    if distance.get(group, reach + 1) <= reach:
                        continue
                    distance[group] = reach
                    reached_from[group] = t
                    if load[group] < depth:
                        if end < 0 or reach < length:
                            end, length = group, reach
                    else:
                        while len(levels) <= reach:
                            levels.append([])
                        levels[reach].append(group)
            level = next((i for i in range(level, len(levels)) if levels[i]), None)
            if level is not None:
                nearest = [group for group in levels[level] if distance[group] == level]
                levels[level] = []
                types = [t for group in nearest for t in self._supplied(group)]
        if end < 0:
            return False
        self._update_potentials(added, distance, length)
        self._take(added, end, reached_from)
        return True

    def _supplied(self, group: int) -> list[int]:
        supplier = self._assignment.supplier
        types = [t for t in self._assignment.front[group] if supplier[t] == group]
        return types + self.placed[group] if group in self.placed else types

    def _update_potentials(self, added: int, distance: dict[int, int], length: int) -> None:
        """Lower the potential of all that is nearer than the end of the path."""
        self._type_potential[added] = -length
        for group, reach in distance.items():
            if reach < length:
                change = reach - length
                potential = self._group_potential
                potential[group] = potential.get(group, 0) + change
                potential = self._type_potential
                for t in self._supplied(group):
                    potential[t] = potential.get(t, 0) + change

    def _take(self, added: int, end: int, reached_from: dict[int, int]) -> None:
        """Move each type on the path to the next group."""
        supplier, front = self._assignment.supplier, self._assignment.front
        group = end
        while True:
            t = reached_from[group]
            before = supplier[t]
            if before >= 0:
                self._assignment.load[before] -= 1
                if t in self.placed.get(before, ()):
                    self.placed[before].remove(t)
                    if not self.placed[before]:
                        del self.placed[before]
            supplier[t] = group
            self._assignment.load[group] += 1
            if t not in front[group]:
                self.placed.setdefault(group, []).append(t)
            self._journal.append((t, before, group))
            if t == added:
                return
            group = before

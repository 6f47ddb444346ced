"""Sets of microbatch ids as inclusive ranges: what the judge counts with.

A step of a run without deaths is one range a replica, whatever B is, and what is not committed yet
is the rest of the stream and a few holes.
"""

from collections.abc import Iterable, Sequence

__all__ = ["Range", "Uncommitted", "joined", "overlap", "size", "without"]

Range = tuple[int, int]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the union, sorted, with touching ranges made one."""
    union: list[Range] = []
    for first, last in sorted(ranges):
        if union and first <= union[-1][1] + 1:
            union[-1] = (union[-1][0], max(union[-1][1], last))
        else:
            union.append((first, last))
    return union


def overlap(ranges: Iterable[Range]) -> int | None:
    """Return an id that is in two of the ranges, if there is one."""
    end = None
    for first, last in sorted(ranges):
        if end is not None and first <= end:
            return first
        end = last
    return None


def size(ranges: Iterable[Range]) -> int:
    """Return how many ids there are, in ranges that do not overlap."""
    return sum(last - first + 1 for first, last in ranges)


def without(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """Return what is left of sorted ranges without others, sorted too."""
    left: list[Range] = []
    index = 0
    for begin, last in ranges:
        while index < len(taken) and taken[index][1] < begin:
            index += 1
        first, at = begin, index
        while at < len(taken) and taken[at][0] <= last:
            if taken[at][0] > first:
                left.append((first, taken[at][0] - 1))
            first = taken[at][1] + 1
            at += 1
        if first <= last:
            left.append((first, last))
    return left


class Uncommitted:
    """The ids that no step has committed: holes below a cursor, and all from there on."""

    def __init__(self, holes: Sequence[Range], cursor: int) -> None:
        self.holes = list(holes)
        self.cursor = cursor

    def foreign(self, taken: Sequence[Range]) -> int | None:
        """Return the lowest of these ids, sorted ranges, that is committed already, if any."""
        below = [(first, min(last, self.cursor - 1)) for first, last in taken]
        found = without([r for r in below if r[0] <= r[1]], self.holes)
        return found[0][0] if found else None

    def commit(self, taken: Sequence[Range]) -> None:
        """Take ids out, sorted ranges."""
        top = max((last for _, last in taken), default=-1)
        if top >= self.cursor:
            self.holes.append((self.cursor, top))
            self.cursor = top + 1
        self.holes = without(joined(self.holes), taken)

    def lowest(self, count: int, *, but: Sequence[Range]) -> list[Range]:
        """Return the lowest `count` of them that are not in `but`, sorted ranges."""
        found: list[Range] = []
        beyond = self.cursor + count + size(but)
        for first, last in without([*self.holes, (self.cursor, beyond)], but):
            if count <= 0:
                break
            found.append((first, min(last, first + count - 1)))
            count -= last - first + 1
        return found

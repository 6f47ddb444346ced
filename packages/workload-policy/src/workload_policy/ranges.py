"""Microbatch ids as ranges: mostly one or two a replica, however many ids they are."""

from collections.abc import Iterable

__all__ = ["ranges_of"]


def ranges_of(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ids, in their order, as inclusive ranges of successive ones.

    An id that appears twice is in two ranges.
    """
    ranges: list[tuple[int, int]] = []
    for i in ids:
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], i)
        else:
            ranges.append((i, i))
    return tuple(ranges)

"""The one global stream of microbatch ids and what of it is still to be counted.

The uncounted part is written as ``queue + [cursor, inf)``: every id from `cursor` on, and the
sorted few below it that were left behind when their replica died. Counting ids is the only thing
that changes it; handing an id to a replica does not. So there is nothing to give back when a
replica dies: what nobody living holds is simply pending.
"""

import itertools
from collections.abc import Collection, Iterable

__all__ = ["remove_ids", "take_ids"]


def take_ids(
    count: int, *, queue: tuple[int, ...], cursor: int, held: Collection[int] = frozenset()
) -> tuple[int, ...]:
    """Return the first `count` uncounted ids that are not in `held`, in order.

    Args:
        count: How many ids.
        queue: Uncounted ids below `cursor`, sorted.
        cursor: First id of the untouched rest of the stream.
        held: Ids that living replicas have already; a set when large.
    """
    if not held:
        behind = queue[:count]
        return behind + tuple(range(cursor, cursor + count - len(behind)))
    free = (i for i in itertools.chain(queue, itertools.count(cursor)) if i not in held)
    return tuple(itertools.islice(free, count))


def remove_ids(
    ids: Iterable[int], *, queue: tuple[int, ...], cursor: int
) -> tuple[tuple[int, ...], int]:
    """Return the queue and the cursor once `ids`, distinct and uncounted so far, are counted."""
    counted = set(ids)
    end = max(cursor, max(counted, default=-1) + 1)
    if len(counted) == len(queue) + end - cursor:
        return (), end
    behind = itertools.chain(queue, range(cursor, end))
    return tuple(i for i in behind if i not in counted), end

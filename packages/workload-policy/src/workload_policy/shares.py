"""Sharing out microbatches among members, one by one."""

import heapq
from collections.abc import Mapping

from workload_policy.errors import PlanError

__all__ = ["share_out"]


def share_out(
    count: int, loads: Mapping[int, int], *, speeds: Mapping[int, float] | None = None
) -> dict[int, int]:
    """Deal microbatches one by one, each to the member that would be done with it first.

    >>> share_out(4, {0: 2, 1: 2, 2: 3})
    {0: 2, 1: 2, 2: 0}
    >>> share_out(9, {0: 0, 1: 0}, speeds={0: 2.0, 1: 1.0})
    {0: 6, 1: 3}

    Args:
        count: How many microbatches to deal, at least 0.
        loads: Microbatches that each member has to compute already; only these members get any.
        speeds: Microbatches per unit of time of each member, above 0; all are equally fast if None.

    Returns:
        How many each member gets, zeros included. Of members that would be done at the same time
        the one with the smaller id comes first, so every survivor deals alike.

    Raises:
        PlanError: There are microbatches and no member, or a speed that is missing or not positive.
    """
    if count and not loads:
        raise PlanError(f"{count} microbatches cannot be shared out: there is no member")
    pace = {m: 1.0 if speeds is None else speeds.get(m, 0.0) for m in loads}
    for member, speed in pace.items():
        if not speed > 0:
            raise PlanError(f"the speed of replica {member} must be above 0, got {speed}")
    shares = dict.fromkeys(loads, 0)
    ends = [((load + 1) / pace[m], m) for m, load in loads.items()]
    heapq.heapify(ends)
    for _ in range(count):
        _, member = ends[0]
        shares[member] += 1
        end = (loads[member] + shares[member] + 1) / pace[member]
        heapq.heapreplace(ends, (end, member))
    return shares

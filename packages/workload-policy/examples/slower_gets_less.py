"""Slower replicas get less, and a step still commits exactly its own microbatches.

Every survivor runs these functions for itself, so they have to depend on nothing but their
arguments and the table below, which has to be the same everywhere.
"""

from collections.abc import Mapping, Sequence

from workload_policy import Layout, Plan, Response, Role, share_out

SPEEDS = {0: 1.0, 1: 1.0, 2: 0.75, 3: 0.5}
"""Microbatches per unit of time; replicas that are not here have a speed of 1."""

base = "exact"  # the layout, and whatever else is not defined here
promise = "exact"


def quotas(layout: Layout, roles: Mapping[int, Role]) -> dict[int, int]:
    """Deal the batch so that all are done at about the same time."""
    return share_out(layout.global_batch, dict.fromkeys(roles, 0), speeds=speeds_of(roles))


def respond(plan: Plan, failed: Sequence[int], roles: Mapping[int, Role]) -> Response:
    """Deal what the dead had computed, so that the extended step ends as soon as it can."""
    lost = sum(len(plan.assigned[replica]) for replica in failed)
    loads = {replica: len(plan.assigned[replica]) for replica in roles}
    return Response(roles=roles, extra_counts=share_out(lost, loads, speeds=speeds_of(roles)))


def speeds_of(roles: Mapping[int, Role]) -> dict[int, float]:
    """Return the speed of each member."""
    return {replica: SPEEDS.get(replica, 1.0) for replica in roles}

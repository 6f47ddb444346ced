"""The baseline: the batch shrinks with the world."""

from collections.abc import Sequence

from workload_policy.layout import Layout, check_shape
from workload_policy.plan import Plan
from workload_policy.policies.in_order import InOrder
from workload_policy.promise import Promise
from workload_policy.response import Response
from workload_policy.roles import Role

__all__ = ["AdaptiveWorld"]


class AdaptiveWorld(InOrder):
    """Go on with whoever is left, each with its first share (ReCoVer, Algorithm 8, the strawman).

    A step counts ``survivors * G_init`` microbatches, so the training trajectory drifts. Kept to
    show what the other policies are for.
    """

    name = "adaptive"
    promise = Promise.NONE

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return a layout in which every survivor is a major with its first share."""
        batch = check_shape(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
        return Layout(
            replicas=replicas,
            survivors=survivors,
            global_batch=batch,
            grad_accum=grad_accum,
            majors=survivors,
            minors=0,
            minor_quota=0,
            major_spares=0,
            minor_spares=0,
        )

    def respond(self, plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> Response:  # noqa: ARG002 - the dead do not matter
        """Leave the survivors as they are."""
        return Response(roles=roles)

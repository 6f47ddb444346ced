"""The reproducible policy: every step counts the very ids it would count without failures."""

from collections.abc import Sequence

from workload_policy.layout import Layout, check_shape
from workload_policy.plan import Plan
from workload_policy.policies.in_order import InOrder
from workload_policy.promise import Promise
from workload_policy.response import Response
from workload_policy.roles import Role
from workload_policy.shares import share_out

__all__ = ["ExactBatch"]


class ExactBatch(InOrder):
    """Compute again, in the same step, exactly what the dead had computed.

    Step t counts ``[t*B, (t+1)*B)`` whatever dies, so the whole trajectory is the failure-free one
    up to the order of additions. There are no spares: each failure costs extra microbatches. The
    batch is split evenly; where it does not divide, the members with the larger share are the
    majors and the others the minors. Replicas beyond the number of microbatches are minors with
    nothing to do.
    """

    name = "exact"
    promise = Promise.EXACT

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the even split."""
        batch = check_shape(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
        share, larger = divmod(batch, survivors)
        return Layout(
            replicas=replicas,
            survivors=survivors,
            global_batch=batch,
            grad_accum=share + 1 if larger else share,
            majors=larger or survivors,
            minors=survivors - larger if larger else 0,
            minor_quota=share if larger else 0,
            major_spares=0,
            minor_spares=0,
        )

    def respond(self, plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> Response:
        """Deal what the dead had, one by one, to whoever has the least to do."""
        lost = sum(len(plan.assigned[m]) for m in failed)
        loads = {m: len(plan.assigned[m]) for m in roles}
        return Response(roles=roles, extra_counts=share_out(lost, loads))

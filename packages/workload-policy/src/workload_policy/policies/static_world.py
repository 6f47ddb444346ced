"""The paper's policy: the batch stays B, spares replace the dead, the rest is computed on top."""

from collections.abc import Sequence

from workload_policy.layout import Layout, check_shape
from workload_policy.plan import Plan
from workload_policy.policies.in_order import InOrder
from workload_policy.promise import Promise
from workload_policy.response import Response
from workload_policy.roles import Role
from workload_policy.shares import share_out

__all__ = ["StaticWorld"]


class StaticWorld(InOrder):
    """Keep the batch: promote spares, else take a boundary step (ReCoVer, Algorithms 6 and 7).

    Microbatches are exchangeable here: a promoted spare counts with its own ids, and those of the
    dead replica are counted by a later step.
    """

    name = "static"
    promise = Promise.BATCH

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the majors that fill the batch, one minor for the remainder, and spares."""
        batch = check_shape(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
        accum = -(-batch // survivors)
        majors, minor_quota = divmod(batch, accum)
        minors = 1 if minor_quota else 0
        spares = survivors - majors - minors
        minor_spares = 1 if minors and spares >= 2 else 0
        return Layout(
            replicas=replicas,
            survivors=survivors,
            global_batch=batch,
            grad_accum=accum,
            majors=majors,
            minors=minors,
            minor_quota=minor_quota,
            major_spares=spares - minor_spares,
            minor_spares=minor_spares,
        )

    def respond(self, plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> Response:
        """Promote spares of the dead ones' kinds and share out what is still missing.

        At a boundary the paper counts every spare that is left. Here only those count whose work
        still fits into what is missing, so that the total can never pass the global batch; one
        that does not fit sits the step out.
        """
        promoted = _replace_in_kind(plan, failed, roles)
        missing = plan.target - sum(
            len(plan.assigned[m]) for m, role in roles.items() if not role.is_spare
        )
        admitted = []
        for spare in [m for m, role in roles.items() if role.is_spare]:
            if len(plan.assigned[spare]) <= missing:
                missing -= len(plan.assigned[spare])
                roles[spare] = roles[spare].promoted
                admitted.append(spare)
        # Each the same, whatever it has already: G_ext, and one less for the last ones, the
        # boundary minors.
        contributors = [m for m, role in roles.items() if not role.is_spare]
        return Response(
            roles=roles,
            extra_counts=share_out(missing, dict.fromkeys(contributors, 0)),
            promoted=promoted,
            admitted=tuple(admitted),
        )


def _replace_in_kind(plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> dict[int, int]:
    """Promote spares, in order of id, into `roles` for dead contributors of their own kind."""
    promoted: dict[int, int] = {}
    for spare_role in (Role.MAJOR_SPARE, Role.MINOR_SPARE):
        vacant = [m for m in failed if plan.roles[m] is spare_role.promoted]
        spares = [m for m, role in roles.items() if role is spare_role]
        for dead, spare in zip(vacant, spares, strict=False):  # whichever runs out first
            roles[spare] = spare_role.promoted
            promoted[dead] = spare
    return promoted

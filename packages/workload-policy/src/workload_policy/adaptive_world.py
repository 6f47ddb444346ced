"""The baseline: the batch shrinks with the world."""

from __future__ import annotations

from collections.abc import Sequence

from workload_policy.layout import Layout, check_shape
from workload_policy.plan import Plan
from workload_policy.policy import Response, StepPolicy

__all__ = ["AdaptiveWorld"]


class AdaptiveWorld(StepPolicy):
    """Go on with whoever is left, each with its own share (ReCoVer, Algorithm 8, the strawman).

    A step counts ``survivors * G_init`` microbatches, so the training trajectory drifts. Kept to show what the other
    policies are for.
    """

    name = "adaptive"

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return a layout where every survivor is a major with its first share."""
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

    def target(self, *, global_batch: int, grad_accum: int, survivors: int) -> int:  # noqa: ARG002 - it follows the world
        """Return ``survivors * grad_accum``."""
        return survivors * grad_accum

    def respond(self, plan: Plan, failed: Sequence[int]) -> Response:
        """Leave the survivors as they are."""
        return Response(roles={m: role for m, role in plan.roles.items() if m not in set(failed)})

"""What every policy offers: the seam that other packages program against."""

from collections.abc import Sequence
from typing import Protocol

from workload_policy.decision import Decision, SurvivorRecord
from workload_policy.layout import Layout
from workload_policy.ledger import LedgerEntry
from workload_policy.plan import Plan
from workload_policy.promise import Promise

__all__ = ["Policy"]


class Policy(Protocol):
    """Who computes which microbatches.

    Every method is pure, so survivors that call it with the same values agree without a message.
    """

    @property
    def name(self) -> str:
        """Its name, by which plans say whose they are."""
        ...

    @property
    def promise(self) -> Promise:
        """What holds of the microbatches of every step, whatever dies."""
        ...

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the steady-state split for that many survivors.

        Args:
            replicas: Replicas the run started with, ``W_init``.
            grad_accum: Microbatches of each in a step at the start, ``G_init``.
            survivors: Replicas alive now; more than `replicas` in a run that has grown.

        Raises:
            LayoutError: A number is not positive.
        """
        ...

    def start(self, *, replicas: int, grad_accum: int) -> Plan:
        """Return the plan of step 0 with replicas 0 to `replicas` - 1 alive.

        Raises:
            LayoutError: A number is not positive.
        """
        ...

    def on_failure(self, plan: Plan, table: Sequence[SurvivorRecord]) -> Decision:
        """Decide how the survivors finish this step.

        Any number of replicas may have died, in any role. A second failure in the same step, also
        while extra microbatches run, is the same call on the plan of the first decision; what that
        one had assigned is still to be computed, whatever this one says. A survivor is taken to
        finish what it was assigned, however far it has come.

        Args:
            plan: The plan of the step in progress.
            table: One row per living replica, in any order.

        Raises:
            NoSurvivorsError: The table is empty.
            TableError: The table does not fit the plan.
            PlanError: The plan is of another policy, or the answer breaks the policy's promise.
        """
        ...

    def advance(self, plan: Plan) -> tuple[LedgerEntry, Plan]:
        """Count the ids of the plan, once and for good, and return the plan of the next step.

        Roles and layout stay as they are unless the step has crossed a policy boundary.

        Raises:
            PlanError: Its total is not its target, its ids are not those promised, or it is of
                another policy.
        """
        ...

    def relayout(self, plan: Plan, members: Sequence[int]) -> Plan:
        """Return the plan of the same step laid out for another membership, smaller or larger.

        Only between steps: what members have computed of the plan so far does not carry over.

        Args:
            plan: What `start` or `advance` returned.
            members: Ids of the replicas alive now, in any order; unknown ones join the run.

        Raises:
            NoSurvivorsError: There are no members.
            PlanError: A member is named twice or negative, the step has crossed a policy boundary
                already, or the plan is of another policy.
        """
        ...

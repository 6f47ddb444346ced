"""From the agreed table of survivors to the decision about the rest of the step.

After a failure every survivor holds the same table, one row per living replica. A decision is a
pure function of the plan and that table, so all survivors decide alike without another message.
"""

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from workload_policy.errors import NoSurvivorsError, TableError
from workload_policy.plan import Plan
from workload_policy.roles import Role
from workload_policy.stacks import Stack

__all__ = ["Decision", "Restore", "SurvivorRecord", "agreed_table", "failed_replicas"]


class Restore(enum.Enum):
    """What to do with buckets that were reduced under the old membership (ReCoVer, section 4.2)."""

    SKIP = "skip"
    """Nothing: nobody has died."""
    BLOCKING = "blocking"
    """Restore and reduce them again at once: the step's total stays what it is."""
    NON_BLOCKING = "non_blocking"
    """Restore them beside the extra microbatches, whose own reduction comes later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SurvivorRecord:
    """One row of the agreed table: one living replica.

    Attributes:
        replica: Id of the replica.
        role: Its role in the plan, before this failure is dealt with.
        contributed: Microbatches it has finished in this step, at most as many as it was assigned.
        microbatch: Its position in the step, for diagnosis; no decision depends on it.
    """

    replica: int
    role: Role
    contributed: int
    microbatch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What a failure changes about the step in progress.

    Attributes:
        plan: The plan from here on, for the same step.
        failed: Replicas that have died since the last plan, sorted.
        promoted: Dead replica -> the spare of its kind that took its place.
        admitted: Further spares whose work counts from here on. They fill part of the gap of a
            policy boundary without taking any one replica's place.
        boundary: Whether this failure crosses a policy boundary: extra microbatches are needed.
        restore: How to treat what was reduced already.
        extra_ids: Ids each member computes on top; they are at the end of ``plan.assigned``. Only
            members that have any.
        extra: Most extra microbatches of any member, ``G_ext``; 0 without a boundary.
        boundary_minors: Contributing members that compute fewer extra microbatches than that.
        queued: Ids of the dead that nobody computes in this step any more; a later step will.
        recounted: Ids of redundant stacks that count from here on, by the member that holds them.
            They were computed for the case that the member whose copy counted dies.
    """

    plan: Plan
    failed: tuple[int, ...]
    promoted: Mapping[int, int]
    admitted: tuple[int, ...]
    boundary: bool
    restore: Restore
    extra_ids: Mapping[int, tuple[int, ...]]
    extra: int
    boundary_minors: int
    queued: tuple[int, ...]
    recounted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def recounted_stacks(self, member: int) -> tuple[Stack, ...]:
        """Return the stacks of a member that have not counted there and do from here on."""
        ids = set(self.recounted.get(member, ()))
        if self.plan.stacks is None or not ids:
            return ()
        return tuple(stack for stack in self.plan.stacks[member] if ids.issuperset(stack.ids))


def agreed_table(plan: Plan, failed: Collection[int]) -> list[SurvivorRecord]:
    """Return the table of the survivors of `failed` when all have finished what they were given.

    In a run the table comes from the survivors themselves; this one is for simulations and tests.
    """
    dead = frozenset(failed)
    return [
        SurvivorRecord(
            replica=member,
            role=plan.roles[member],
            contributed=len(plan.assigned[member]),
            microbatch=len(plan.assigned[member]),
        )
        for member in plan.members
        if member not in dead
    ]


def failed_replicas(plan: Plan, table: Sequence[SurvivorRecord]) -> tuple[int, ...]:
    """Return the members of the plan that the table no longer lists, sorted.

    Raises:
        NoSurvivorsError: The table is empty.
        TableError: It lists a replica twice or one that is no member, or it contradicts the plan.
    """
    if not table:
        raise NoSurvivorsError(step=plan.step, failed=plan.members)
    rows = Counter(record.replica for record in table)
    for record in table:
        replica = record.replica
        if replica not in plan.roles:
            raise TableError(
                f"the table of step {plan.step} lists replica {replica},"
                " which the plan does not have among the living"
            )
        if rows[replica] > 1:
            raise TableError(
                f"the table of step {plan.step} lists replica {replica} {rows[replica]} times"
            )
        if record.role != plan.roles[replica]:
            raise TableError(
                f"the table of step {plan.step} has replica {replica} as {record.role.label},"
                f" the plan has it as {plan.roles[replica].label}"
            )
        if not 0 <= record.contributed <= len(plan.assigned[replica]):
            raise TableError(
                f"the table of step {plan.step} has {record.contributed} microbatches of replica"
                f" {replica}, the plan gave it {len(plan.assigned[replica])}"
            )
    return tuple(m for m in plan.members if m not in rows)

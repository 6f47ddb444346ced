"""What every policy offers, and the part of it that does not depend on the policy.

`Policy` is the seam other packages program against. `StepPolicy` implements it for policies that hand out the stream in
order: they only say how a world is laid out and how a failure is absorbed.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from workload_policy.decision import Decision, Restore, SurvivorRecord, failed_replicas
from workload_policy.errors import NoSurvivorsError, PlanError
from workload_policy.layout import Layout
from workload_policy.ledger import LedgerEntry
from workload_policy.plan import Plan
from workload_policy.roles import Role
from workload_policy.stream import remove_ids, take_ids

__all__ = ["Policy", "Response", "StepPolicy"]


class Policy(Protocol):
    """Who computes which microbatches. Every method is pure, so survivors that call it alike agree."""

    @property
    def name(self) -> str:
        """The name `policy_named` knows it by."""
        ...

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the steady-state split for that many survivors.

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
        """Decide how the survivors finish this step. Any number of replicas may have died, in any role.

        A second failure in the same step, also while extra microbatches run, is the same call on the plan of the first
        decision.

        Args:
            plan: The plan of the step in progress.
            table: One row per living replica, in any order.

        Raises:
            NoSurvivorsError: The table is empty.
            TableError: The table does not fit the plan.
            PlanError: The plan is of another policy.
        """
        ...

    def commit(self, plan: Plan) -> tuple[LedgerEntry, Plan]:
        """Count the ids of the plan, once and for good, and return the plan of the next step.

        Raises:
            PlanError: Its total is not its target, or the plan is of another policy.
        """
        ...

    def advance(self, plan: Plan, members: Sequence[int]) -> Plan:
        """Return the plan of the same step for another membership, smaller or larger. Only between steps.

        Args:
            plan: What `start` or `commit` returned.
            members: Ids of the replicas that are alive now, in any order; ids the run has not seen before join it.

        Raises:
            NoSurvivorsError: There are no members.
            PlanError: A member is named twice or negative, a failure of this step is still being dealt with, or the
                plan is of another policy.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """How a policy absorbs a failure.

    Attributes:
        roles: Role of each survivor from here on.
        extra: How many extra microbatches each contributing survivor computes, 0 included.
        promoted: Dead replica -> the spare of its kind that took its place.
        admitted: Further spares that count from here on.
    """

    roles: Mapping[int, Role]
    extra: Mapping[int, int] = field(default_factory=dict)
    promoted: Mapping[int, int] = field(default_factory=dict)
    admitted: tuple[int, ...] = ()


class StepPolicy(abc.ABC):
    """A policy that hands out the stream in order; see `Policy` for what its methods promise."""

    name: ClassVar[str]

    @abc.abstractmethod
    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the steady-state split for that many survivors."""

    @abc.abstractmethod
    def respond(self, plan: Plan, failed: Sequence[int]) -> Response:
        """Say how the survivors of a plan absorb the death of `failed`, which is not empty."""

    def target(self, *, global_batch: int, grad_accum: int, survivors: int) -> int:  # noqa: ARG002 - for overriding
        """Return what the contributions of a step must sum to; the global batch unless overridden."""
        return global_batch

    def start(self, *, replicas: int, grad_accum: int) -> Plan:
        """Return the plan of step 0 with replicas 0 to `replicas` - 1 alive."""
        layout = self.layout(replicas=replicas, grad_accum=grad_accum, survivors=replicas)
        roles = dict(enumerate(layout.roles))
        return self._deal(
            step=0, grad_accum=grad_accum, layout=layout, roles=roles, cursor=0, queue=()
        )

    def on_failure(self, plan: Plan, table: Sequence[SurvivorRecord]) -> Decision:
        """Decide how the survivors finish this step."""
        self._check_own(plan)
        failed = failed_replicas(plan, table)
        if not failed:
            return _decision(
                plan,
                plan,
                failed=(),
                restore=Restore.SKIP,
                response=Response(roles=plan.roles),
                extra={},
            )
        response = self.respond(plan, failed)
        survivors = tuple(m for m in plan.members if m in response.roles)
        extra = _extra_ids(plan, survivors, response.extra)
        grad_extra = max(response.extra.values(), default=0)
        after = replace(
            plan,
            members=survivors,
            roles=response.roles,
            assigned={m: plan.assigned[m] + extra.get(m, ()) for m in survivors},
            target=self.target(
                global_batch=plan.global_batch, grad_accum=plan.grad_accum, survivors=len(survivors)
            ),
            extra=plan.extra + grad_extra,
            boundary=plan.boundary or grad_extra > 0,
            boundary_minors=_boundary_minors(response.extra)
            if grad_extra
            else plan.boundary_minors,
        )
        restore = Restore.NON_BLOCKING if grad_extra else Restore.BLOCKING
        return _decision(
            plan, after, failed=failed, restore=restore, response=response, extra=extra
        )

    def commit(self, plan: Plan) -> tuple[LedgerEntry, Plan]:
        """Count the ids of the plan and return the plan of the next step."""
        self._check_own(plan)
        if plan.total != plan.target:
            raise PlanError(
                f"step {plan.step} must commit {plan.target} microbatches, its plan has {plan.total}"
            )
        ids = plan.committed_ids
        entry = LedgerEntry(
            step=plan.step,
            ids=ids,
            contributions=plan.contributions,
            total=plan.total,
            boundary=plan.boundary,
            extra=plan.extra,
            boundary_minors=plan.boundary_minors,
        )
        queue, cursor = remove_ids(
            itertools.chain.from_iterable(ids.values()), queue=plan.queue, cursor=plan.cursor
        )
        layout, roles = plan.layout, plan.roles
        if plan.boundary:
            layout, roles = self._lay_out(plan, plan.members)
        return entry, self._deal(
            step=plan.step + 1,
            grad_accum=plan.grad_accum,
            layout=layout,
            roles=roles,
            cursor=cursor,
            queue=queue,
        )

    def advance(self, plan: Plan, members: Sequence[int]) -> Plan:
        """Return the plan of the same step for another membership."""
        self._check_own(plan)
        if plan.boundary:
            raise PlanError(
                f"step {plan.step} has crossed a policy boundary: commit it before changing its members"
            )
        if not members:
            raise NoSurvivorsError(step=plan.step, failed=plan.members)
        ordered = sorted(members)
        if ordered[0] < 0 or len(set(ordered)) != len(ordered):
            raise PlanError(f"members must be distinct replica ids from 0 on, got {ordered}")
        layout, roles = self._lay_out(plan, ordered)
        return self._deal(
            step=plan.step,
            grad_accum=plan.grad_accum,
            layout=layout,
            roles=roles,
            cursor=plan.cursor,
            queue=plan.queue,
        )

    def _lay_out(self, plan: Plan, members: Sequence[int]) -> tuple[Layout, dict[int, Role]]:
        layout = self.layout(
            replicas=plan.replicas, grad_accum=plan.grad_accum, survivors=len(members)
        )
        return layout, dict(zip(members, layout.roles, strict=True))

    def _deal(
        self,
        *,
        step: int,
        grad_accum: int,
        layout: Layout,
        roles: Mapping[int, Role],
        cursor: int,
        queue: tuple[int, ...],
    ) -> Plan:
        """Hand out the first pending ids: to the contributors in order of id, then to the spares in order of id."""
        members = tuple(roles)
        quotas = {
            m: layout.quota(roles[m]) for m in sorted(members, key=lambda m: (roles[m].is_spare, m))
        }
        ids = take_ids(sum(quotas.values()), queue=queue, cursor=cursor)
        blocks = _split(ids, quotas)
        return Plan(
            policy=self.name,
            step=step,
            replicas=layout.replicas,
            grad_accum=grad_accum,
            layout=layout,
            members=members,
            roles=roles,
            assigned={m: blocks[m] for m in members},
            cursor=cursor,
            queue=queue,
            target=self.target(
                global_batch=layout.global_batch, grad_accum=grad_accum, survivors=len(members)
            ),
        )

    def _check_own(self, plan: Plan) -> None:
        if plan.policy != self.name:
            raise PlanError(
                f"a plan of the policy {plan.policy!r} cannot go on under {self.name!r}"
            )


def _split(ids: tuple[int, ...], counts: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Cut ids into consecutive blocks of the given sizes."""
    ends = itertools.accumulate(counts.values())
    return {m: ids[end - counts[m] : end] for m, end in zip(counts, ends, strict=True)}


def _extra_ids(
    plan: Plan, survivors: Iterable[int], counts: Mapping[int, int]
) -> dict[int, tuple[int, ...]]:
    """Pick the extra ids: the first pending ones that no survivor holds, spares included.

    An unpromoted spare's ids are left alone too, or its later promotion would count them a second time.
    """
    needed = sum(counts.values())
    if not needed:
        return {}
    held = {i for m in survivors for i in plan.assigned[m]}
    ids = take_ids(needed, queue=plan.queue, cursor=plan.cursor, held=held)
    return {m: block for m, block in _split(ids, counts).items() if block}


def _boundary_minors(extra: Mapping[int, int]) -> int:
    most = max(extra.values(), default=0)
    return sum(count < most for count in extra.values())


def _decision(
    before: Plan,
    after: Plan,
    *,
    failed: tuple[int, ...],
    restore: Restore,
    response: Response,
    extra: Mapping[int, tuple[int, ...]],
) -> Decision:
    redone = set(itertools.chain.from_iterable(extra.values()))
    given_back = sorted(
        i for replica in failed for i in before.assigned[replica] if i not in redone
    )
    return Decision(
        plan=after,
        failed=failed,
        promoted=response.promoted,
        admitted=response.admitted,
        boundary=restore is Restore.NON_BLOCKING,
        restore=restore,
        extra=extra,
        grad_extra=max(response.extra.values(), default=0),
        boundary_minors=_boundary_minors(response.extra),
        queued=tuple(given_back),
    )

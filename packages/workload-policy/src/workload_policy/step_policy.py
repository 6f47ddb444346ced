"""The part of a policy that is the same for all that hand out the stream in order.

A subclass says how a world is laid out and how its survivors absorb a failure. Dealing ids,
keeping what is uncounted, and moving from step to step happen here.
"""

import abc
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from workload_policy.decision import Decision, Restore, SurvivorRecord, failed_replicas
from workload_policy.errors import NoSurvivorsError, PlanError
from workload_policy.layout import Layout
from workload_policy.ledger import LedgerEntry
from workload_policy.plan import Plan
from workload_policy.roles import Role
from workload_policy.stream import remove_ids, take_ids

__all__ = ["Response", "StepPolicy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """How the survivors absorb a failure.

    Attributes:
        roles: Role of each survivor from here on, in order of id.
        extra: How many extra microbatches each contributing survivor computes, zeros included.
        promoted: Dead replica -> the spare of its kind that took its place.
        admitted: Further spares that count from here on, sorted.
    """

    roles: Mapping[int, Role]
    extra: Mapping[int, int] = field(default_factory=dict)
    promoted: Mapping[int, int] = field(default_factory=dict)
    admitted: tuple[int, ...] = ()

    @property
    def grad_extra(self) -> int:
        """Most extra microbatches of any survivor, ``G_ext``."""
        return max(self.extra.values(), default=0)

    @property
    def boundary_minors(self) -> int:
        """Contributing survivors that compute fewer extra microbatches than that."""
        most = self.grad_extra
        return sum(count < most for count in self.extra.values())


class StepPolicy(abc.ABC):
    """A policy that hands out the stream in order; `Policy` says what its methods promise."""

    name: ClassVar[str]
    keeps_batch: ClassVar[bool] = True
    """Whether a step counts the global batch whatever dies."""

    @abc.abstractmethod
    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the steady-state split for that many survivors."""

    @abc.abstractmethod
    def respond(self, plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> Response:
        """Say how the survivors absorb a failure.

        Args:
            plan: The plan until now.
            failed: Members that have died, sorted; at least one.
            roles: Roles of the survivors until now, in order of id; may be changed and returned.
        """

    def start(self, *, replicas: int, grad_accum: int) -> Plan:
        """Return the plan of step 0 with replicas 0 to `replicas` - 1 alive."""
        layout = self.layout(replicas=replicas, grad_accum=grad_accum, survivors=replicas)
        return self._deal(
            step=0,
            grad_accum=grad_accum,
            layout=layout,
            roles=dict(enumerate(layout.roles)),
            cursor=0,
            queue=(),
        )

    def on_failure(self, plan: Plan, table: Sequence[SurvivorRecord]) -> Decision:
        """Decide how the survivors finish this step."""
        self._check_own(plan)
        failed = failed_replicas(plan, table)
        dead = set(failed)
        living_roles = {m: role for m, role in plan.roles.items() if m not in dead}
        response = (
            self.respond(plan, failed, living_roles) if failed else Response(roles=living_roles)
        )
        boundary = response.grad_extra > 0
        extra = _extra_ids(plan, response) if boundary else {}
        redone = set(itertools.chain.from_iterable(extra.values()))
        held_by_dead = itertools.chain.from_iterable(plan.assigned[m] for m in failed)
        if_failed = Restore.NON_BLOCKING if boundary else Restore.BLOCKING
        survivors = tuple(response.roles)
        after = replace(
            plan,
            members=survivors,
            roles=response.roles,
            assigned={m: plan.assigned[m] + extra.get(m, ()) for m in survivors},
            target=self._target(plan.layout, plan.grad_accum, survivors),
            extra=plan.extra + response.grad_extra,
            boundary=plan.boundary or boundary,
            boundary_minors=response.boundary_minors if boundary else plan.boundary_minors,
        )
        return Decision(
            plan=after,
            failed=failed,
            promoted=response.promoted,
            admitted=response.admitted,
            boundary=boundary,
            restore=if_failed if failed else Restore.SKIP,
            extra=extra,
            grad_extra=response.grad_extra,
            boundary_minors=response.boundary_minors,
            queued=tuple(sorted(i for i in held_by_dead if i not in redone)),
        )

    def commit(self, plan: Plan) -> tuple[LedgerEntry, Plan]:
        """Count the ids of the plan and return the plan of the next step."""
        self._check_own(plan)
        entry = LedgerEntry.of(plan)
        counted = itertools.chain.from_iterable(entry.ids.values())
        queue, cursor = remove_ids(counted, queue=plan.queue, cursor=plan.cursor)
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
        """Return the plan of the same step laid out for another membership."""
        self._check_own(plan)
        if plan.boundary:
            raise PlanError(
                f"step {plan.step} has crossed a policy boundary:"
                " commit it before its members change"
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
        """Hand out the first uncounted ids: contributors first, then spares, each by id."""
        members = tuple(roles)
        spares_last = sorted(members, key=lambda m: roles[m].is_spare)
        quotas = {m: layout.quota(roles[m]) for m in spares_last}
        blocks = _split(take_ids(sum(quotas.values()), queue=queue, cursor=cursor), quotas)
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
            target=self._target(layout, grad_accum, members),
        )

    def _target(self, layout: Layout, grad_accum: int, members: Sequence[int]) -> int:
        return layout.global_batch if self.keeps_batch else len(members) * grad_accum

    def _check_own(self, plan: Plan) -> None:
        if plan.policy != self.name:
            raise PlanError(f"a plan of policy {plan.policy!r} cannot go on under {self.name!r}")


def _extra_ids(plan: Plan, response: Response) -> dict[int, tuple[int, ...]]:
    """Pick the extra ids: the first uncounted ones that no survivor holds, waiting spares included.

    What is missing was held by the dead, so these are mostly their ids, computed again.
    """
    held = set(itertools.chain.from_iterable(plan.assigned[m] for m in response.roles))
    needed = sum(response.extra.values())
    ids = take_ids(needed, queue=plan.queue, cursor=plan.cursor, held=held)
    return {m: block for m, block in _split(ids, response.extra).items() if block}


def _split(ids: tuple[int, ...], counts: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Cut ids into consecutive blocks of the given sizes."""
    ends: Iterable[int] = itertools.accumulate(counts.values())
    return {m: ids[end - counts[m] : end] for m, end in zip(counts, ends, strict=True)}

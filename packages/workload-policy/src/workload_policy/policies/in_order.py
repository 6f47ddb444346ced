"""The part of a policy that is the same for all that hand out the stream in order.

A subclass says how a world is laid out, how much each member computes, and how survivors absorb a
failure: counts and roles only. Dealing ids, keeping what is uncounted, and moving from step to step
happen here, and so does holding each of those answers against what the policy promises.
"""

import abc
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from workload_policy.checks import (
    check_exact,
    check_layout,
    check_members,
    check_own_plan,
    check_quotas,
    check_response,
)
from workload_policy.decision import Decision, Restore, SurvivorRecord, failed_replicas
from workload_policy.layout import Layout, check_shape
from workload_policy.ledger import LedgerEntry
from workload_policy.plan import Plan
from workload_policy.promise import Promise
from workload_policy.response import Response
from workload_policy.roles import Role
from workload_policy.stream import remove_ids, take_ids

__all__ = ["InOrder"]


class InOrder(abc.ABC):
    """A policy that hands out the stream in order; `Policy` says what its methods do.

    Derive from this to write a policy: `layout` and `respond` are needed, `quotas` may be replaced.
    All three have to be pure functions of their arguments, because every survivor calls them for
    itself and all have to get the same.

    Two policies of one class are equal if their attributes are.

    Attributes:
        name: Name of the policy. Plans carry it, so no two policies may share one.
        promise: What holds of every step. It is checked, and what breaks it is a `PlanError`.
    """

    name: str
    promise: Promise = Promise.BATCH

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

    def quotas(self, layout: Layout, roles: Mapping[int, Role]) -> Mapping[int, int]:
        """Return how many microbatches each member computes in a step; those of the layout here.

        Args:
            layout: The split in force.
            roles: Role of each member, in order of id. After promotions these may be fewer than
                the survivors that the layout is for.

        Returns:
            Member -> microbatches. Those of the members that are no spares sum to the global batch,
            unless the policy promises nothing.
        """
        return {m: layout.quota(role) for m, role in roles.items()}

    @property
    def described(self) -> str:
        """The policy as messages name it: by its name, and the file that it is written in."""
        file = getattr(sys.modules.get(type(self).__module__), "__file__", None)
        return f"policy {self.name!r}" + (f" ({file})" if file else "")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), self.name))

    def start(self, *, replicas: int, grad_accum: int) -> Plan:
        """Return the plan of step 0 with replicas 0 to `replicas` - 1 alive."""
        layout, roles = self._lay_out(replicas, grad_accum, range(replicas))
        return self._deal(
            step=0,
            grad_accum=grad_accum,
            layout=layout,
            roles=roles,
            cursor=0,
            queue=(),
        )

    def on_failure(self, plan: Plan, table: Sequence[SurvivorRecord]) -> Decision:
        """Decide how the survivors finish this step."""
        check_own_plan(plan, self.name)
        failed = failed_replicas(plan, table)
        dead = set(failed)
        living_roles = {m: role for m, role in plan.roles.items() if m not in dead}
        survivors = tuple(living_roles)
        response = self._response(plan, failed, living_roles)
        boundary = response.extra > 0
        extra_ids = _extra_ids(plan, response) if boundary else {}
        redone = set(itertools.chain.from_iterable(extra_ids.values()))
        held_by_dead = itertools.chain.from_iterable(plan.assigned[m] for m in failed)
        if_failed = Restore.NON_BLOCKING if boundary else Restore.BLOCKING
        after = replace(
            plan,
            members=survivors,
            roles={m: response.roles[m] for m in survivors},
            assigned={m: plan.assigned[m] + extra_ids.get(m, ()) for m in survivors},
            extra=plan.extra + response.extra,
            boundary=plan.boundary or boundary,
            boundary_minors=response.boundary_minors if boundary else plan.boundary_minors,
        )
        if self.promise is Promise.NONE:
            after = replace(after, target=after.total)
        elif self.promise is Promise.EXACT:
            check_exact(after, who=self.described)
        return Decision(
            plan=after,
            failed=failed,
            promoted=response.promoted,
            admitted=response.admitted,
            boundary=boundary,
            restore=if_failed if failed else Restore.SKIP,
            extra_ids=extra_ids,
            extra=response.extra,
            boundary_minors=response.boundary_minors,
            queued=tuple(sorted(i for i in held_by_dead if i not in redone)),
        )

    def advance(self, plan: Plan) -> tuple[LedgerEntry, Plan]:
        """Count the ids of the plan and return the plan of the next step."""
        check_own_plan(plan, self.name)
        entry = LedgerEntry.of(plan)
        if self.promise is Promise.EXACT:
            check_exact(plan, who=self.described)
        counted = itertools.chain.from_iterable(entry.ids.values())
        queue, cursor = remove_ids(counted, queue=plan.queue, cursor=plan.cursor)
        layout, roles = plan.layout, plan.roles
        if plan.boundary:
            layout, roles = self._lay_out(plan.replicas, plan.grad_accum, plan.members)
        return entry, self._deal(
            step=plan.step + 1,
            grad_accum=plan.grad_accum,
            layout=layout,
            roles=roles,
            cursor=cursor,
            queue=queue,
        )

    def relayout(self, plan: Plan, members: Sequence[int]) -> Plan:
        """Return the plan of the same step laid out for another membership."""
        check_own_plan(plan, self.name)
        ordered = check_members(plan, members)
        layout, roles = self._lay_out(plan.replicas, plan.grad_accum, ordered)
        return self._deal(
            step=plan.step,
            grad_accum=plan.grad_accum,
            layout=layout,
            roles=roles,
            cursor=plan.cursor,
            queue=plan.queue,
        )

    def _lay_out(
        self, replicas: int, grad_accum: int, members: Sequence[int]
    ) -> tuple[Layout, dict[int, Role]]:
        shape = {"replicas": replicas, "grad_accum": grad_accum, "survivors": len(members)}
        check_shape(**shape)
        layout = self.layout(**shape)
        check_layout(layout, who=self.described, **shape)
        return layout, dict(zip(members, layout.roles, strict=True))

    def _response(self, plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> Response:
        """Ask for the response to a failure, if there was one, and check it."""
        if not failed:
            return Response(roles=roles)
        response = self.respond(plan, failed, dict(roles))
        check_response(
            response,
            who=self.described,
            plan=plan,
            survivors=tuple(roles),
            target=None if self.promise is Promise.NONE else plan.target,
        )
        return response

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
        fixed = None if self.promise is Promise.NONE else layout.global_batch
        chosen = self.quotas(layout, roles)
        check_quotas(chosen, who=self.described, step=step, roles=roles, target=fixed)
        spares_last = sorted(members, key=lambda m: roles[m].is_spare)
        quotas = {m: chosen[m] for m in spares_last}
        blocks = _split(take_ids(sum(quotas.values()), queue=queue, cursor=cursor), quotas)
        counted = sum(quotas[m] for m in members if not roles[m].is_spare)
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
            target=counted,
        )


def _extra_ids(plan: Plan, response: Response) -> dict[int, tuple[int, ...]]:
    """Pick the extra ids: the first uncounted ones that no survivor holds, waiting spares included.

    What is missing was held by the dead, so these are mostly their ids, computed again.
    """
    held = set(itertools.chain.from_iterable(plan.assigned[m] for m in response.roles))
    counts = dict(sorted(response.extra_counts.items()))
    ids = take_ids(sum(counts.values()), queue=plan.queue, cursor=plan.cursor, held=held)
    return {m: block for m, block in _split(ids, counts).items() if block}


def _split(ids: tuple[int, ...], counts: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Cut ids into consecutive blocks of the given sizes."""
    ends: Iterable[int] = itertools.accumulate(counts.values())
    return {m: ids[end - counts[m] : end] for m, end in zip(counts, ends, strict=True)}

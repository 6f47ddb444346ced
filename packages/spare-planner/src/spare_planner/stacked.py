"""The policy that trains on redundant stacks: SPARe, step by step.

N = W_init replicas host r of N shard types each. In step t type d owns the microbatch ids
``[tB + d G, tB + (d+1) G)``, one stack. A replica computes the first S types of its order, and of
the copies of a type one counts. When replicas die, each type whose counted copy is gone counts
from another computed copy if a survivor has one: nothing is computed again for it. Only the other
types are, each once, by a survivor that hosts it. From the next step on the survivors compute what
`spare_planner.Stacks` has reordered.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from spare_planner.errors import PlacementError, WipeOutError
from spare_planner.reorder import Stacks
from spare_planner.stacked_state import StackedState, placed
from workload_policy import (
    Decision,
    Layout,
    LayoutError,
    LedgerEntry,
    Plan,
    PlanError,
    Promise,
    Restore,
    Role,
    Stack,
    SurvivorRecord,
    check_exact,
    check_members,
    check_own_plan,
    check_shape,
    failed_replicas,
)
from workload_policy.stacks import ids_of

__all__ = ["Stacked"]

Orders = Mapping[int, tuple[int, ...]]


class Stacked:
    """Count exactly ``[tB, (t+1)B)`` in step t, and mask failures by redundant stacks.

    The methods do what `workload_policy.Policy` promises. There are no spares: every member is a
    major that computes as many stacks as the others, and `Plan.stacks` says which of them count.
    A run that was started with N replicas has N groups for good: dead ones may come back between
    steps, others cannot join.

    >>> from workload_policy import agreed_table
    >>> policy = Stacked(redundancy=3)
    >>> plan = policy.start(replicas=7, grad_accum=2)
    >>> plan.assigned[2]
    (4, 5)
    >>> decision = policy.on_failure(plan, agreed_table(plan, failed={3}))
    >>> decision.extra_ids
    {2: (6, 7)}
    >>> entry, plan = policy.advance(decision.plan)
    >>> [(stack.shard_type, stack.counted) for stack in plan.stacks[2]]
    [(2, False), (3, True)]

    Args:
        redundancy: r, from 1 to the number of replicas; `optimal_redundancy` of that if None.
        seed: Seed of the placement, which matters only where no ruler fits and it is random.
    """

    name = "stacked"
    promise = Promise.EXACT

    def __init__(self, *, redundancy: int | None = None, seed: int = 0) -> None:
        self.redundancy = redundancy
        self.seed = seed

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the even split of what counts, in whole stacks.

        A major counts as many stacks as each member computes, ``ceil(N / survivors)``; a minor
        computes as many and counts one less. The plan may count less evenly than that: which copy
        of a type counts depends on who computes it.

        Raises:
            LayoutError: A number is not positive, or there are more survivors than replicas.
        """
        batch = check_shape(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
        if survivors > replicas:
            raise LayoutError(
                f"survivors must be at most {replicas}, the replicas at the start, got {survivors}:"
                " a stacked run cannot grow"
            )
        share, larger = divmod(replicas, survivors)
        return Layout(
            replicas=replicas,
            survivors=survivors,
            global_batch=batch,
            grad_accum=(share + 1 if larger else share) * grad_accum,
            majors=larger or survivors,
            minors=survivors - larger if larger else 0,
            minor_quota=share * grad_accum if larger else 0,
            major_spares=0,
            minor_spares=0,
        )

    def start(self, *, replicas: int, grad_accum: int) -> Plan:
        """Return the plan of step 0 with replicas 0 to `replicas` - 1 alive.

        Raises:
            LayoutError: A number is not positive, or the redundancy does not fit them.
        """
        layout = self.layout(replicas=replicas, grad_accum=grad_accum, survivors=replicas)
        redundancy = self.redundancy
        if redundancy is None:
            from spare_planner.theory import optimal_redundancy  # scipy takes a while to import

            redundancy = int(optimal_redundancy(replicas))
        try:
            placement = placed(replicas, redundancy, self.seed)
        except PlacementError as error:
            raise LayoutError(f"a stacked run of {replicas} replicas: {error}") from error
        return _plan(
            step=0,
            grad_accum=grad_accum,
            layout=layout,
            state=StackedState(
                redundancy=redundancy,
                seed=self.seed,
                depth=1,
                order={group: placement.hosted(group) for group in range(replicas)},
            ),
        )

    def on_failure(self, plan: Plan, table: Sequence[SurvivorRecord]) -> Decision:
        """Decide how the survivors finish this step.

        Raises:
            NoSurvivorsError: The table is empty.
            WipeOutError: Some type has no host left.
            TableError: The table does not fit the plan.
            PlanError: The plan is of another policy or redundancy, or it is damaged.
        """
        state = self._own(plan)
        failed = failed_replicas(plan, table)
        if not failed:
            return _decision(plan, restore=Restore.SKIP)
        stacks = state.stacks(plan)
        change = stacks.fail(failed)
        if change.wiped_out:
            raise WipeOutError(lost=change.lost, step=plan.step)
        survivors = stacks.living
        before = _computed(plan)
        recounted, extra = _make_up(plan, stacks, survivors)
        after = {
            m: (
                *(
                    replace(stack, counted=stack.counted or stack.shard_type in recounted[m])
                    for stack in before[m]
                ),
                *(_stack(plan, t, counted=True) for t in extra[m]),
            )
            for m in survivors
        }
        most = max(map(len, extra.values()))
        fewer = sum(len(types) < most for types in extra.values())
        changed = replace(state, depth=change.stacks, order=change.order)
        return _decision(
            replace(
                plan,
                members=survivors,
                roles={m: plan.roles[m] for m in survivors},
                assigned={m: ids_of(stacks) for m, stacks in after.items()},
                extra=plan.extra + most * plan.grad_accum,
                boundary=plan.boundary or most > 0,
                boundary_minors=fewer if most else plan.boundary_minors,
                stacks=after,
                state=changed.to_dict(),
            ),
            failed=failed,
            restore=Restore.NON_BLOCKING if most else Restore.BLOCKING,
            extra_ids={m: _ids(plan, types) for m, types in extra.items() if types},
            extra=most * plan.grad_accum,
            boundary_minors=fewer if most else 0,
            recounted={m: _ids(plan, sorted(types)) for m, types in recounted.items() if types},
        )

    def advance(self, plan: Plan) -> tuple[LedgerEntry, Plan]:
        """Count the ids of the plan and return the plan of the next step.

        Raises:
            PlanError: Its total is not its target, its ids are not those of the step, or it is of
                another policy or redundancy.
        """
        state = self._own(plan)
        entry = LedgerEntry.of(plan)
        check_exact(plan, who=f"policy {self.name!r}")
        return entry, self._next(plan, state, step=plan.step + 1)

    def relayout(self, plan: Plan, members: Sequence[int]) -> Plan:
        """Return the plan of the same step for another membership of the N replicas.

        Raises:
            NoSurvivorsError: There are no members.
            PlanError: A member is named twice or is none of the N, the members do not host every
                type between them, the step has needed extra stacks already, or the plan is of
                another policy or redundancy.
        """
        state = self._own(plan)
        chosen = set(check_members(plan, members, most=plan.replicas))
        stacks = state.stacks(plan)
        stacks.rejoin(chosen.difference(plan.members))
        change = stacks.fail(set(plan.members) - chosen)
        if change.wiped_out:
            raise PlanError(
                f"replicas {sorted(chosen)} host {plan.replicas - len(change.lost)} of"
                f" {plan.replicas} shard types: go on with more replicas, best with all"
                f" {plan.replicas}"
            )
        changed = replace(state, depth=change.stacks, order=change.order)
        return self._next(plan, changed, step=plan.step)

    def _own(self, plan: Plan) -> StackedState:
        """Return the state of a plan of this policy."""
        check_own_plan(plan, self.name)
        state = StackedState.of(plan)
        if self.redundancy not in {None, state.redundancy}:
            raise PlanError(
                f"the plan has redundancy {state.redundancy}, not {self.redundancy}: go on with"
                f" {state.redundancy}, or start a new run"
            )
        return state

    def _next(self, plan: Plan, state: StackedState, *, step: int) -> Plan:
        layout = self.layout(
            replicas=plan.replicas, grad_accum=plan.grad_accum, survivors=len(state.order)
        )
        return _plan(step=step, grad_accum=plan.grad_accum, layout=layout, state=state)


def _plan(*, step: int, grad_accum: int, layout: Layout, state: StackedState) -> Plan:
    """Deal the stacks of a step."""
    members = tuple(state.order)
    cursor = step * layout.global_batch
    computed = {m: state.order[m][: state.depth] for m in members}
    suppliers = _suppliers(computed)
    stacks = {
        m: tuple(
            Stack(
                shard_type=t,
                ids=_block(cursor, t, grad_accum),
                counted=suppliers[t] == m,
            )
            for t in types
        )
        for m, types in computed.items()
    }
    return Plan(
        policy=Stacked.name,
        step=step,
        replicas=layout.replicas,
        grad_accum=grad_accum,
        layout=layout,
        members=members,
        roles=dict.fromkeys(members, Role.MAJOR),
        assigned={m: ids_of(mine) for m, mine in stacks.items()},
        cursor=cursor,
        queue=(),
        target=layout.global_batch,
        stacks=stacks,
        state=state.to_dict(),
    )


def _suppliers(computed: Orders) -> dict[int, int]:
    """Choose which copy of each type counts, about as many on each member.

    Types with the fewest copies choose first, each the member with the least so far.
    """
    copies: dict[int, list[int]] = {}
    for member, types in computed.items():
        for t in types:
            copies.setdefault(t, []).append(member)
    counts: Counter[int] = Counter()
    suppliers: dict[int, int] = {}
    for t in sorted(copies, key=lambda t: (len(copies[t]), t)):
        suppliers[t] = min(copies[t], key=lambda m: (counts[m], m))
        counts[suppliers[t]] += 1
    return suppliers


def _make_up(
    plan: Plan, stacks: Stacks, survivors: Collection[int]
) -> tuple[dict[int, set[int]], dict[int, list[int]]]:
    """Find who makes up for each type that counted on a dead member.

    Returns:
        Member -> types whose computed copy counts from here on, and member -> types it computes
        now. A type is computed by the host with the least to do; if that is not the only one, by
        the one that computes it from the next step on.
    """
    computed = _computed(plan)
    counts = Counter({m: len(plan.primary(m)) for m in survivors})
    copies: dict[int, list[int]] = {}
    for m in survivors:
        for stack in computed[m]:
            copies.setdefault(stack.shard_type, []).append(m)
    gone = {
        stack.shard_type
        for m in plan.members
        if m not in counts
        for stack in computed[m]
        if stack.counted
    }
    recounted: dict[int, set[int]] = {m: set() for m in survivors}
    extra: dict[int, list[int]] = {m: [] for m in survivors}
    suppliers = stacks.suppliers
    hosts: dict[int, list[int]] = {t: [] for t in gone if t not in copies}
    for m in survivors:
        for t in set(stacks.order(m)).intersection(hosts):
            hosts[t].append(m)
    for t in sorted(gone.intersection(copies)):
        member = min(copies[t], key=lambda m: (counts[m], m))
        counts[member] += plan.grad_accum
        recounted[member].add(t)
    for t in sorted(hosts, key=lambda t: (len(hosts[t]), t)):
        member = min(
            hosts[t],
            key=lambda m: (len(computed[m]) + len(extra[m]), m != suppliers[t], m),
        )
        extra[member].append(t)
    return recounted, extra


def _decision(
    plan: Plan,
    *,
    restore: Restore,
    failed: tuple[int, ...] = (),
    extra_ids: Orders | None = None,
    extra: int = 0,
    boundary_minors: int = 0,
    recounted: Orders | None = None,
) -> Decision:
    return Decision(
        plan=plan,
        failed=failed,
        promoted={},
        admitted=(),
        boundary=extra > 0,
        restore=restore,
        extra_ids=extra_ids or {},
        extra=extra,
        boundary_minors=boundary_minors,
        queued=(),
        recounted=recounted or {},
    )


def _computed(plan: Plan) -> Mapping[int, tuple[Stack, ...]]:
    """Return what each member computes in this step; a plan of this policy has it."""
    assert plan.stacks is not None
    return plan.stacks


def _stack(plan: Plan, shard_type: int, *, counted: bool) -> Stack:
    ids = _block(plan.step * plan.global_batch, shard_type, plan.grad_accum)
    return Stack(shard_type=shard_type, ids=ids, counted=counted)


def _block(first: int, shard_type: int, grad_accum: int) -> tuple[int, ...]:
    return tuple(range(first + shard_type * grad_accum, first + (shard_type + 1) * grad_accum))


def _ids(plan: Plan, types: Iterable[int]) -> tuple[int, ...]:
    """Return the ids of types in this step, type by type."""
    return tuple(itertools.chain.from_iterable(_stack(plan, t, counted=True).ids for t in types))

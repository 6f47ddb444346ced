"""The policy that trains on redundant stacks."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spare_planner import Stacked, WipeOutError
from workload_policy import (
    Decision,
    LayoutError,
    Ledger,
    NoSurvivorsError,
    Plan,
    PlanError,
    Policy,
    PolicyNameError,
    Restore,
    Role,
    Stacking,
    StaticWorld,
    agreed_table,
    policy_named,
)
from workload_policy.simulate import simulate


def flat(ids: Sequence[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(ids))


def check_plan(plan: Plan) -> None:
    """What holds of every plan, fresh or after failures."""
    plan.check()
    assert plan.stacking is not None
    batch = plan.global_batch
    first = plan.step * batch
    assert plan.total == plan.target == batch
    assert sorted(flat(list(plan.committed_ids.values()))) == list(range(first, first + batch))
    owned = {
        t: tuple(range(first + t * plan.grad_accum, first + (t + 1) * plan.grad_accum))
        for t in range(plan.replicas)
    }
    for m in plan.members:
        stacks = plan.stacking.stacks[m]
        assert plan.assigned[m] == tuple(flat([stack.ids for stack in stacks]))
        assert all(stack.ids == owned[stack.shard_type] for stack in stacks)
        assert len({stack.shard_type for stack in stacks}) == len(stacks)
        assert {stack.shard_type for stack in stacks} <= set(plan.stacking.order[m])


def check_decision(before: Plan, decision: Decision, dead: set[int]) -> None:
    """What was computed stays and counts if anybody has it; only the rest is computed again."""
    after = decision.plan
    assert before.stacking is not None
    assert after.stacking is not None
    assert set(decision.failed) == dead
    computed = {s.shard_type for m in after.members for s in before.stacking.stacks[m]}
    missing = set(range(before.replicas)) - computed
    assert decision.boundary == bool(missing) == bool(decision.extra)
    assert decision.restore is (Restore.NON_BLOCKING if missing else Restore.BLOCKING)
    assert len(flat(list(decision.extra.values()))) == len(missing) * before.grad_accum
    for m in after.members:
        then, now = before.stacking.stacks[m], after.stacking.stacks[m]
        kept, added = now[: len(then)], now[len(then) :]
        assert [(s.shard_type, s.ids) for s in kept] == [(s.shard_type, s.ids) for s in then]
        assert all(s.counted or not t.counted for s, t in zip(kept, then, strict=True))
        newly = [s.ids for s, t in zip(kept, then, strict=True) if s.counted and not t.counted]
        assert sorted(flat(newly)) == sorted(decision.recounted.get(m, ()))
        assert flat([s.ids for s in added]) == list(decision.extra.get(m, ()))
        assert all(s.counted for s in added)


def run(
    policy: Policy,
    replicas: int,
    grad_accum: int,
    deaths: Sequence[Sequence[Sequence[int]]],
    returns: Sequence[int] = (),
) -> int:
    """Follow steps with rounds of deaths; return how many steps were committed.

    After step t the first ``returns[t]`` of the dead come back.
    """
    plan, ledger = policy.start(replicas=replicas, grad_accum=grad_accum), Ledger()
    for rounds, back in itertools.zip_longest(deaths, returns[: len(deaths)], fillvalue=0):
        assert not isinstance(rounds, int)
        check_plan(plan)
        for picks in rounds:
            dead = {plan.members[pick % len(plan.members)] for pick in picks}
            table = agreed_table(plan, dead)
            if not table:
                with pytest.raises(NoSurvivorsError):
                    policy.on_failure(plan, table)
                return ledger.steps
            assert plan.stacking is not None
            hosted = set(flat([plan.stacking.order[row.replica] for row in table]))
            if len(hosted) < replicas:
                with pytest.raises(WipeOutError) as caught:
                    policy.on_failure(plan, table)
                assert set(caught.value.lost) == set(range(replicas)) - hosted
                assert caught.value.step == plan.step
                return ledger.steps
            decision = policy.on_failure(plan, table)
            random.Random(0).shuffle(table)
            travelled = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
            assert travelled == plan
            assert policy.on_failure(travelled, table) == decision
            check_decision(plan, decision, dead)
            check_plan(decision.plan)
            plan = decision.plan
        entry, plan = policy.commit(plan)
        ledger.record(entry)
        ledger.check(plan)
        if back:
            dead = set(range(replicas)).difference(plan.members)
            plan = policy.advance(plan, [*plan.members, *sorted(dead)[:back]])
            ledger.check(plan)
    return ledger.steps


picks = st.lists(st.integers(0, 10**6), min_size=1, max_size=3)
schedules = st.lists(st.lists(picks, max_size=3), min_size=1, max_size=8)


@pytest.mark.property
@settings(deadline=None, max_examples=400)
@given(
    replicas=st.integers(1, 30),
    redundancy=st.integers(1, 6),
    grad_accum=st.integers(1, 4),
    seed=st.integers(0, 9),
    deaths=schedules,
    returns=st.lists(st.integers(0, 4), max_size=8),
)
def test_random_kills_until_the_wipe_out(
    replicas: int,
    redundancy: int,
    grad_accum: int,
    seed: int,
    deaths: list[list[list[int]]],
    returns: list[int],
) -> None:
    policy = Stacked(redundancy=min(redundancy, replicas), seed=seed)
    run(policy, replicas, grad_accum, deaths, returns)


@pytest.mark.parametrize("seed", range(12))
def test_one_death_a_step_down_to_the_wipe_out(seed: int) -> None:
    rng = random.Random(seed)
    deaths = [[[rng.randrange(10**6)]] for _ in range(40)]
    steps = run(Stacked(redundancy=5), 40, 3, deaths)
    assert 5 <= steps < 40


def test_six_replicas() -> None:
    """The smallest real run: any two of six may die."""
    policy = Stacked(redundancy=3)
    for dead in itertools.permutations(range(6), 2):
        assert run(policy, 6, 2, [[[dead[0]]], [], [[dead[1] - (dead[1] > dead[0])]], []]) == 4


def test_a_redundant_copy_costs_nothing() -> None:
    policy = Stacked(redundancy=3)
    plan = policy.start(replicas=7, grad_accum=2)
    decision = policy.on_failure(plan, agreed_table(plan, {3}))
    assert decision.boundary
    assert decision.grad_extra == 2
    assert decision.plan.extra == 2
    assert decision.boundary_minors == 5
    assert set(decision.plan.roles.values()) == {Role.MAJOR}
    plan = policy.commit(decision.plan)[1]
    assert plan.stacking is not None
    assert {len(stacks) for stacks in plan.stacking.stacks.values()} == {2}
    assert len(flat(list(plan.assigned.values()))) == 6 * 2 * 2
    # Replica 5 computes types 5 and 6, and both have another copy.
    counted = Counter(s.shard_type for s in plan.stacking.stacks[5] if s.counted)
    assert counted
    decision = policy.on_failure(plan, agreed_table(plan, {5}))
    assert not decision.boundary
    assert decision.restore is Restore.BLOCKING
    assert decision.extra == {}
    assert len(flat(list(decision.recounted.values()))) == 2 * len(counted)


def test_what_counts_is_spread() -> None:
    policy = Stacked(redundancy=5)
    plan = policy.start(replicas=40, grad_accum=1)
    plan = policy.commit(policy.on_failure(plan, agreed_table(plan, {1, 11, 21})).plan)[1]
    assert max(plan.contributions.values()) <= 2
    assert min(plan.contributions.values()) >= 1


def test_nobody_has_died() -> None:
    policy = Stacked(redundancy=2)
    plan = policy.start(replicas=4, grad_accum=2)
    decision = policy.on_failure(plan, agreed_table(plan, ()))
    assert decision.plan == plan
    assert decision.restore is Restore.SKIP


def test_layout() -> None:
    policy = Stacked(redundancy=3)
    layout = policy.layout(replicas=6, grad_accum=4, survivors=5)
    assert (layout.grad_accum, layout.majors, layout.minors, layout.minor_quota) == (8, 1, 4, 4)
    assert layout.total == layout.global_batch == 24
    assert policy.layout(replicas=6, grad_accum=4, survivors=3).contributions == (8, 8, 8)
    for survivors in range(1, 7):
        layout = policy.layout(replicas=6, grad_accum=4, survivors=survivors)
        assert sum(layout.contributions) == 24


def test_members_come_back_between_steps() -> None:
    policy = Stacked(redundancy=3)
    fresh = policy.start(replicas=7, grad_accum=2)
    plan = policy.commit(policy.on_failure(fresh, agreed_table(fresh, {3, 5})).plan)[1]
    back = policy.advance(plan, [0, 1, 2, 4, 6, 3])
    check_plan(back)
    assert back.members == (0, 1, 2, 3, 4, 6)
    everybody = policy.advance(plan, range(7))
    check_plan(everybody)
    assert everybody.stacking is not None
    assert fresh.stacking is not None
    assert everybody.stacking.order == fresh.stacking.order
    assert everybody.stacking.depth == 1
    # A restart that numbers its fewer replicas from 0.
    fewer = policy.advance(plan, [0, 1, 2, 3, 4])
    check_plan(fewer)
    assert policy.advance(fewer, fewer.members) == fewer
    with pytest.raises(PlanError, match=r"replicas \[0\] host 3 of 7 shard types: go on with more"):
        policy.advance(plan, [0])


@pytest.mark.parametrize("members", [[0, 1, 1], [-1, 0], [0, 7]])
def test_members_that_cannot_be(members: list[int]) -> None:
    policy = Stacked(redundancy=3)
    plan = policy.start(replicas=7, grad_accum=2)
    with pytest.raises(PlanError, match="distinct replica ids from 0 to 6"):
        policy.advance(plan, members)


def test_advance_needs_somebody_and_a_step_that_has_not_grown() -> None:
    policy = Stacked(redundancy=3)
    plan = policy.start(replicas=7, grad_accum=2)
    with pytest.raises(NoSurvivorsError):
        policy.advance(plan, [])
    grown = policy.on_failure(plan, agreed_table(plan, {3})).plan
    with pytest.raises(PlanError, match="has crossed a policy boundary"):
        policy.advance(grown, range(7))


def test_plans_of_others() -> None:
    plan = StaticWorld().start(replicas=7, grad_accum=2)
    with pytest.raises(PlanError, match="policy 'static' cannot go on under 'stacked'"):
        Stacked(redundancy=3).commit(plan)
    plan = Stacked(redundancy=3).start(replicas=7, grad_accum=2)
    with pytest.raises(PlanError, match="the plan has redundancy 3, not 2: go on with 3"):
        Stacked(redundancy=2).commit(plan)
    assert Stacked().commit(plan) == Stacked(redundancy=3).commit(plan)


def test_a_damaged_plan() -> None:
    policy = Stacked(redundancy=3)
    plan = policy.start(replicas=7, grad_accum=2)
    assert plan.stacking is not None
    order = {**plan.stacking.order, 0: (4, 5, 6)}
    damaged = replace(plan, stacking=replace(plan.stacking, order=order))
    with pytest.raises(PlanError, match="the stacks of step 0 are damaged: group 0 does not host"):
        policy.on_failure(damaged, agreed_table(damaged, {1}))
    with pytest.raises(PlanError, match="must commit 14 microbatches"):
        policy.commit(replace(plan, target=14, stacking=_uncounted(plan)))


def _uncounted(plan: Plan) -> Stacking:
    assert plan.stacking is not None
    (first, *rest) = plan.stacking.stacks[0]
    return replace(
        plan.stacking, stacks={**plan.stacking.stacks, 0: (replace(first, counted=False), *rest)}
    )


@pytest.mark.parametrize(
    ("redundancy", "replicas", "grad_accum", "message"),
    [
        (7, 6, 1, "a stacked run of 6 replicas: redundancy must be from 1 to 6"),
        (0, 6, 1, "redundancy must be from 1 to 6"),
        (2, 0, 1, "replicas must be at least 1, got 0"),
        (2, 6, 0, "grad_accum must be at least 1, got 0"),
    ],
)
def test_shapes_that_cannot_be(
    redundancy: int, replicas: int, grad_accum: int, message: str
) -> None:
    with pytest.raises(LayoutError, match=message):
        Stacked(redundancy=redundancy).start(replicas=replicas, grad_accum=grad_accum)
    with pytest.raises(LayoutError, match="survivors must be at most 6"):
        Stacked(redundancy=2).layout(replicas=6, grad_accum=1, survivors=7)


def test_it_is_found_by_name() -> None:
    policy = policy_named("stacked", redundancy=3)
    assert isinstance(policy, Stacked)
    assert (policy.name, policy.redundancy) == ("stacked", 3)
    assert policy_named("stacked").start(replicas=6, grad_accum=1).stacking is not None
    with pytest.raises(PolicyNameError, match="policy 'stacked' does not take these options"):
        policy_named("stacked", depth=3)


def test_simulation_of_a_schedule() -> None:
    steps = list(
        simulate(
            Stacked(redundancy=3), replicas=6, grad_accum=4, steps=4, failures={1: [2], 2: [5]}
        )
    )
    assert [step.entry.total for step in steps] == [24] * 4
    assert [step.survivors for step in steps] == [6, 5, 4, 4]
    assert [step.longest for step in steps][::3] == [4, 8]
    assert steps[1].longest == 8


def test_a_thousand_replicas() -> None:
    policy = Stacked()
    plan = policy.start(replicas=1000, grad_accum=1)
    for victims in ({1, 2}, {500}, {999, 3}):
        decision = policy.on_failure(plan, agreed_table(plan, victims))
        check_decision(plan, decision, victims)
        plan = policy.commit(decision.plan)[1]
        check_plan(plan)
    assert plan.stacking is not None
    assert plan.stacking.redundancy == 10

"""The policy that trains on redundant stacks."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
    PolicyError,
    Promise,
    Restore,
    Role,
    Stack,
    StaticWorld,
    agreed_table,
    load_policy,
)
from workload_policy.simulation import simulate


def flat(ids: Sequence[Sequence[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(ids))


def order_of(plan: Plan) -> dict[int, list[int]]:
    return {int(m): types for m, types in plan.state["order"].items()}


def check_plan(plan: Plan) -> None:
    """What holds of every plan, fresh or after failures."""
    plan.check()
    assert plan.stacks is not None
    batch = plan.global_batch
    first = plan.step * batch
    assert plan.total == plan.target == batch
    assert sorted(flat(list(plan.committed_ids.values()))) == list(range(first, first + batch))
    owned = {
        t: tuple(range(first + t * plan.grad_accum, first + (t + 1) * plan.grad_accum))
        for t in range(plan.replicas)
    }
    for m in plan.members:
        stacks = plan.stacks[m]
        assert plan.assigned[m] == tuple(flat([stack.ids for stack in stacks]))
        assert all(stack.ids == owned[stack.shard_type] for stack in stacks)
        assert len({stack.shard_type for stack in stacks}) == len(stacks)
        assert {stack.shard_type for stack in stacks} <= set(order_of(plan)[m])


def check_decision(before: Plan, decision: Decision, dead: set[int]) -> None:
    """What was computed stays and counts if anybody has it; only the rest is computed again."""
    after = decision.plan
    assert before.stacks is not None
    assert after.stacks is not None
    assert set(decision.failed) == dead
    computed = {s.shard_type for m in after.members for s in before.stacks[m]}
    missing = set(range(before.replicas)) - computed
    assert decision.boundary == bool(missing) == bool(decision.extra_ids)
    assert decision.restore is (Restore.NON_BLOCKING if missing else Restore.BLOCKING)
    assert len(flat(list(decision.extra_ids.values()))) == len(missing) * before.grad_accum
    for m in after.members:
        then, now = before.stacks[m], after.stacks[m]
        kept, added = now[: len(then)], now[len(then) :]
        assert [(s.shard_type, s.ids) for s in kept] == [(s.shard_type, s.ids) for s in then]
        assert all(s.counted or not t.counted for s, t in zip(kept, then, strict=True))
        newly = [s.ids for s, t in zip(kept, then, strict=True) if s.counted and not t.counted]
        assert sorted(flat(newly)) == sorted(decision.recounted.get(m, ()))
        assert flat([s.ids for s in added]) == list(decision.extra_ids.get(m, ()))
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
            assert plan.stacks is not None
            hosted = set(flat([order_of(plan)[row.replica] for row in table]))
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
        entry, plan = policy.advance(plan)
        ledger.record(entry)
        ledger.check(plan)
        if back:
            dead = set(range(replicas)).difference(plan.members)
            plan = policy.relayout(plan, [*plan.members, *sorted(dead)[:back]])
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
    assert decision.extra == 2
    assert decision.plan.extra == 2
    assert decision.boundary_minors == 5
    assert set(decision.plan.roles.values()) == {Role.MAJOR}
    plan = policy.advance(decision.plan)[1]
    assert plan.stacks is not None
    assert {len(stacks) for stacks in plan.stacks.values()} == {2}
    assert len(flat(list(plan.assigned.values()))) == 6 * 2 * 2
    # Replica 5 computes types 5 and 6, and both have another copy.
    counted = Counter(s.shard_type for s in plan.stacks[5] if s.counted)
    assert counted
    decision = policy.on_failure(plan, agreed_table(plan, {5}))
    assert not decision.boundary
    assert decision.restore is Restore.BLOCKING
    assert decision.extra_ids == {}
    assert len(flat(list(decision.recounted.values()))) == 2 * len(counted)


def test_what_counts_is_spread() -> None:
    policy = Stacked(redundancy=5)
    plan = policy.start(replicas=40, grad_accum=1)
    plan = policy.advance(policy.on_failure(plan, agreed_table(plan, {1, 11, 21})).plan)[1]
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
    plan = policy.advance(policy.on_failure(fresh, agreed_table(fresh, {3, 5})).plan)[1]
    back = policy.relayout(plan, [0, 1, 2, 4, 6, 3])
    check_plan(back)
    assert back.members == (0, 1, 2, 3, 4, 6)
    everybody = policy.relayout(plan, range(7))
    check_plan(everybody)
    assert everybody.stacks is not None
    assert fresh.stacks is not None
    assert order_of(everybody) == order_of(fresh)
    assert everybody.state["depth"] == everybody.depth == 1
    # A restart that numbers its fewer replicas from 0.
    fewer = policy.relayout(plan, [0, 1, 2, 3, 4])
    check_plan(fewer)
    assert policy.relayout(fewer, fewer.members) == fewer
    with pytest.raises(PlanError, match=r"replicas \[0\] host 3 of 7 shard types: go on with more"):
        policy.relayout(plan, [0])


@pytest.mark.parametrize("members", [[0, 1, 1], [-1, 0], [0, 7]])
def test_members_that_cannot_be(members: list[int]) -> None:
    policy = Stacked(redundancy=3)
    plan = policy.start(replicas=7, grad_accum=2)
    with pytest.raises(PlanError, match="distinct replica ids from 0 to 6"):
        policy.relayout(plan, members)


def test_advance_needs_somebody_and_a_step_that_has_not_grown() -> None:
    policy = Stacked(redundancy=3)
    plan = policy.start(replicas=7, grad_accum=2)
    with pytest.raises(NoSurvivorsError):
        policy.relayout(plan, [])
    grown = policy.on_failure(plan, agreed_table(plan, {3})).plan
    with pytest.raises(PlanError, match="has crossed a policy boundary"):
        policy.relayout(grown, range(7))


def test_plans_of_others() -> None:
    plan = StaticWorld().start(replicas=7, grad_accum=2)
    with pytest.raises(PlanError, match="policy 'static' cannot go on under 'stacked'"):
        Stacked(redundancy=3).advance(plan)
    plan = Stacked(redundancy=3).start(replicas=7, grad_accum=2)
    with pytest.raises(PlanError, match="the plan has redundancy 3, not 2: go on with 3"):
        Stacked(redundancy=2).advance(plan)
    assert Stacked().advance(plan) == Stacked(redundancy=3).advance(plan)


def test_a_damaged_plan() -> None:
    policy = Stacked(redundancy=3)
    plan = policy.start(replicas=7, grad_accum=2)
    assert plan.stacks is not None
    damaged = replace(plan, state={**plan.state, "order": {**plan.state["order"], "0": [4, 5, 6]}})
    with pytest.raises(PlanError, match="the stacks of step 0 are damaged: group 0 does not host"):
        policy.on_failure(damaged, agreed_table(damaged, {1}))
    with pytest.raises(PlanError, match="must commit 14 microbatches"):
        policy.advance(replace(plan, target=14, stacks=_uncounted(plan)))


def _uncounted(plan: Plan) -> dict[int, tuple[Stack, ...]]:
    assert plan.stacks is not None
    (first, *rest) = plan.stacks[0]
    return {**plan.stacks, 0: (replace(first, counted=False), *rest)}


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"order": {"0": [0, 1, 3]}}, "its stacks are not those of its members"),
        ({"order": [0, 1, 3]}, "indices must be integers"),
        ({"order": None}, "'NoneType' object is not iterable"),
        ({"order": {"x": []}}, "invalid literal"),
        ({"depth": 4}, "it is 4 stacks deep, of 3"),
        ({"depth": 0}, "it is 0 stacks deep, of 3"),
        ({"depth": "two"}, "invalid literal"),
        ({"redundancy": 2, "depth": 1}, "a member of it does not host 2 types"),
    ],
)
def test_a_damaged_state(damage: dict[str, Any], complaint: str) -> None:
    """It is this policy's own, so a plan comes back from a checkpoint with it as it is."""
    plan = Stacked(redundancy=3).start(replicas=7, grad_accum=2)
    data = plan.to_dict()
    data["state"] = {**data["state"], **damage}
    damaged = Plan.from_dict(json.loads(json.dumps(data)))
    for act in (
        lambda: Stacked().on_failure(damaged, agreed_table(damaged, {1})),
        lambda: Stacked().advance(damaged),
        lambda: Stacked().relayout(damaged, range(6)),
    ):
        with pytest.raises(PlanError, match=f"the stacks of step 0 are damaged: .*{complaint}"):
            act()


def test_what_is_missing_in_a_state_is_named() -> None:
    plan = Stacked(redundancy=3).start(replicas=7, grad_accum=2)
    assert set(plan.state) == {"redundancy", "seed", "depth", "order"}
    for key in plan.state:
        state = {name: value for name, value in plan.state.items() if name != key}
        with pytest.raises(PlanError, match=f"are damaged: '{key}' is missing"):
            Stacked().advance(replace(plan, state=state))
    with pytest.raises(PlanError, match="its stacks are not those of its members"):
        Stacked().advance(replace(plan, stacks=None))


def test_its_promise_is_checked() -> None:
    policy = Stacked(redundancy=3)
    assert policy.promise is Promise.EXACT
    plan = policy.start(replicas=3, grad_accum=1)
    assert plan.stacks is not None
    foreign = (Stack(shard_type=0, ids=(7,), counted=True),)
    wrong = replace(plan, stacks={**plan.stacks, 0: foreign}, assigned={**plan.assigned, 0: (7,)})
    with pytest.raises(PlanError, match=r"'stacked' promises exact steps, and step 0 .* \(7\)"):
        policy.advance(wrong)


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
    policy = load_policy("stacked", redundancy=3)
    assert isinstance(policy, Stacked)
    assert (policy.name, policy.redundancy) == ("stacked", 3)
    assert load_policy("stacked").start(replicas=6, grad_accum=1).stacks is not None
    with pytest.raises(PolicyError, match="policy 'stacked' does not take these options"):
        load_policy("stacked", depth=3)


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
        plan = policy.advance(decision.plan)[1]
        check_plan(plan)
    assert plan.stacks is not None
    assert plan.state["redundancy"] == 10

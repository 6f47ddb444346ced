"""Random shapes, random failures: what must hold in every run of every policy.

The checks use sets of all ids and the paper's loops, nothing of the package's own arithmetic.
"""

import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workload_policy import Decision, Plan, Policy, Restore, Role, agreed_table, load_policy

pytestmark = pytest.mark.property
each_policy = pytest.mark.parametrize("name", ["static", "exact", "adaptive"])
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Step:
    """What happens to one step: joins before it, then rounds of deaths (picks among the living)."""

    joins: int
    deaths: tuple[tuple[int, ...], ...]


anyone = st.integers(0, 10**6)
last_ones = st.integers(-4, -1)  # where the minor and the spares are
picks = st.lists(anyone | last_ones, min_size=1, max_size=4).map(tuple)
massacre = st.integers(0, 10**6).map(
    lambda seed: tuple(random.Random(seed).sample(range(500), 400))
)
rounds = st.lists(st.one_of(picks, picks, picks, massacre), max_size=3).map(tuple)
schedules = st.lists(
    st.builds(Step, joins=st.sampled_from([0, 0, 0, 1, 2, 40]), deaths=rounds),
    min_size=1,
    max_size=5,
)


def victims(plan: Plan, chosen: Sequence[int]) -> set[int]:
    """Turn picks into members, of whom the first always survives if they would be all."""
    dead = {plan.members[pick % len(plan.members)] for pick in chosen}
    return dead - {plan.members[0]} if len(dead) == len(plan.members) else dead


def flat(ids: Sequence[tuple[int, ...]]) -> list[int]:
    return list(itertools.chain.from_iterable(ids))


def check_fresh(plan: Plan) -> None:
    """Contributors hold the first uncounted ids in order, spares the next."""
    spares_last = sorted(plan.members, key=lambda m: (plan.roles[m].is_spare, m))
    assigned = flat([plan.assigned[m] for m in spares_last])
    uncounted = itertools.chain(plan.queue, itertools.count(plan.cursor))
    assert assigned == list(itertools.islice(uncounted, len(assigned)))
    assert plan.total == plan.target


def check_decision(before: Plan, decision: Decision, dead: set[int]) -> None:
    after = decision.plan
    assert set(decision.failed) == dead == set(before.members) - set(after.members)
    held = flat([after.assigned[m] for m in after.members])
    assert len(held) == len(set(held)), "two living replicas hold the same id"
    for m in after.members:
        assert after.assigned[m] == before.assigned[m] + decision.extra_ids.get(m, ())
    assert decision.boundary == bool(decision.extra_ids)
    assert after.boundary == (before.boundary or decision.boundary)
    if dead:
        assert decision.restore is (Restore.NON_BLOCKING if decision.boundary else Restore.BLOCKING)
    lost = flat([before.assigned[m] for m in dead])
    assert sorted(
        [*decision.queued, *(set(lost) & set(flat(list(decision.extra_ids.values()))))]
    ) == (sorted(lost))


def check_static_decision(before: Plan, decision: Decision) -> None:
    """Algorithm 6 by counting up, and spares in kind before anything else."""
    after = decision.plan
    dead = Counter(before.roles[m] for m in decision.failed)
    left = Counter(before.roles[m] for m in after.members)
    in_kind = Counter(before.roles[dead_one] for dead_one in decision.promoted)
    for role, spare in ((Role.MAJOR, Role.MAJOR_SPARE), (Role.MINOR, Role.MINOR_SPARE)):
        assert in_kind[role] == min(dead[role], left[spare])
    for dead_one, spare_one in decision.promoted.items():
        assert before.roles[spare_one].promoted == before.roles[dead_one] == after.roles[spare_one]
    eligible = [m for m in after.members if not after.roles[m].is_spare]
    current = sum(len(before.assigned[m]) for m in eligible)
    batch = before.replicas * before.grad_accum
    assert current <= batch
    for m in after.members:
        if after.roles[m].is_spare:
            assert current + len(before.assigned[m]) > batch, "a spare that fits was left out"
    if current == batch:
        assert not decision.boundary
        assert decision.admitted == () or before.boundary
        return
    grad_extra = 1
    while current + len(eligible) * grad_extra < batch:
        grad_extra += 1
    minors = current + len(eligible) * grad_extra - batch
    assert (decision.extra, decision.boundary_minors) == (grad_extra, minors)
    counts = [len(decision.extra_ids.get(m, ())) for m in eligible]
    assert counts == [grad_extra] * (len(eligible) - minors) + [grad_extra - 1] * minors


def run(policy: Policy, replicas: int, grad_accum: int, schedule: Sequence[Step]) -> None:
    batch = replicas * grad_accum
    plan = policy.start(replicas=replicas, grad_accum=grad_accum)
    committed: set[int] = set()
    newest = replicas
    for number, step in enumerate(schedule):
        if step.joins:
            joined = range(newest, newest + step.joins)
            plan = policy.relayout(plan, [*joined, *plan.members])
            newest += step.joins
        check_fresh(plan)
        for chosen in step.deaths:
            dead = victims(plan, chosen)
            decision = policy.on_failure(plan, agreed_table(plan, dead))
            check_decision(plan, decision, dead)
            if policy.name == "static":
                check_static_decision(plan, decision)
            plan = decision.plan
        entry, following = policy.advance(plan)

        ids = flat(list(entry.ids.values()))
        assert entry.step == number
        assert entry.total == sum(entry.contributions.values()) == len(ids)
        assert list(entry.contributions) == list(plan.members)
        expected = len(plan.members) * grad_accum if policy.name == "adaptive" else batch
        assert entry.total == expected
        if policy.name == "exact":
            assert sorted(ids) == list(range(number * batch, (number + 1) * batch))

        before = len(committed)
        committed.update(ids)
        assert len(committed) == before + len(ids), "an id was counted twice"
        assert committed.isdisjoint(following.queue)
        assert max(committed) < following.cursor
        assert len(committed) + len(following.queue) == following.cursor, "an id was lost"
        assert list(following.queue) == sorted(set(following.queue))
        assert following.step == number + 1
        plan = following
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@each_policy
@settings(patient, max_examples=60)
@given(replicas=st.integers(1, 300), grad_accum=st.integers(1, 200), schedule=schedules)
def test_any_shape(name: str, replicas: int, grad_accum: int, schedule: list[Step]) -> None:
    run(load_policy(name), replicas, grad_accum, schedule)


@each_policy
@settings(patient, max_examples=250)
@given(replicas=st.integers(1, 9), grad_accum=st.integers(1, 6), schedule=schedules)
def test_small_shapes(name: str, replicas: int, grad_accum: int, schedule: list[Step]) -> None:
    run(load_policy(name), replicas, grad_accum, schedule)


@each_policy
@settings(patient, max_examples=60)
@given(
    replicas=st.integers(2, 60),
    grad_accum=st.integers(1, 30),
    deaths=st.lists(picks, min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_decisions_are_functions_of_the_table(
    name: str, replicas: int, grad_accum: int, deaths: list[tuple[int, ...]], order: random.Random
) -> None:
    policy = load_policy(name)
    plan = policy.start(replicas=replicas, grad_accum=grad_accum)
    for chosen in deaths:
        table = agreed_table(plan, victims(plan, chosen))
        decision = policy.on_failure(plan, table)
        order.shuffle(table)
        assert policy.on_failure(plan, table) == decision
        assert policy.on_failure(Plan.from_dict(plan.to_dict()), table) == decision
        plan = policy.advance(decision.plan)[1]


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 8, 32])
@pytest.mark.parametrize("name", ["static", "exact"])
def test_one_death_a_step_until_one_is_left(name: str, replicas: int) -> None:
    one_each = [Step(joins=0, deaths=((index * 7,),)) for index in range(replicas - 1)]
    run(load_policy(name), replicas, 6, [*one_each, Step(joins=0, deaths=())])

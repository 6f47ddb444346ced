"""The example of a policy of one's own keeps what it promises, whatever dies."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workload_policy import Ledger, Plan, agreed_table, load_policy

EXAMPLE = Path(__file__).parents[1] / "examples" / "slower_gets_less.py"
POLICY = load_policy(str(EXAMPLE))
SPEEDS = {0: 1.0, 1: 1.0, 2: 0.75, 3: 0.5}  # the others are as fast as the fastest

steps = (
    st.lists(  # of each step: how many join before it, and picks of who dies, at once or in turn
        st.tuples(
            st.sampled_from([0, 0, 0, 1, 3]),
            st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)


def check_shares(plan: Plan) -> None:
    """No replica computes more than a faster one; a twice as fast one about twice as much."""
    speed = {m: SPEEDS.get(m, 1.0) for m in plan.members}
    computed = {m: len(plan.assigned[m]) for m in plan.members}
    for one in plan.members:
        for other in plan.members:
            if speed[one] < speed[other]:
                assert computed[one] <= computed[other]
    ends = [computed[m] / speed[m] for m in plan.members]
    assert max(ends) <= min((computed[m] + 1) / speed[m] for m in plan.members)


@pytest.mark.property
@settings(deadline=None, max_examples=200)
@given(replicas=st.integers(1, 9), grad_accum=st.integers(1, 9), schedule=steps)
def test_exact_through_failures_and_joins(
    replicas: int, grad_accum: int, schedule: list[tuple[int, list[list[int]]]]
) -> None:
    plan, ledger = POLICY.start(replicas=replicas, grad_accum=grad_accum), Ledger()
    batch, newest = replicas * grad_accum, replicas
    for number, (joins, rounds) in enumerate(schedule):
        if joins:
            plan = POLICY.relayout(plan, [*plan.members, *range(newest, newest + joins)])
            newest += joins
        check_shares(plan)
        for picks in rounds:
            dead = {plan.members[pick % len(plan.members)] for pick in picks}
            dead -= {plan.members[-1]} if len(dead) == len(plan.members) else set()
            plan = POLICY.on_failure(plan, agreed_table(plan, dead)).plan
            check_shares(plan)
        entry, plan = POLICY.advance(plan)
        ids = sorted(i for mine in entry.ids.values() for i in mine)
        assert ids == list(range(number * batch, (number + 1) * batch))
        ledger.record(entry)
        ledger.check(plan)


def test_down_to_one_that_is_not_in_the_table() -> None:
    plan = POLICY.start(replicas=6, grad_accum=4)
    assert plan.contributions == {0: 5, 1: 5, 2: 3, 3: 2, 4: 5, 5: 4}
    for dead in range(5):
        plan = POLICY.advance(POLICY.on_failure(plan, agreed_table(plan, {dead})).plan)[1]
    assert plan.contributions == {5: 24}


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60

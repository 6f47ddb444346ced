"""`ExactBatch`: the same ids in every step, whoever computes them."""

import pytest

from workload_policy import Decision, ExactBatch, Plan, Restore, Role, agreed_table

POLICY = ExactBatch()


def fail(plan: Plan, *failed: int) -> Decision:
    return POLICY.on_failure(plan, agreed_table(plan, failed))


def step_ids(plan: Plan) -> list[int]:
    return sorted(i for ids in plan.committed_ids.values() for i in ids)


def test_survivors_compute_exactly_what_is_missing() -> None:
    plan = POLICY.start(replicas=4, grad_accum=3)
    decision = fail(plan, 2)
    assert decision.restore is Restore.NON_BLOCKING
    assert decision.extra_ids == {0: (6,), 1: (7,), 3: (8,)}
    assert (decision.extra, decision.boundary_minors) == (1, 0)
    assert decision.queued == ()
    assert step_ids(decision.plan) == list(range(12))


def test_whoever_has_least_to_do_comes_first() -> None:
    plan = POLICY.relayout(POLICY.start(replicas=5, grad_accum=2), range(4))  # 3 3 2 2
    decision = fail(plan, 3)
    assert decision.extra_ids == {0: (8,), 2: (9,)}
    assert (decision.extra, decision.boundary_minors) == (1, 1)
    assert list(decision.plan.contributions.values()) == [4, 3, 3]


def test_deaths_in_the_extension() -> None:
    plan = POLICY.start(replicas=4, grad_accum=3)
    once = fail(plan, 2)
    again = fail(once.plan, 0, 3)
    assert again.plan.contributions == {1: 12}
    assert step_ids(again.plan) == list(range(12))
    assert again.plan.extra == 1 + 8
    _, after = POLICY.advance(again.plan)
    assert after.assigned == {1: tuple(range(12, 24))}


def test_the_next_step_is_balanced_again() -> None:
    plan = POLICY.start(replicas=4, grad_accum=3)
    _, after = POLICY.advance(fail(plan, 0, 1).plan)
    assert list(after.contributions.values()) == [6, 6]
    assert step_ids(after) == list(range(12, 24))


@pytest.mark.parametrize("idle", [2, 3, 4])
def test_idle_replicas_die_without_a_trace(idle: int) -> None:
    plan = POLICY.relayout(POLICY.start(replicas=2, grad_accum=1), range(5))
    assert plan.assigned[idle] == ()
    assert plan.roles[idle] is Role.MINOR
    decision = fail(plan, idle)
    assert not decision.boundary
    assert decision.restore is Restore.BLOCKING
    entry, after = POLICY.advance(decision.plan)
    assert entry.total == 2
    assert step_ids(after) == [2, 3]


def test_an_idle_replica_takes_over() -> None:
    plan = POLICY.relayout(POLICY.start(replicas=2, grad_accum=1), range(5))
    decision = fail(plan, 0)
    assert decision.extra_ids == {2: (0,)}
    assert decision.boundary

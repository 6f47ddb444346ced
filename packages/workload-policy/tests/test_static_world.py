"""`StaticWorld` case by case: the paper's walk-through, then every way several replicas can die."""

import pytest

from workload_policy import Decision, Plan, Restore, Role, StaticWorld, agreed_table

POLICY = StaticWorld()


def fail(plan: Plan, *failed: int) -> Decision:
    return POLICY.on_failure(plan, agreed_table(plan, failed))


@pytest.fixture
def first() -> Plan:
    """The first step of the paper's example: 32 majors of 8."""
    return POLICY.start(replicas=32, grad_accum=8)


@pytest.fixture
def spared(first: Plan) -> Plan:
    """The step after its boundary step: majors 0-27 of 9, minor 28 of 4, spares 29 and 30."""
    return POLICY.advance(fail(first, 31).plan)[1]


def test_a_step_without_failures_counts_its_own_ids(first: Plan) -> None:
    assert first.assigned[0] == tuple(range(8))
    entry, second = POLICY.advance(first)
    assert sorted(i for ids in entry.ids.values() for i in ids) == list(range(256))
    assert (second.step, second.cursor, second.queue) == (1, 256, ())
    assert second.assigned[31] == tuple(range(504, 512))


def test_appendix_e_boundary_step(first: Plan) -> None:
    decision = fail(first, 31)
    assert decision.boundary
    assert decision.restore is Restore.NON_BLOCKING
    assert (decision.extra, decision.boundary_minors) == (1, 23)
    assert decision.extra_ids == {m: (248 + m,) for m in range(8)}  # what replica 31 had
    assert decision.queued == ()
    plan = decision.plan
    assert list(plan.contributions.values()) == [9] * 8 + [8] * 23
    assert (plan.total, plan.target, plan.extra, plan.boundary_minors) == (256, 256, 1, 23)
    entry, after = POLICY.advance(plan)
    assert (entry.total, entry.boundary, entry.extra, entry.boundary_minors) == (256, True, 1, 23)
    assert (after.boundary, after.extra, after.boundary_minors) == (False, 0, 0)
    assert list(after.contributions.values()) == [9] * 28 + [4, 0, 0]


def test_figure_5_iv_the_minor_spare_replaces_the_minor(spared: Plan) -> None:
    decision = fail(spared, 28)
    assert not decision.boundary
    assert decision.restore is Restore.BLOCKING
    assert decision.promoted == {28: 30}
    assert decision.admitted == ()
    assert decision.extra_ids == {}
    assert decision.queued == spared.assigned[28]
    assert decision.plan.roles[30] is Role.MINOR
    assert decision.plan.assigned[30] == spared.assigned[30]  # with its own ids
    assert decision.plan.total == 256
    entry, after = POLICY.advance(decision.plan)
    assert (entry.boundary, entry.extra, entry.boundary_minors) == (False, 0, 0)
    assert after.roles == decision.plan.roles  # not laid out anew
    assert after.layout == spared.layout
    assert set(spared.assigned[28]) <= set(after.queue)
    assert after.assigned[0][:4] == spared.assigned[28]  # made up for first thing
    assert max(after.assigned[30]) < min(after.assigned[29])  # the spare that is left comes last


def test_a_major_spare_replaces_a_major(spared: Plan) -> None:
    decision = fail(spared, 3)
    assert decision.promoted == {3: 29}
    assert decision.restore is Restore.BLOCKING
    assert decision.plan.contributions[29] == 9


def test_a_major_and_the_minor_at_once(spared: Plan) -> None:
    decision = fail(spared, 28, 3)
    assert decision.failed == (3, 28)
    assert decision.promoted == {3: 29, 28: 30}
    assert not decision.boundary
    assert decision.queued == tuple(sorted(spared.assigned[3] + spared.assigned[28]))


def test_spares_dying_change_nothing_that_counts(spared: Plan) -> None:
    decision = fail(spared, 29, 30)
    assert not decision.boundary
    assert decision.restore is Restore.BLOCKING
    assert decision.promoted == {}
    assert decision.plan.committed_ids == {
        m: ids for m, ids in spared.committed_ids.items() if m < 29
    }
    _, after = POLICY.advance(decision.plan)
    assert after.layout == spared.layout
    assert not any(role.is_spare for role in after.roles.values())


def test_a_spare_dying_with_the_one_it_stands_by_for(spared: Plan) -> None:
    decision = fail(spared, 3, 29)
    assert decision.boundary
    assert decision.promoted == {}
    assert decision.admitted == (30,)  # 4 of the 9 that are missing
    assert (decision.extra, decision.boundary_minors) == (1, 29 - 5)
    assert decision.plan.total == 256


def test_a_spare_that_does_not_fit_sits_the_step_out(spared: Plan) -> None:
    decision = fail(spared, 28, 30)  # 4 missing, the major-spare has 9
    assert decision.boundary
    assert decision.admitted == ()
    assert decision.plan.roles[29] is Role.MAJOR_SPARE
    assert decision.plan.assigned[29] == spared.assigned[29]
    assert (decision.extra, decision.boundary_minors) == (1, 24)
    assert decision.plan.total == 256


def test_extra_work_never_takes_what_a_waiting_spare_holds(spared: Plan) -> None:
    once = fail(spared, 28, 30)
    again = fail(once.plan, 5)
    assert again.promoted == {5: 29}
    held = [i for ids in again.plan.assigned.values() for i in ids]
    assert len(held) == len(set(held))
    assert again.plan.total == 256


def test_two_majors_with_one_spare(spared: Plan) -> None:
    decision = fail(spared, 0, 1)
    assert decision.promoted == {0: 29}
    assert decision.admitted == (30,)
    assert decision.boundary
    assert (decision.extra, decision.boundary_minors) == (1, 29 - 5)
    assert decision.queued == (spared.assigned[0] + spared.assigned[1])[5:]
    assert decision.plan.total == 256


def test_a_death_in_the_extension_loses_its_extra_work_too(first: Plan) -> None:
    once = fail(first, 31)
    again = fail(once.plan, 0)  # it had 9 by then
    assert again.boundary
    assert (again.extra, again.boundary_minors) == (1, 30 - 9)
    assert sorted(i for ids in again.extra_ids.values() for i in ids) == [*range(8), 248]
    assert again.plan.assigned[1] == (*range(8, 16), 249, 0)
    assert (again.plan.extra, again.plan.boundary_minors) == (2, 21)
    assert again.plan.total == 256


def test_a_spare_promoted_in_the_extension_does_not_cover_extra_work(spared: Plan) -> None:
    once = fail(spared, 28, 30)
    assert len(once.plan.assigned[0]) == 10
    again = fail(once.plan, 0)
    assert again.promoted == {0: 29}
    assert again.boundary
    assert sum(map(len, again.extra_ids.values())) == 1
    assert again.plan.total == 256


def test_a_step_that_crossed_a_boundary_stays_one(spared: Plan) -> None:
    once = fail(spared, 28, 30)
    without_extra_work = max(once.plan.members[:28])
    again = fail(once.plan, without_extra_work)
    assert again.promoted == {without_extra_work: 29}
    assert not again.boundary
    assert again.restore is Restore.BLOCKING
    assert again.plan.boundary
    assert (again.plan.extra, again.plan.boundary_minors) == (1, 24)
    assert POLICY.advance(again.plan)[1].layout.survivors == 28


def test_down_to_one_survivor(spared: Plan) -> None:
    decision = fail(spared, *range(30))  # the minor-spare is left
    assert decision.promoted == {28: 30}
    assert decision.extra == 252
    assert decision.plan.contributions == {30: 256}
    entry, after = POLICY.advance(decision.plan)
    assert entry.total == 256
    assert after.assigned.keys() == {30}
    assert len(after.assigned[30]) == 256


def test_more_replicas_than_microbatches_after_growth() -> None:
    plan = POLICY.relayout(POLICY.start(replicas=2, grad_accum=1), range(5))
    assert list(plan.contributions.values()) == [1, 1, 0, 0, 0]
    decision = fail(plan, 0, 1, 3)
    assert decision.promoted == {0: 2, 1: 4}
    assert decision.plan.total == 2


def test_growth_after_shrinkage_takes_the_queue_first(spared: Plan) -> None:
    _, plan = POLICY.advance(fail(spared, 28).plan)
    grown = POLICY.relayout(plan, (*plan.members, 40, 41))
    assert grown.layout.survivors == 32
    assert set(grown.contributions.values()) == {8}
    assert sorted(i for ids in grown.assigned.values() for i in ids)[: len(plan.queue)] == list(
        plan.queue
    )
    entry, after = POLICY.advance(grown)
    assert entry.total == 256
    assert after.queue == ()

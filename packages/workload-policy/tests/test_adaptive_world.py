"""`AdaptiveWorld`: the batch follows the replicas, the data is still not lost."""

from workload_policy import AdaptiveWorld, Restore, agreed_table

POLICY = AdaptiveWorld()


def test_the_batch_shrinks_and_stays_small() -> None:
    plan = POLICY.start(replicas=4, grad_accum=3)
    decision = POLICY.on_failure(plan, agreed_table(plan, {1, 2}))
    assert not decision.boundary
    assert decision.restore is Restore.BLOCKING
    assert decision.extra_ids == {}
    assert decision.queued == (3, 4, 5, 6, 7, 8)
    assert (decision.plan.total, decision.plan.target, decision.plan.global_batch) == (6, 6, 12)
    entry, after = POLICY.advance(decision.plan)
    assert (entry.total, entry.boundary) == (6, False)
    assert after.total == 6
    assert after.assigned == {0: (3, 4, 5), 3: (6, 7, 8)}  # the ids that were queued


def test_the_batch_grows_with_the_world() -> None:
    plan = POLICY.relayout(POLICY.start(replicas=4, grad_accum=3), range(6))
    assert (plan.total, plan.target) == (18, 18)

"""The agreed table: what is read from it, and what must not be believed."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from workload_policy import (
    POLICY_GROUP,
    AdaptiveWorld,
    ExactBatch,
    NoSurvivorsError,
    Plan,
    PlanError,
    Policy,
    PolicyError,
    Restore,
    Role,
    StaticWorld,
    TableError,
    agreed_table,
    load_policy,
)

POLICIES: list[Policy] = [StaticWorld(), ExactBatch(), AdaptiveWorld()]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(policy.name))


@pytest.fixture
def plan() -> Plan:
    return StaticWorld().start(replicas=6, grad_accum=4)


@each_policy
def test_any_order_of_rows_gives_the_same_decision(policy: Policy) -> None:
    start = policy.start(replicas=12, grad_accum=5)
    table = agreed_table(start, {2, 7})
    decision = policy.on_failure(start, table)
    for seed in range(5):
        shuffled = random.Random(seed).sample(table, len(table))
        assert policy.on_failure(start, shuffled) == decision


@each_policy
def test_progress_does_not_change_a_decision(policy: Policy) -> None:
    start = policy.start(replicas=12, grad_accum=5)
    table = agreed_table(start, {2, 7})
    behind = [replace(record, contributed=0, microbatch=1) for record in table]
    assert policy.on_failure(start, behind) == policy.on_failure(start, table)


@each_policy
def test_a_plan_is_not_changed_by_decisions(policy: Policy) -> None:
    start = policy.start(replicas=12, grad_accum=5)
    before = start.to_dict()
    policy.advance(policy.on_failure(start, agreed_table(start, {2})).plan)
    policy.relayout(start, range(3))
    assert start.to_dict() == before


@each_policy
def test_nobody_died(policy: Policy) -> None:
    start = policy.start(replicas=4, grad_accum=2)
    decision = policy.on_failure(start, agreed_table(start, ()))
    assert decision.restore is Restore.SKIP
    assert decision.plan == start
    assert decision.failed == decision.queued == ()
    assert not decision.boundary


@each_policy
def test_nobody_is_left(policy: Policy) -> None:
    start = policy.start(replicas=4, grad_accum=2)
    with pytest.raises(NoSurvivorsError, match="no replica survives step 0") as caught:
        policy.on_failure(start, [])
    assert (caught.value.step, caught.value.failed) == (0, (0, 1, 2, 3))
    with pytest.raises(NoSurvivorsError):
        policy.relayout(start, [])


def test_a_stranger_in_the_table(plan: Plan) -> None:
    table = agreed_table(plan, {5})
    stranger = replace(table[0], replica=17)
    with pytest.raises(TableError, match="replica 17"):
        StaticWorld().on_failure(plan, [*table, stranger])


def test_the_dead_do_not_come_back(plan: Plan) -> None:
    table = agreed_table(plan, ())
    after = StaticWorld().on_failure(plan, agreed_table(plan, {5})).plan
    with pytest.raises(TableError, match="replica 5"):
        StaticWorld().on_failure(after, table)


def test_a_row_that_is_there_twice(plan: Plan) -> None:
    table = agreed_table(plan, {5})
    with pytest.raises(TableError, match="lists replica 2 2 times"):
        StaticWorld().on_failure(plan, [*table, table[2]])


def test_a_role_that_is_not_the_plans(plan: Plan) -> None:
    table = agreed_table(plan, {5})
    table[1] = replace(table[1], role=Role.MINOR_SPARE)
    with pytest.raises(TableError, match="replica 1 as minor_spare, the plan has it as major"):
        StaticWorld().on_failure(plan, table)


@pytest.mark.parametrize("contributed", [-1, 5])
def test_a_contribution_that_cannot_be(plan: Plan, contributed: int) -> None:
    table = agreed_table(plan, {5})
    table[1] = replace(table[1], contributed=contributed)
    with pytest.raises(TableError, match=f"has {contributed} microbatches of replica 1") as caught:
        StaticWorld().on_failure(plan, table)
    assert isinstance(caught.value, ValueError)


def test_a_plan_of_another_policy(plan: Plan) -> None:
    message = "a plan of policy 'static' cannot go on under 'exact'"
    with pytest.raises(PlanError, match=message):
        ExactBatch().on_failure(plan, agreed_table(plan, {1}))
    with pytest.raises(PlanError, match=message):
        ExactBatch().advance(plan)
    with pytest.raises(PlanError, match=message):
        ExactBatch().relayout(plan, [0])


def test_a_wrong_total_is_not_committed(plan: Plan) -> None:
    short = replace(plan, assigned={**plan.assigned, 0: plan.assigned[0][1:]})
    with pytest.raises(PlanError, match="step 0 must commit 24 microbatches, its plan has 23"):
        StaticWorld().advance(short)


def test_members_do_not_change_in_a_boundary_step(plan: Plan) -> None:
    after = StaticWorld().on_failure(plan, agreed_table(plan, {5})).plan
    with pytest.raises(PlanError, match="commit it before"):
        StaticWorld().relayout(after, range(7))


@pytest.mark.parametrize("members", [[0, 1, 1], [-1, 0]])
def test_members_that_cannot_be(plan: Plan, members: list[int]) -> None:
    with pytest.raises(PlanError, match="distinct replica ids from 0 on"):
        StaticWorld().relayout(plan, members)


@each_policy
def test_policies_by_name(policy: Policy) -> None:
    assert type(load_policy(policy.name)) is type(policy)


def test_a_policy_that_does_not_exist() -> None:
    with pytest.raises(PolicyError, match="no policy is named 'elastic': choose from static"):
        load_policy("elastic")


def test_options_a_policy_does_not_take() -> None:
    with pytest.raises(PolicyError, match="policy 'exact' does not take these options"):
        load_policy("exact", redundancy=3)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a policy of its own, as pip would leave it."""
    (tmp_path / "sleepy.py").write_text(
        "from workload_policy import ExactBatch\n"
        "class Sleepy(ExactBatch):\n"
        "    name = 'sleepy'\n"
        "    def __init__(self, *, hours=8):\n"
        "        self.hours = hours\n"
    )
    metadata = tmp_path / "sleepy-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sleepy\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{POLICY_GROUP}]\nsleepy = sleepy:Sleepy\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_policy_of_another_package(installed: None) -> None:
    policy = load_policy("sleepy", hours=9)
    assert policy.name == "sleepy"
    assert vars(policy) == {"hours": 9}
    with pytest.raises(PolicyError, match="does not take these options"):
        load_policy("sleepy", minutes=9)
    with pytest.raises(PolicyError, match=r"choose from static, adaptive, exact, .*sleepy"):
        load_policy("elastic")


def test_a_policy_whose_package_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(PolicyError, match="it comes with the package spare-planner"):
        load_policy("stacked")

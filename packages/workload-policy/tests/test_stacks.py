"""Plans whose members compute some ids redundantly."""

import json
from dataclasses import replace
from typing import Any

import pytest

from workload_policy import ExactBatch, Plan, PlanError, Role, Stack, StaticWorld, agreed_table


@pytest.fixture
def plan() -> Plan:
    """Two of three replicas after a failure: type 2 was computed by both, type 1 is added."""
    return Plan(
        policy="stacked",
        step=1,
        replicas=3,
        grad_accum=2,
        layout=ExactBatch().layout(replicas=3, grad_accum=2, survivors=2),
        members=(0, 2),
        roles={0: Role.MAJOR, 2: Role.MAJOR},
        assigned={0: (6, 7, 10, 11), 2: (10, 11, 8, 9)},
        cursor=6,
        queue=(),
        target=6,
        extra=2,
        boundary=True,
        boundary_minors=1,
        stacks={
            0: (
                Stack(shard_type=0, ids=(6, 7), counted=True),
                Stack(shard_type=2, ids=(10, 11), counted=False),
            ),
            2: (
                Stack(shard_type=2, ids=(10, 11), counted=True),
                Stack(shard_type=1, ids=(8, 9), counted=True),
            ),
        },
        state={"order": {"0": [0, 2], "2": [2, 1]}, "seed": 5},
    )


def test_a_redundant_copy_does_not_count(plan: Plan) -> None:
    plan.check()
    assert plan.committed_ids == {0: (6, 7), 2: (10, 11, 8, 9)}
    assert plan.contributions == {0: 2, 2: 4}
    assert plan.total == plan.target == 6


def test_what_a_step_has_to_know_without_asking_for_stacks(plan: Plan) -> None:
    assert plan.stacks is not None
    assert plan.depth == 2
    assert [plan.primary(m) for m in plan.members] == [(6, 7), (10, 11, 8, 9)]
    assert [plan.redundant(m) for m in plan.members] == [(plan.stacks[0][1],), ()]
    single = ExactBatch().start(replicas=3, grad_accum=2)
    assert single.depth == 0
    assert [single.primary(m) for m in single.members] == [(0, 1), (2, 3), (4, 5)]
    assert [single.redundant(m) for m in single.members] == [(), (), ()]


def test_a_spare_computes_although_it_does_not_count() -> None:
    plan = StaticWorld().relayout(StaticWorld().start(replicas=4, grad_accum=2), range(5))
    (spare,) = (m for m, role in plan.roles.items() if role.is_spare)
    assert plan.committed_ids[spare] == ()
    assert plan.primary(spare) == plan.assigned[spare] != ()
    assert plan.redundant(spare) == ()


def test_stacks_that_count_after_a_failure(plan: Plan) -> None:
    assert plan.stacks is not None
    two = ExactBatch().start(replicas=2, grad_accum=1)
    decision = ExactBatch().on_failure(two, agreed_table(two, {1}))
    assert decision.recounted_stacks(0) == ()  # no stacks
    stacked = replace(decision, plan=plan, recounted={2: (10, 11)})
    assert stacked.recounted_stacks(0) == ()
    assert stacked.recounted_stacks(2) == (plan.stacks[2][0],)


@pytest.mark.parametrize("sort_keys", [False, True])
def test_round_trip_through_json(plan: Plan, *, sort_keys: bool) -> None:
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict(), sort_keys=sort_keys))) == plan


def test_other_plans_are_saved_as_before() -> None:
    plan = ExactBatch().start(replicas=3, grad_accum=2)
    assert plan.stacks is None
    assert plan.state == {}
    assert plan.to_dict().keys().isdisjoint({"stacks", "state"})


def test_the_state_of_a_policy_is_nobody_elses_business(plan: Plan) -> None:
    plan = replace(plan, state={"anything": [{"x": None}, 0.5]})
    assert plan.to_dict()["state"] == {"anything": [{"x": None}, 0.5]}
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("state", [7, [1], {1: 2}])
def test_a_state_that_is_no_object(plan: Plan, state: Any) -> None:
    with pytest.raises(PlanError, match=r"not a saved plan: its state is .*, not an object"):
        Plan.from_dict({**plan.to_dict(), "state": state})


def test_what_is_missing_is_named(plan: Plan) -> None:
    for key in ("type", "ids", "counted"):
        data = plan.to_dict()
        del data["stacks"]["2"][0][key]
        with pytest.raises(PlanError, match=f"not a saved plan: '{key}' is missing"):
            Plan.from_dict(data)
    without = plan.to_dict()
    del without["stacks"]
    with pytest.raises(PlanError, match="it assigns an id twice"):
        Plan.from_dict(without)


def stack(shard_type: int, *ids: int, counted: bool = True) -> dict[str, Any]:
    return {"type": shard_type, "ids": list(ids), "counted": counted}


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"stacks": {"0": [stack(0, 6, 7)]}}, "its stacks are not those of its members"),
        ({"stacks": {"0": [], "1": []}}, "its stacks are not those of its members"),
        ({"stacks": {"0": [stack(0, 6, 7)], "2": [stack(2, 10, 11)]}}, "not what it assigns"),
        (
            {
                "stacks": {
                    "0": [stack(0, 6, 7), stack(2, 10, 11)],
                    "2": [stack(2, 10, 11, counted=False), stack(1, 8, 9)],
                }
            },
            None,  # the other copy of type 2 counts
        ),
        (
            {
                "stacks": {
                    "0": [stack(0, 6, 7), stack(2, 10, 11)],
                    "2": [stack(2, 10, 11), stack(1, 8, 9)],
                }
            },
            "it counts an id twice",
        ),
        (
            {
                "stacks": {
                    "0": [stack(0, 6, 7), stack(2, 10, 11, counted=False)],
                    "2": [stack(2, 10, 11, counted=False), stack(1, 8, 9)],
                }
            },
            "it counts 4 microbatches, not 6",
        ),
        ({"stacks": {"0": 3, "2": []}}, "not a saved plan"),
    ],
)
def test_damage(plan: Plan, damage: dict[str, Any], complaint: str | None) -> None:
    data = plan.to_dict()
    data |= damage
    if complaint is None:
        Plan.from_dict(data)
    else:
        with pytest.raises(PlanError, match=complaint):
            Plan.from_dict(data)


def test_the_same_id_twice_on_one_member(plan: Plan) -> None:
    data = plan.to_dict()
    data["assigned"]["0"] = [6, 7, 6, 7]
    data["stacks"]["0"] = [stack(0, 6, 7), stack(2, 6, 7, counted=False)]
    with pytest.raises(PlanError, match="it assigns an id twice to the same member"):
        Plan.from_dict(data)

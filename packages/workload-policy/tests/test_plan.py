"""Plans travel through checkpoints: what is saved comes back, what is damaged does not."""

import json
from typing import Any

import pytest

from workload_policy import Plan, PlanError, StaticWorld, agreed_table


@pytest.fixture
def plan() -> Plan:
    """The second step of 12 replicas after a failure, with a queue of its own."""
    policy = StaticWorld()
    plan = policy.start(replicas=12, grad_accum=5)
    plan = policy.advance(policy.on_failure(plan, agreed_table(plan, {3})).plan)[1]
    plan = policy.advance(policy.on_failure(plan, agreed_table(plan, {0})).plan)[1]
    assert plan.queue
    return plan


@pytest.mark.parametrize("sort_keys", [False, True])  # "10" sorts before "2"
def test_round_trip_through_json(plan: Plan, *, sort_keys: bool) -> None:
    back = Plan.from_dict(json.loads(json.dumps(plan.to_dict(), sort_keys=sort_keys)))
    assert back == plan
    assert StaticWorld().advance(back) == StaticWorld().advance(plan)


def test_a_plan_in_the_middle_of_a_boundary_step(plan: Plan) -> None:
    decision = StaticWorld().on_failure(plan, agreed_table(plan, {1, 2}))
    assert decision.boundary
    assert Plan.from_dict(json.loads(json.dumps(decision.plan.to_dict()))) == decision.plan


def test_what_is_missing_is_named(plan: Plan) -> None:
    for key in plan.to_dict():
        data = plan.to_dict()
        del data[key]
        with pytest.raises(PlanError, match=f"not a saved plan: '{key}' is missing"):
            Plan.from_dict(data)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"members": []}, "no members"),
        ({"members": [1, 1]}, "not sorted and distinct"),
        ({"members": ["x"]}, "not a saved plan"),
        ({"members": 3}, "not a saved plan"),
        ({"members": [1, 2]}, "its roles are not those of its members"),
        ({"roles": {"1": "captain"}}, "'CAPTAIN' is missing or unknown"),
        ({"roles": []}, "not a saved plan"),
        ({"assigned": {}}, "its assignment is not that of its members"),
        ({"queue": [5, 4]}, "its queue"),
        ({"queue": []}, "already counted"),
        ({"target": 59}, "it counts 60 microbatches, not 59"),
        ({"layout": {}}, "not a layout"),
        ({"layout": 7}, "not a saved plan"),
        ({"step": None}, "not a saved plan"),
    ],
)
def test_damage_is_found(plan: Plan, damage: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        Plan.from_dict({**plan.to_dict(), **damage})


def test_an_id_for_two(plan: Plan) -> None:
    data = plan.to_dict()
    data["assigned"]["1"] = data["assigned"]["2"]
    with pytest.raises(PlanError, match="assigns an id twice"):
        Plan.from_dict(data)

"""Plans whose members compute some ids redundantly."""

import json
from typing import Any

import pytest

from workload_policy import ExactBatch, Plan, PlanError, Role, Stack, Stacking


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
        stacking=Stacking(
            redundancy=2,
            seed=5,
            depth=2,
            order={0: (0, 2), 2: (2, 1)},
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
        ),
    )


def test_a_redundant_copy_does_not_count(plan: Plan) -> None:
    plan.check()
    assert plan.committed_ids == {0: (6, 7), 2: (10, 11, 8, 9)}
    assert plan.contributions == {0: 2, 2: 4}
    assert plan.total == plan.target == 6


@pytest.mark.parametrize("sort_keys", [False, True])
def test_round_trip_through_json(plan: Plan, *, sort_keys: bool) -> None:
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict(), sort_keys=sort_keys))) == plan


def test_other_plans_are_saved_as_before() -> None:
    plan = ExactBatch().start(replicas=3, grad_accum=2)
    assert plan.stacking is None
    assert "stacking" not in plan.to_dict()


def test_what_is_missing_is_named(plan: Plan) -> None:
    for key in plan.to_dict()["stacking"]:
        data = plan.to_dict()
        del data["stacking"][key]
        with pytest.raises(PlanError, match=f"not a saved plan: '{key}' is missing"):
            Plan.from_dict(data)


def stack(shard_type: int, *ids: int, counted: bool = True) -> dict[str, Any]:
    return {"type": shard_type, "ids": list(ids), "counted": counted}


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"order": {"0": [0, 2]}}, "its stacks are not those of its members"),
        ({"stacks": {"0": [], "1": []}}, "its stacks are not those of its members"),
        ({"stacks": {"0": [stack(0, 6, 7)], "2": [stack(2, 10, 11)]}}, "not what it assigns"),
        ({"depth": 3}, "it is 3 stacks deep, of 2"),
        ({"order": {"0": [0, 0], "2": [2, 1]}}, "a member of it does not host 2 types"),
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
    data["stacking"] |= damage
    if complaint is None:
        Plan.from_dict(data)
    else:
        with pytest.raises(PlanError, match=complaint):
            Plan.from_dict(data)


def test_the_same_id_twice_on_one_member(plan: Plan) -> None:
    data = plan.to_dict()
    data["assigned"]["0"] = [6, 7, 6, 7]
    data["stacking"]["stacks"]["0"] = [stack(0, 6, 7), stack(2, 6, 7, counted=False)]
    with pytest.raises(PlanError, match="it assigns an id twice to the same member"):
        Plan.from_dict(data)

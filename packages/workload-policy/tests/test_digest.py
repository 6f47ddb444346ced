"""The digest of a plan: the same for the same plan anywhere, another for another."""

import json
from dataclasses import replace

import pytest

from workload_policy import ExactBatch, Plan, Role, StaticWorld, agreed_table


@pytest.fixture
def plan() -> Plan:
    start = StaticWorld().start(replicas=4, grad_accum=8)
    return StaticWorld().on_failure(start, agreed_table(start, {1})).plan


def test_it_is_60_bits_that_do_not_change_with_python_or_process(plan: Plan) -> None:
    assert ExactBatch().start(replicas=2, grad_accum=4).digest == "899822340bc4539"
    assert len(plan.digest) == 15
    assert int(plan.digest, 16) < 2**60


def test_a_plan_that_went_through_json_has_the_same(plan: Plan) -> None:
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))).digest == plan.digest


def test_the_order_in_which_members_were_written_down_does_not_matter(plan: Plan) -> None:
    backwards = dict(reversed(list(plan.assigned.items())))
    assert replace(plan, assigned=backwards).digest == plan.digest


def test_whatever_decides_who_computes_what_changes_it(plan: Plan) -> None:
    first, *others = plan.members
    ids = plan.assigned[first]
    changed = [
        replace(plan, policy="exact"),
        replace(plan, step=1),
        replace(plan, replicas=5),
        replace(plan, grad_accum=9),
        replace(plan, members=tuple(others)),
        replace(plan, roles={**plan.roles, first: Role.MINOR_SPARE}),
        replace(plan, assigned={**plan.assigned, first: ids[::-1]}),
        replace(plan, assigned={**plan.assigned, first: ids[:-1]}),
        replace(plan, cursor=plan.cursor + 1),
        replace(plan, queue=(*plan.queue, 999)),
        replace(plan, target=31),
        replace(plan, extra=plan.extra + 1),
        replace(plan, boundary=not plan.boundary),
        replace(plan, boundary_minors=plan.boundary_minors + 1),
        replace(plan, stacks=dict.fromkeys(plan.members, ())),
        replace(plan, state={"seed": 1}),
    ]
    digests = {plan.digest, *(other.digest for other in changed)}
    assert len(digests) == 1 + len(changed)

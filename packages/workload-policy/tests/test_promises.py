"""A policy's answers are held against its promise before anybody computes by them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workload_policy import (
    AdaptiveWorld,
    ExactBatch,
    InOrder,
    Layout,
    Plan,
    PlanError,
    Promise,
    Response,
    Role,
    StaticWorld,
    agreed_table,
    check_exact,
    check_members,
    check_own_plan,
    load_policy,
)


class Told(InOrder):
    """Answers what it is told to; by itself like `ExactBatch`."""

    name = "told"

    def __init__(
        self,
        *,
        layout: Callable[[Layout], Any] | None = None,
        quotas: Callable[[dict[int, int]], Any] | None = None,
        respond: Callable[[Response], Any] | None = None,
        promise: Promise = Promise.BATCH,
        base: InOrder | None = None,
    ) -> None:
        self.promise = promise
        self.base = base or ExactBatch()
        self.changes = {"layout": layout, "quotas": quotas, "respond": respond}

    def _told(self, name: str, answer: Any) -> Any:
        change = self.changes[name]
        return change(answer) if change else answer

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        answer = self.base.layout(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
        return self._told("layout", answer)  # type: ignore[no-any-return]

    def quotas(self, layout: Layout, roles: Mapping[int, Role]) -> Mapping[int, int]:
        return self._told("quotas", super().quotas(layout, roles))  # type: ignore[no-any-return]

    def respond(self, plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> Response:
        return self._told("respond", self.base.respond(plan, failed, roles))  # type: ignore[no-any-return]


def fail(policy: InOrder, *dead: int) -> Plan:
    plan = policy.start(replicas=4, grad_accum=3)
    return policy.on_failure(plan, agreed_table(plan, dead)).plan


def test_without_a_change_nothing_is_wrong() -> None:
    assert fail(Told(), 1).total == 12


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda _: [3, 3, 3, 3], r"layout\(\) returned \[3, 3, 3, 3\], of type list"),
        (lambda it: replace(it, survivors=3), "4 survivors has survivors 3; it has to be 4"),
        (lambda it: replace(it, majors=3), "has number of roles 3; it has to be 4"),
        (lambda it: replace(it, global_batch=13), "has global_batch 13; it has to be 12"),
        (lambda it: replace(it, replicas=5), "has replicas 5; it has to be 4"),
        (lambda it: replace(it, grad_accum=4), "sum to 16 .*; they have to sum to 12"),
    ],
)
def test_layouts(change: Callable[[Layout], Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=f"policy 'told' .*test_promises.py.*{complaint}"):
        Told(layout=change).start(replicas=4, grad_accum=3)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda _: 12, "are of 12; they have to be of the members"),
        (lambda it: {**it, 4: 0}, r"are of \[0, 1, 2, 3, 4\]; they have to be of the members"),
        (lambda it: {m: it[m] for m in (0, 1, 2)}, r"are of \[0, 1, 2\]; they have"),
        (lambda it: {**it, 2: -3}, "give replica 2 -3; give a whole number, at least 0"),
        (lambda it: {**it, 2: 3.0}, r"give replica 2 3\.0; give a whole number"),
        (lambda it: {**it, 2: True}, "give replica 2 True; give a whole number"),
        (lambda it: {**it, 2: 4}, "sum to 13 .*; they have to sum to 12"),
    ],
)
def test_quotas(change: Callable[[dict[int, int]], Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=f"policy 'told' .*: the quotas of step 0 {complaint}"):
        Told(quotas=change).start(replicas=4, grad_accum=3)


def changed(**changes: Any) -> Callable[[Response], Response]:
    return lambda response: replace(response, **changes)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda _: {}, "returned {}, of type dict; it has to return a Response"),
        (changed(roles={0: Role.MAJOR}), r"gave roles to \[0\]; .* the survivors \[0, 2, 3\]"),
        (changed(roles=dict.fromkeys(range(4), Role.MAJOR)), r"gave roles to \[0, 1, 2, 3\]"),
        (
            changed(roles={0: Role.MAJOR, 2: Role.MAJOR, 3: "minor"}),
            "made replica 3 'minor'; give a workload_policy.Role",
        ),
        (changed(extra_counts={0: 4, 2: -1}), "gave replica 2 -1 extra microbatches"),
        (changed(extra_counts={0: 1.5, 2: 1.5}), r"gave replica 0 1\.5 extra microbatches"),
        (changed(extra_counts={1: 3}), "gave 3 extra microbatches to replica 1, which is not ali"),
        (
            changed(
                roles={0: Role.MAJOR, 2: Role.MAJOR, 3: Role.MAJOR_SPARE},
                extra_counts={0: 3, 3: 3},
            ),
            "gave 3 extra microbatches to replica 3, which is a spare",
        ),
        (
            changed(extra_counts={0: 1, 2: 1}),
            "leads to 11 microbatches, 9 that .* and 2 extra; the step has to commit 12",
        ),
        (changed(extra_counts={0: 9}), "leads to 18 microbatches"),
    ],
)
def test_responses(change: Callable[[Response], Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=rf"policy 'told' .*: respond\(\) in step 0 {complaint}"):
        fail(Told(respond=change), 1)


def test_a_response_in_any_order_without_its_zeros() -> None:
    def shuffled(response: Response) -> Response:
        roles = dict(sorted(response.roles.items(), reverse=True))
        return replace(response, roles=roles, extra_counts={3: 1, 0: 2})

    policy = Told(respond=shuffled)
    plan = policy.start(replicas=4, grad_accum=3)
    decision = policy.on_failure(plan, agreed_table(plan, {1}))
    assert decision.plan.members == tuple(decision.plan.roles) == (0, 2, 3)
    assert decision.extra_ids == {0: (3, 4), 3: (5,)}
    assert (decision.extra, decision.boundary_minors) == (2, 2)


def test_who_promises_nothing_may_count_what_it_likes() -> None:
    policy = Told(respond=changed(extra_counts={0: 1}), promise=Promise.NONE)
    plan = fail(policy, 1)
    assert plan.total == plan.target == 10
    assert policy.advance(plan)[0].total == 10
    fewer = Told(quotas=lambda it: dict.fromkeys(it, 1), promise=Promise.NONE)
    assert fewer.start(replicas=4, grad_accum=3).target == 4


def test_an_exact_step_has_its_own_ids() -> None:
    """Spares count with ids of their own, so `StaticWorld` cannot be exact."""
    policy = Told(promise=Promise.EXACT, base=StaticWorld())
    plan = policy.advance(fail(policy, 3))[1]
    assert any(role.is_spare for role in policy.relayout(plan, range(5)).roles.values())
    spared = policy.relayout(plan, range(5))
    with pytest.raises(
        PlanError,
        match=r"policy 'told' .* promises exact steps, and step 1 would commit 12 microbatches of"
        r" which 3 are not of 12 to 23 \(24, 25, 26\), and miss 3 of these \(12, 13, 14\)",
    ):
        policy.on_failure(spared, agreed_table(spared, {0}))


def test_exact_is_checked_when_a_step_is_advanced() -> None:
    plan = ExactBatch().start(replicas=2, grad_accum=2)
    wrong = replace(plan, assigned={0: (0, 1), 1: (2, 7)})
    with pytest.raises(PlanError, match=r"1 are not of 0 to 3 \(7\), and miss 1 of these \(3\)"):
        ExactBatch().advance(wrong)
    with pytest.raises(PlanError, match="policy 'mine' promises exact steps"):
        check_exact(replace(plan, assigned={0: (0, 0), 1: (1, 2)}), who="policy 'mine'")
    check_exact(plan, who="policy 'mine'")


def test_every_policy_says_what_it_promises() -> None:
    assert AdaptiveWorld().promise is Promise.NONE
    assert StaticWorld().promise is Promise.BATCH
    assert ExactBatch().promise is Promise.EXACT
    assert [*Promise] == ["exact", "batch", "none"]


def test_a_policy_of_functions_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "careless.py"
    path.write_text("def quotas(layout, roles): return dict.fromkeys(roles, 2)\n")
    with pytest.raises(PlanError) as caught:
        load_policy(str(path)).start(replicas=4, grad_accum=3)
    assert str(caught.value) == (
        f"policy 'careless' ({path}): the quotas of step 0 sum to 8 over the contributing members"
        " {0: 2, 1: 2, 2: 2, 3: 2}; they have to sum to 12"
    )


def test_checks_for_policies_that_are_written_from_scratch() -> None:
    plan = StaticWorld().start(replicas=4, grad_accum=3)
    check_own_plan(plan, "static")
    with pytest.raises(PlanError, match="a plan of policy 'static' cannot go on under 'mine'"):
        check_own_plan(plan, "mine")
    assert check_members(plan, [4, 2, 0]) == [0, 2, 4]
    assert check_members(plan, [3, 0], most=4) == [0, 3]
    with pytest.raises(PlanError, match=r"from 0 to 3, got \[0, 4\]: a run .* cannot grow"):
        check_members(plan, [4, 0], most=4)

"""What is checked while a run goes on: the plan a policy is given, and what it answers.

A mistake in a policy must not become a wrong gradient, so every answer is held against what the
policy promises before anybody computes by it. All checks are linear in what they look at.

`who` is how messages name the policy, such as ``policy 'uneven' (/home/me/uneven.py)``.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from workload_policy.errors import NoSurvivorsError, PlanError
from workload_policy.layout import Layout
from workload_policy.plan import Plan
from workload_policy.response import Response
from workload_policy.roles import Role

__all__ = [
    "check_exact",
    "check_layout",
    "check_members",
    "check_own_plan",
    "check_quotas",
    "check_response",
]


def check_own_plan(plan: Plan, policy: str) -> None:
    """Check that a plan is one of the policy with this name.

    Raises:
        PlanError: Another policy made it.
    """
    if plan.policy != policy:
        raise PlanError(f"a plan of policy {plan.policy!r} cannot go on under {policy!r}")


def check_members(plan: Plan, members: Sequence[int], *, most: int | None = None) -> list[int]:
    """Return the members that a plan is to be laid out for, sorted, if that can be done.

    Args:
        plan: The plan of the step to be laid out anew.
        members: Ids of the replicas alive, in any order.
        most: How many replicas the run can have, with the ids from 0 on; any number if None.

    Raises:
        NoSurvivorsError: There are no members.
        PlanError: A member is named twice or is no id, or the step has crossed a policy boundary.
    """
    if plan.boundary:
        raise PlanError(
            f"step {plan.step} has crossed a policy boundary: commit it before its members change"
        )
    if not members:
        raise NoSurvivorsError(step=plan.step, failed=plan.members)
    ordered = sorted(members)
    distinct = len(set(ordered)) == len(ordered)
    if most is None and (ordered[0] < 0 or not distinct):
        raise PlanError(f"members must be distinct replica ids from 0 on, got {ordered}")
    if most is not None and (ordered[0] < 0 or ordered[-1] >= most or not distinct):
        raise PlanError(
            f"members must be distinct replica ids from 0 to {most - 1}, got {ordered}:"
            f" a run of policy {plan.policy!r} cannot grow"
        )
    return ordered


def check_layout(layout: Any, *, who: str, replicas: int, grad_accum: int, survivors: int) -> None:
    """Check that a layout is one for this shape.

    Raises:
        PlanError: It is not; the message names the numbers.
    """
    if not isinstance(layout, Layout):
        raise PlanError(
            f"{who}: layout() returned {layout!r}, of type {type(layout).__name__}; it has to"
            " return a Layout"
        )
    for name, value, expected in (
        ("replicas", layout.replicas, replicas),
        ("survivors", layout.survivors, survivors),
        ("global_batch", layout.global_batch, replicas * grad_accum),
        ("number of roles", len(layout.roles), survivors),
    ):
        if value != expected:
            raise PlanError(
                f"{who}: layout() of {survivors} survivors has {name} {value}; it has to be"
                f" {expected}"
            )


def check_quotas(
    quotas: Any, *, who: str, step: int, roles: Mapping[int, Role], target: int | None
) -> None:
    """Check how many microbatches each member computes.

    Args:
        quotas: Member -> microbatches in a step.
        who: The policy.
        step: The step they are for.
        roles: Role of each member.
        target: What those of contributors have to sum to; None if anything goes.

    Raises:
        PlanError: They are not whole numbers from 0 on for exactly the members, or do not sum up.
    """
    what = f"{who}: the quotas of step {step}"
    if not isinstance(quotas, Mapping) or set(quotas) != set(roles):
        given = sorted(quotas) if isinstance(quotas, Mapping) else quotas
        raise PlanError(f"{what} are of {given}; they have to be of the members {sorted(roles)}")
    for member, quota in quotas.items():
        if not _is_count(quota):
            raise PlanError(
                f"{what} give replica {member} {quota!r}; give a whole number, at least 0"
            )
    total = sum(quotas[m] for m, role in roles.items() if not role.is_spare)
    if target is not None and total != target:
        raise PlanError(
            f"{what} sum to {total} over the contributing members {dict(quotas)}; they have to sum"
            f" to {target}"
        )


def check_response(
    response: Any,
    *,
    who: str,
    plan: Plan,
    survivors: Sequence[int],
    target: int | None,
) -> None:
    """Check how survivors absorb a failure.

    Args:
        response: What the policy answered.
        who: The policy.
        plan: The plan it answered for.
        survivors: Members that live on.
        target: What the step has to count in the end; None if anything goes.

    Raises:
        PlanError: Its roles are not those of the survivors, a count is not a whole number from 0 on
            of a contributor, or the step would count something else than its target.
    """
    what = f"{who}: respond() in step {plan.step}"
    if not isinstance(response, Response):
        raise PlanError(
            f"{what} returned {response!r}, of type {type(response).__name__}; it has to return a"
            " Response"
        )
    if set(response.roles) != set(survivors):
        raise PlanError(
            f"{what} gave roles to {sorted(response.roles)}; it has to give them to the survivors"
            f" {sorted(survivors)}"
        )
    for member, role in response.roles.items():
        if not isinstance(role, Role):
            raise PlanError(f"{what} made replica {member} {role!r}; give a workload_policy.Role")
    contributors = set(response.contributors)
    for member, count in response.extra_counts.items():
        if member not in contributors:
            state = "a spare" if member in response.roles else "not alive"
            raise PlanError(
                f"{what} gave {count!r} extra microbatches to replica {member}, which is {state};"
                f" give them to contributors, {sorted(contributors)}"
            )
        if not _is_count(count):
            raise PlanError(
                f"{what} gave replica {member} {count!r} extra microbatches; give a whole number,"
                " at least 0"
            )
    kept = sum(len(plan.assigned[m]) for m in contributors)
    extra = sum(response.extra_counts.values())
    if target is not None and kept + extra != target:
        raise PlanError(
            f"{what} leads to {kept + extra} microbatches, {kept} that contributing survivors have"
            f" and {extra} extra; the step has to commit {target}"
        )


def check_exact(plan: Plan, *, who: str) -> None:
    """Check that a plan commits precisely the ids of its step, as `Promise.EXACT` has it.

    Raises:
        PlanError: It does not.
    """
    batch = plan.global_batch
    own = range(plan.step * batch, (plan.step + 1) * batch)
    ids = sorted(itertools.chain.from_iterable(plan.committed_ids.values()))
    if ids != list(own):
        missing = sorted(set(own).difference(ids))
        foreign = [i for i in ids if i not in own]
        raise PlanError(
            f"{who} promises exact steps, and step {plan.step} would commit"
            f" {len(ids)} microbatches of which {len(foreign)} are not of {own.start} to"
            f" {own.stop - 1}{_some(foreign)}, and miss {len(missing)} of these{_some(missing)}:"
            " promise 'batch', or have no spare take a place with ids of its own"
        )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _some(ids: Sequence[int]) -> str:
    if not ids:
        return ""
    return f" ({', '.join(map(str, ids[:4]))}{', ...' if len(ids) > 4 else ''})"

"""Run a policy through a schedule of failures and joins, without any training.

This is what a run would do, step by step: the same calls on the same values, with the agreed table
filled in for the survivors. The ledger proves every step on the way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workload_policy.decision import agreed_table
from workload_policy.errors import NoSurvivorsError, ScheduleError
from workload_policy.ledger import Ledger, LedgerEntry
from workload_policy.plan import Plan
from workload_policy.policy import Policy

__all__ = ["SimulatedStep", "simulate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """One committed step of a simulation.

    Attributes:
        entry: What was committed.
        failed: Replicas that died during this step, sorted.
        joined: Replicas that joined right before it, sorted.
        computed: Microbatches computed, those of the dead and of spares included.
        longest: Microbatches of the survivor that computed most: the length of the step.
    """

    entry: LedgerEntry
    failed: tuple[int, ...]
    joined: tuple[int, ...]
    computed: int
    longest: int

    @property
    def survivors(self) -> int:
        """Number of replicas alive when the step committed."""
        return len(self.entry.contributions)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``workload-policy simulate --json`` prints for this step."""
        return {
            "step": self.entry.step,
            "survivors": self.survivors,
            "failed": list(self.failed),
            "boundary": self.entry.boundary,
            "extra": self.entry.extra,
            "boundary_minors": self.entry.boundary_minors,
            "contributions": list(self.entry.contributions.values()),
            "total": self.entry.total,
        }


def simulate(
    policy: Policy,
    *,
    replicas: int,
    grad_accum: int,
    steps: int,
    failures: Mapping[int, Sequence[int]] | None = None,
    joins: Mapping[int, int] | None = None,
) -> Iterator[SimulatedStep]:
    """Check the schedule, then yield one step after the other.

    Args:
        policy: The policy to follow.
        replicas: Replicas at the start, with ids 0 to `replicas` - 1.
        grad_accum: Microbatches of each of them in a step at the start.
        steps: How many steps to run, numbered from 0.
        failures: Step -> replicas that die at once during its gradient synchronization.
        joins: Step -> how many replicas join right before it. They get the next ids never used.

    Raises:
        LayoutError: `replicas` or `grad_accum` is not positive.
        ScheduleError: `steps` is not positive, or something in the schedule cannot happen.
        NoSurvivorsError: The schedule leaves nobody alive.
    """
    plan = policy.start(replicas=replicas, grad_accum=grad_accum)
    deaths = {step: tuple(sorted(dead)) for step, dead in (failures or {}).items() if dead}
    newcomers = _check_schedule(replicas=replicas, steps=steps, deaths=deaths, joins=joins or {})
    return _run(policy, plan, steps=steps, deaths=deaths, newcomers=newcomers)


def _run(
    policy: Policy,
    plan: Plan,
    *,
    steps: int,
    deaths: Mapping[int, tuple[int, ...]],
    newcomers: Mapping[int, tuple[int, ...]],
) -> Iterator[SimulatedStep]:
    ledger = Ledger()
    for step in range(steps):
        failed, joined = deaths.get(step, ()), newcomers.get(step, ())
        if joined:
            plan = policy.relayout(plan, (*plan.members, *joined))
        computed = sum(map(len, plan.assigned.values()))
        if failed:
            decision = policy.on_failure(plan, agreed_table(plan, failed))
            plan = decision.plan
            computed += sum(map(len, decision.extra_ids.values()))
        longest = max(map(len, plan.assigned.values()))
        entry, plan = policy.advance(plan)
        ledger.record(entry)
        ledger.check(plan)
        yield SimulatedStep(
            entry=entry, failed=failed, joined=joined, computed=computed, longest=longest
        )


def _check_schedule(
    *, replicas: int, steps: int, deaths: Mapping[int, tuple[int, ...]], joins: Mapping[int, int]
) -> dict[int, tuple[int, ...]]:
    """Return step -> ids of the replicas that join before it, if all of the schedule can happen."""
    if steps < 1:
        raise ScheduleError(f"steps must be at least 1, got {steps}")
    alive = set(range(replicas))
    died: dict[int, int] = {}
    newcomers: dict[int, tuple[int, ...]] = {}
    known = replicas
    for step in sorted({*deaths, *joins}):
        if not 0 <= step < steps:
            raise ScheduleError(f"step {step} is not simulated: steps are 0 to {steps - 1}")
        if step in joins:
            if joins[step] < 1:
                raise ScheduleError(
                    f"{joins[step]} replicas cannot join at step {step}: at least 1"
                )
            newcomers[step] = tuple(range(known, known + joins[step]))
            alive.update(newcomers[step])
            known += joins[step]
        for replica in deaths.get(step, ()):
            if replica in died:
                raise ScheduleError(
                    f"replica {replica} cannot fail at step {step}:"
                    f" it failed at step {died[replica]}"
                )
            if replica not in alive:
                raise ScheduleError(
                    f"replica {replica} cannot fail at step {step}: replicas are 0 to {known - 1}"
                )
            alive.remove(replica)
            died[replica] = step
        if not alive:
            raise NoSurvivorsError(step=step, failed=deaths[step])
    return newcomers

"""What was committed, and the proof that every microbatch was counted once.

The ledger keeps committed ids as a few ranges, so it stays small however long the run is.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from workload_policy.errors import LedgerError, PlanError
from workload_policy.plan import Plan
from workload_policy.ranges import ranges_of

__all__ = ["Ledger", "LedgerEntry"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerEntry:
    """One committed step.

    Attributes:
        step: Number of the step, from 0.
        ids: Ids each living replica had counted; empty for spares.
        contributions: How many those are.
        total: Microbatches counted, over all replicas.
        boundary: Whether the step crossed a policy boundary.
        extra: Extra accumulation steps it took, ``G_ext``.
        boundary_minors: Boundary minors of its last boundary.
    """

    step: int
    ids: Mapping[int, tuple[int, ...]]
    contributions: Mapping[int, int]
    total: int
    boundary: bool
    extra: int
    boundary_minors: int

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return what a plan commits.

        Raises:
            PlanError: Its total is not its target.
        """
        if plan.total != plan.target:
            raise PlanError(
                f"step {plan.step} must commit {plan.target} microbatches,"
                f" its plan has {plan.total}"
            )
        return cls(
            step=plan.step,
            ids=plan.committed_ids,
            contributions=plan.contributions,
            total=plan.total,
            boundary=plan.boundary,
            extra=plan.extra,
            boundary_minors=plan.boundary_minors,
        )


class Ledger:
    """All steps committed so far.

    Attributes:
        steps: Number of steps recorded; the next entry must have this number.
        microbatches: Number of microbatches counted.
        ranges: Counted ids as ``(first, last + 1)`` ranges, sorted, with gaps between them.
    """

    __slots__ = ("microbatches", "ranges", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.microbatches = 0
        self.ranges: tuple[tuple[int, int], ...] = ()

    def record(self, entry: LedgerEntry) -> None:
        """Add one committed step. The ledger is unchanged when this raises.

        Raises:
            LedgerError: It is not the next step, its numbers contradict each other, or an id was
                counted before.
        """
        if entry.step != self.steps:
            raise LedgerError(
                f"step {entry.step} cannot follow {self.steps} recorded steps", step=entry.step
            )
        counts = {replica: len(ids) for replica, ids in entry.ids.items()}
        if counts != dict(entry.contributions) or sum(counts.values()) != entry.total:
            raise LedgerError(
                f"the ids of step {entry.step} do not add up to its contributions", step=entry.step
            )
        new = sorted(itertools.chain.from_iterable(entry.ids.values()))
        self.ranges = _merge([*self.ranges, *_runs(new)], step=entry.step)
        self.microbatches += entry.total
        self.steps += 1

    def check(self, plan: Plan) -> None:
        """Check coverage: below the plan's cursor every id is either counted or in its queue.

        Raises:
            LedgerError: An id is lost or is both, or the plan is not the one of the next step.
        """
        if plan.step != self.steps:
            raise LedgerError(
                f"the plan is of step {plan.step}, the ledger is at {self.steps}", step=plan.step
            )
        covered = _merge([*self.ranges, *_runs(plan.queue)], step=plan.step)
        if covered != (((0, plan.cursor),) if plan.cursor else ()):
            raise LedgerError(
                f"counted and queued ids of step {plan.step} leave a gap: {covered}", step=plan.step
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as a JSON-ready dictionary."""
        return {"steps": self.steps, "ranges": [list(pair) for pair in self.ranges]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a ledger from `to_dict`, also after a trip through JSON.

        Raises:
            LedgerError: Something is missing or of the wrong kind.
        """
        ledger = cls()
        try:
            ledger.steps = int(data["steps"])
            ledger.ranges = _merge(
                [(int(first), int(end)) for first, end in data["ranges"]], step=ledger.steps
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"not a saved ledger: {error!r}", step=ledger.steps) from error
        ledger.microbatches = sum(end - first for first, end in ledger.ranges)
        return ledger


def _runs(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return sorted ids as ranges, the ends not in them."""
    return [(first, last + 1) for first, last in ranges_of(ids)]


def _merge(ranges: list[tuple[int, int]], *, step: int) -> tuple[tuple[int, int], ...]:
    """Join ranges that touch.

    Raises:
        LedgerError: Two of them overlap.
    """
    merged: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if merged and first < merged[-1][1]:
            raise LedgerError(
                f"microbatch {first} is counted or queued twice, noticed at step {step}", step=step
            )
        if merged and first == merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    return tuple(merged)

"""From a repaired world to a decision: the table that every survivor holds, and what the policy makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workload_policy import Decision, Plan, Role, SurvivorRecord

from grad_txn.errors import DivergenceError

__all__ = ["Record", "table_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What one rank tells all others in the record phase of a repair."""

    replica: int
    position: int
    step: int
    role: Role
    contributed: int
    microbatch: int

    def to_row(self) -> tuple[int, ...]:
        """The record as the integers that travel."""
        return (
            self.replica,
            self.position,
            self.step,
            int(self.role),
            self.contributed,
            self.microbatch,
        )

    @classmethod
    def from_row(cls, row: Sequence[int]) -> Record:
        """The record of a row that `to_row` made."""
        replica, position, step, role, contributed, microbatch = row
        return cls(
            replica=replica,
            position=position,
            step=step,
            role=Role(role),
            contributed=contributed,
            microbatch=microbatch,
        )


def table_of(
    rows: Sequence[Sequence[int]], plan: Plan, *, replica_size: int
) -> tuple[SurvivorRecord, ...]:
    """One row a surviving replica, for the policy, after checking that all ranks tell the same story.

    Raises:
        DivergenceError: a rank is in another step, or the positions of a replica disagree.
    """
    by_replica: dict[int, list[Record]] = {}
    for row in rows:
        record = Record.from_row(row)
        by_replica.setdefault(record.replica, []).append(record)
    table = []
    for replica, records in sorted(by_replica.items()):
        first = records[0]
        if any(record.step != plan.step for record in records):
            steps = sorted({record.step for record in records})
            message = f"replica {replica} is in step {steps[0]}, this one in step {plan.step}"
            raise DivergenceError(message)
        told = {(record.role, record.contributed) for record in records}
        if len(records) != replica_size or len(told) != 1:
            message = f"the {len(records)} ranks of replica {replica} disagree in step {plan.step}: {sorted(told)}"
            raise DivergenceError(message)
        table.append(
            SurvivorRecord(
                replica=replica,
                role=first.role,
                contributed=first.contributed,
                microbatch=first.microbatch,
            )
        )
    return tuple(table)


def failure_line(
    decision: Decision, *, epoch: int, failed_ranks: Sequence[int]
) -> dict[str, object]:
    """The fields of the `failure` event."""
    plan = decision.plan
    return {
        "step": plan.step,
        "epoch": epoch,
        "failed": list(decision.failed),
        "failed_ranks": list(failed_ranks),
        "boundary": decision.boundary,
        "restore": decision.restore.value,
        "promoted": decision.promoted,
        "extra": {replica: list(ids) for replica, ids in decision.extra.items() if ids},
        "queued": list(decision.queued),
        "contributions": plan.contributions,
    }

"""From a repaired world to a decision.

The table that every survivor holds, and what the log says of the policy's answer to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grad_txn.errors import DivergenceError
from workload_policy import Decision, Plan, Role, SurvivorRecord

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
    def from_row(cls, row: Sequence[int]) -> "Record":
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
    """Return one row for each surviving replica, for the policy.

    Args:
        rows: The records of all surviving ranks, as they travelled.
        plan: The plan in force.
        replica_size: Ranks in a replica.

    Raises:
        DivergenceError: A rank is in another step, or the ranks of a replica disagree.
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
            raise DivergenceError(
                f"replica {replica} is in steps {steps}, this one in step {plan.step}"
            )
        told = {(record.role, record.contributed) for record in records}
        if len(records) != replica_size or len(told) != 1:
            raise DivergenceError(
                f"the {len(records)} ranks of replica {replica} disagree in step {plan.step}: "
                f"{sorted(told)}"
            )
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
    recounted = {replica: list(ids) for replica, ids in decision.recounted.items() if ids}
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
        **({"recounted": recounted} if recounted else {}),
    }

"""What the survivors of a failure tell each other, and the table that all of them make of it."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Self

from grad_txn.errors import DivergenceError
from ulfm_core import Membership
from workload_policy import Plan, Role, SurvivorRecord

__all__ = ["Record", "table_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What one rank tells all others in the record phase of a repair (ReCoVer, Algorithm 3).

    Attributes:
        replica: Its replica.
        position: Its index inside the replica.
        step: The step it is in.
        role: The replica's role in the plan before this failure is dealt with.
        contributed: Microbatches of the step that the replica has finished.
        microbatch: Its place in the step, for diagnosis.
    """

    replica: int
    position: int
    step: int
    role: Role
    contributed: int
    microbatch: int

    def to_row(self) -> tuple[int, ...]:
        """Return the record as the integers that travel."""
        return tuple(map(int, astuple(self)))

    @classmethod
    def from_row(cls, row: Sequence[int]) -> Self:
        """Return the record of a row that `to_row` made."""
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
    rows: Sequence[Sequence[int]], plan: Plan, membership: Membership
) -> tuple[SurvivorRecord, ...]:
    """Return one row for each surviving replica, for the policy.

    Args:
        rows: The records of all surviving ranks, as they travelled.
        plan: The plan in force.
        membership: The survivors.

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
        if len(records) != len(membership.ranks_of(replica)) or len(told) != 1:
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

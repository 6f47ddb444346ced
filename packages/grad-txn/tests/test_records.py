"""From the records of a repair to the table that the policy reads."""

from collections.abc import Sequence

import pytest

from grad_txn.errors import DivergenceError
from grad_txn.records import Record, table_of
from ulfm_core import Membership
from workload_policy import Plan, Role, SurvivorRecord, load_policy


def plan_of(replicas: int = 4, grad_accum: int = 3) -> Plan:
    return load_policy("static").start(replicas=replicas, grad_accum=grad_accum)


def of(replica_size: int) -> Membership:
    return Membership.initial(4 * replica_size, replica_size)


def row(replica: int, *, position: int = 0, step: int = 0, contributed: int = 3) -> Sequence[int]:
    record = Record(
        replica=replica, position=position, step=step, role=Role.MAJOR,
        contributed=contributed, microbatch=contributed,
    )  # fmt: skip
    return record.to_row()


def survivor(replica: int, contributed: int = 3) -> SurvivorRecord:
    return SurvivorRecord(
        replica=replica, role=Role.MAJOR, contributed=contributed, microbatch=contributed
    )


@pytest.mark.parametrize("role", list(Role))
def test_a_record_travels_as_integers(role: Role) -> None:
    record = Record(replica=3, position=1, step=7, role=role, contributed=4, microbatch=5)
    travelled = record.to_row()
    assert all(type(value) is int for value in travelled)
    assert Record.from_row(travelled) == record


def test_one_row_a_replica_in_order() -> None:
    table = table_of([row(3), row(0), row(2, contributed=1)], plan_of(), of(1))
    assert table == (survivor(0), survivor(2, 1), survivor(3))


def test_the_ranks_of_a_replica_make_one_row() -> None:
    rows = [row(replica, position=position) for replica in (0, 2) for position in (0, 1)]
    assert table_of(rows, plan_of(), of(2)) == (survivor(0), survivor(2))


def test_a_replica_in_another_step_is_refused() -> None:
    with pytest.raises(DivergenceError, match=r"replica 2 is in steps \[1\], this one in step 0"):
        table_of([row(0), row(2, step=1)], plan_of(), of(1))


def test_ranks_of_a_replica_that_disagree_are_refused() -> None:
    rows = [row(1), row(1, position=1, contributed=2)]
    with pytest.raises(DivergenceError, match="the 2 ranks of replica 1 disagree in step 0"):
        table_of(rows, plan_of(), of(2))


def test_half_a_replica_is_refused() -> None:
    with pytest.raises(DivergenceError, match="the 1 ranks of replica 1 disagree"):
        table_of([row(1)], plan_of(), of(2))

"""From the records of a repair to the table that the policy reads."""

from collections.abc import Sequence

import pytest

from grad_txn.errors import DivergenceError
from grad_txn.recovery import Record, failure_line, table_of
from workload_policy import Plan, Restore, Role, SurvivorRecord, policy_named


def plan_of(replicas: int = 4, grad_accum: int = 3) -> Plan:
    return policy_named("static").start(replicas=replicas, grad_accum=grad_accum)


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
    table = table_of([row(3), row(0), row(2, contributed=1)], plan_of(), replica_size=1)
    assert table == (survivor(0), survivor(2, 1), survivor(3))


def test_the_ranks_of_a_replica_make_one_row() -> None:
    rows = [row(replica, position=position) for replica in (0, 2) for position in (0, 1)]
    assert table_of(rows, plan_of(), replica_size=2) == (survivor(0), survivor(2))


def test_a_replica_in_another_step_is_refused() -> None:
    with pytest.raises(DivergenceError, match=r"replica 2 is in steps \[1\], this one in step 0"):
        table_of([row(0), row(2, step=1)], plan_of(), replica_size=1)


def test_ranks_of_a_replica_that_disagree_are_refused() -> None:
    rows = [row(1), row(1, position=1, contributed=2)]
    with pytest.raises(DivergenceError, match="the 2 ranks of replica 1 disagree in step 0"):
        table_of(rows, plan_of(), replica_size=2)


def test_half_a_replica_is_refused() -> None:
    with pytest.raises(DivergenceError, match="the 1 ranks of replica 1 disagree"):
        table_of([row(1)], plan_of(), replica_size=2)


def test_what_the_log_says_of_a_decision() -> None:
    plan = plan_of()
    decision = policy_named("static").on_failure(plan, [survivor(replica) for replica in (0, 1, 3)])
    line = failure_line(decision, epoch=2, failed_ranks=[2])
    assert line["step"] == 0
    assert line["epoch"] == 2
    assert line["failed"] == [2]
    assert line["failed_ranks"] == [2]
    assert line["boundary"] is True
    assert line["restore"] == Restore.NON_BLOCKING.value == "non_blocking"
    # The dead one's three ids, one for each survivor.
    assert line["extra"] == {0: [6], 1: [7], 3: [8]}
    assert line["contributions"] == {0: 4, 1: 4, 3: 4}

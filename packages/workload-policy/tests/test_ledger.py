"""The ledger must notice every way to lose a microbatch or to count it twice."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from workload_policy import Ledger, LedgerEntry, LedgerError, StaticWorld, agreed_table


def entry(step: int, ids: Mapping[int, tuple[int, ...]]) -> LedgerEntry:
    contributions = {replica: len(mine) for replica, mine in ids.items()}
    return LedgerEntry(
        step=step,
        ids=ids,
        contributions=contributions,
        total=sum(contributions.values()),
        boundary=False,
        extra=0,
        boundary_minors=0,
    )


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.record(entry(0, {0: (0, 1), 1: (4, 5), 2: ()}))
    ledger.record(entry(1, {0: (2,), 1: (7,)}))
    return ledger


def test_it_keeps_ranges(ledger: Ledger) -> None:
    assert ledger.ranges == ((0, 3), (4, 6), (7, 8))
    assert (ledger.steps, ledger.microbatches) == (2, 6)


def test_an_id_of_an_earlier_step(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="microbatch 5 is counted or queued twice") as caught:
        ledger.record(entry(2, {0: (3, 5)}))
    assert caught.value.step == 2
    assert (ledger.steps, ledger.ranges) == (2, ((0, 3), (4, 6), (7, 8)))


@pytest.mark.parametrize("ids", [{0: (8, 9), 1: (9, 10)}, {0: (9, 9)}])
def test_an_id_twice_in_one_step(ledger: Ledger, ids: dict[int, tuple[int, ...]]) -> None:
    with pytest.raises(LedgerError, match="microbatch 9 is counted or queued twice"):
        ledger.record(entry(2, ids))


def test_a_range_around_an_old_one(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="microbatch 7 is counted or queued twice"):
        ledger.record(entry(2, {0: (6, 7, 8)}))


@pytest.mark.parametrize("step", [0, 1, 3])
def test_steps_come_in_order(ledger: Ledger, step: int) -> None:
    with pytest.raises(LedgerError, match=f"step {step} cannot follow 2 recorded steps"):
        ledger.record(entry(step, {0: (9,)}))


@pytest.mark.parametrize("change", [{"total": 3}, {"contributions": {0: 1}}])
def test_numbers_that_contradict(ledger: Ledger, change: dict[str, Any]) -> None:
    with pytest.raises(LedgerError, match="do not add up"):
        ledger.record(replace(entry(2, {0: (9, 10)}), **change))


def test_coverage_of_a_run() -> None:
    policy, ledger = StaticWorld(), Ledger()
    plan = policy.start(replicas=12, grad_accum=5)
    ledger.check(plan)
    for failed in (set(), {3}, {0}):
        entry, plan = policy.advance(policy.on_failure(plan, agreed_table(plan, failed)).plan)
        ledger.record(entry)
        ledger.check(plan)
    assert ledger.microbatches == 3 * 60
    assert plan.queue
    with pytest.raises(LedgerError, match="leave a gap"):
        ledger.check(replace(plan, queue=plan.queue[1:]))
    with pytest.raises(LedgerError, match="counted or queued twice"):
        ledger.check(replace(plan, queue=(0, *plan.queue)))
    with pytest.raises(LedgerError, match="the plan is of step 4, the ledger is at 3"):
        ledger.check(replace(plan, step=4))


def test_round_trip_through_json(ledger: Ledger) -> None:
    back = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert back.ranges == ledger.ranges
    assert (back.steps, back.microbatches) == (ledger.steps, ledger.microbatches)


@pytest.mark.parametrize(
    "data",
    [{}, {"steps": 1}, {"steps": 1, "ranges": [1]}, {"steps": 1, "ranges": [[0, 3], [2, 4]]}],
)
def test_a_damaged_ledger(data: dict[str, Any]) -> None:
    with pytest.raises(LedgerError):
        Ledger.from_dict(data)

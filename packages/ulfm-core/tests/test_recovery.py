"""Ranks that die for real, in every place where one can."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ulfm_core.testing import JobResult, run_ranks

PROGRAMS = Path(__file__).parent / "programs"
MODES = ("deferred", "guarded")
PLACES = ("idle", "between", "inside", "after", "committed")
PHASES = ("revoke", "shrink", "fence", "split", "record")

pytestmark = pytest.mark.mpi


def run(ranks: int, kills: Sequence[tuple[int, str, int]], **options: Any) -> JobResult:
    arguments = json.dumps({"kills": kills, **options})
    return run_ranks(PROGRAMS / "steps.py", ranks, [arguments], timeout=90)


def told(job: JobResult, survivors: Sequence[int]) -> list[Any]:
    """Check that the survivors finished and were all told the same; return what.

    How many rounds a repair took is not common knowledge of interest.
    """
    assert job.returncode == 0, job.stderr
    everyone = [job.lines[rank] for rank in survivors]
    assert all(lines == everyone[0] for lines in everyone), job.lines
    *repairs, last = everyone[0]
    assert last["members"] == list(survivors)
    assert last["epoch"] == len(repairs)
    for repair in repairs:
        assert repair["records"] == [[rank, 100 * repair["step"]] for rank in repair["members"]]
    for rank, lines in job.lines.items():
        assert rank in survivors or "done" not in lines[-1]
    return [{key: repair[key] for key in repair if key != "rounds"} for repair in repairs]


@pytest.mark.parametrize("order", [(0, 5, 3, 1, 4), (4, 0, 2, 5, 1)])
def test_a_rank_dies_in_every_place_down_to_one(order: tuple[int, ...]) -> None:
    kills = [
        (rank, place, step) for step, (rank, place) in enumerate(zip(order, PLACES, strict=True))
    ]
    survivors = sorted(set(range(6)) - set(order))
    tables = [told(run(6, kills, detection=mode), survivors) for mode in MODES]
    assert tables[0][:4] == tables[1][:4]  # both ways to detect come to the same
    for table in tables:
        assert [repair["failed"] for repair in table] == [[rank] for rank in order]
        *steps, last = [repair["step"] for repair in table]
        assert steps == [0, 1, 2, 3]
        # A death after a step is agreed on is one of the next step; except that who learns the
        # outcome first and dies with it leaves the others to agree once more.
        assert last in {4, 5}


@pytest.mark.parametrize("second", [0, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_a_second_rank_dies_in_a_phase_of_the_repair(phase: str, second: int) -> None:
    job = run(5, [(2, "inside", 1), (second, phase, 1)])
    survivors = [rank for rank in range(5) if rank not in {2, second}]
    repairs = told(job, survivors)
    assert sorted(rank for repair in repairs for rank in repair["failed"]) == sorted([2, second])
    assert {repair["step"] for repair in repairs} == {1}


def test_ranks_die_in_all_phases_of_one_repair() -> None:
    kills = [(0, "between", 1), *((rank, phase, 1) for rank, phase in enumerate(PHASES, start=1))]
    repairs = told(run(7, kills), [6])
    assert sorted(rank for repair in repairs for rank in repair["failed"]) == list(range(6))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ranks", "victims", "place"),
    [
        (4, (1, 2), "inside"),
        (4, (0, 1), "between"),
        (4, (0, 3), "after"),
        (6, (0, 2, 4), "inside"),
        (6, (1, 2, 3, 4, 5), "idle"),
        (4, (0, 1, 2), "committed"),
        (2, (0,), "between"),
    ],
)
def test_several_die_at_once(ranks: int, victims: Sequence[int], place: str, mode: str) -> None:
    job = run(ranks, [(rank, place, 2) for rank in victims], detection=mode)
    repairs = told(job, [rank for rank in range(ranks) if rank not in victims])
    assert sorted(rank for repair in repairs for rank in repair["failed"]) == sorted(victims)


@pytest.mark.parametrize("replica_size", [2, 3])
@pytest.mark.parametrize("place", ["inside", "after"])
def test_a_death_condemns_the_replica(replica_size: int, place: str) -> None:
    job = run(6, [(1, place, 1)], replica_size=replica_size)
    repairs = told(job, list(range(replica_size, 6)))
    assert [repair["failed"] for repair in repairs] == [list(range(replica_size))]


@pytest.mark.parametrize(
    ("replica_size", "phase", "second"),
    [
        *((2, phase, 3) for phase in PHASES),
        *((3, phase, 8) for phase in ("split", "record")),
        (2, "split", 0),  # one that the first death condemns anyway
    ],
)
def test_replicas_die_one_after_the_other(replica_size: int, phase: str, second: int) -> None:
    job = run(3 * replica_size, [(1, "inside", 1), (second, phase, 1)], replica_size=replica_size)
    lost = {1 // replica_size, second // replica_size}
    survivors = [r for r in range(3 * replica_size) if r // replica_size not in lost]
    repairs = told(job, survivors)
    failed = itertools.chain.from_iterable(repair["failed"] for repair in repairs)
    assert sorted(failed) == [r for r in range(3 * replica_size) if r not in survivors]


def test_two_positions_of_two_replicas_die_at_once() -> None:
    job = run(8, [(0, "inside", 1), (5, "inside", 1)], replica_size=2)
    repairs = told(job, [2, 3, 6, 7])
    failed = itertools.chain.from_iterable(repair["failed"] for repair in repairs)
    assert sorted(failed) == [0, 1, 4, 5]

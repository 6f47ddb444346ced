"""The collectives without failures, on real ranks, against numpy."""

from pathlib import Path

import pytest

from ulfm_core.testing import run_ranks

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("ranks", range(1, 8))
def test_every_type_operation_and_size(ranks: int) -> None:
    job = run_ranks(PROGRAMS / "reductions.py", ranks)
    assert job.returncode == 0, job.stderr
    said = [job.lines[rank] for rank in range(ranks)]
    assert said == said[:1] * ranks  # the same bits on every rank
    assert said[0][0]["cases"] == 435


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_broadcast_all_gather_and_barrier(ranks: int) -> None:
    job = run_ranks(PROGRAMS / "moves.py", ranks)
    assert job.returncode == 0, job.stderr
    assert all(job.lines[rank][0]["waited"] > 0.3 for rank in range(ranks))


@pytest.mark.parametrize("program", ["reductions.py", "moves.py"])
def test_guarded_detection_gives_the_same(program: str) -> None:
    guarded = run_ranks(PROGRAMS / program, 3, ["guarded"])
    assert guarded.returncode == 0, guarded.stderr
    if program == "reductions.py":
        deferred = run_ranks(PROGRAMS / program, 3)
        assert deferred.returncode == 0, deferred.stderr
        assert guarded.lines == deferred.lines

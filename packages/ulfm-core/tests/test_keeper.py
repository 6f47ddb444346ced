"""A rank that is stopped is ended from outside, and nobody else is."""

import time
from pathlib import Path

import pytest

from ulfm_core.testing import JobResult, run_ranks

PROGRAM = Path(__file__).parent / "programs" / "kept.py"

pytestmark = pytest.mark.mpi


def run(case: str) -> JobResult:
    job = run_ranks(PROGRAM, 3, [case])
    assert job.returncode == 0, job.stderr
    until = time.monotonic() + 2
    while keepers := [line["keeper"] for lines in job.lines.values() for line in lines[:1]]:
        if not any(is_keeper(pid) for pid in keepers):
            break
        assert time.monotonic() < until, "a keeper has outlived its rank"
    return job


def is_keeper(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return "ulfm-keeper" in status and "State:\tZ" not in status


@pytest.mark.parametrize("case", ["stopped", "signalled"])
def test_a_stopped_rank_is_killed_after_its_step_limit(case: str) -> None:
    job = run(case)
    assert [job.lines[rank][1:] for rank in range(3)] == [
        [{"members": [0, 2]}], [], [{"members": [0, 2]}],
    ]  # fmt: skip
    assert (
        "rank 1 (replica 1, position 0): its process has been stopped for 1.5 s, at: step 7,"
        " forward; its keeper kills it" in job.stderr
    )


@pytest.mark.parametrize("case", ["unlimited", "frozen"])
def test_who_is_stopped_without_a_limit_or_as_a_whole_goes_on(case: str) -> None:
    job = run(case)
    assert [job.lines[rank][1:] for rank in range(3)] == [[{"members": [0, 1, 2]}]] * 3
    assert job.stderr == ""


def test_a_keeper_ends_with_its_rank() -> None:
    job = run("dead")
    assert job.lines[0][1:] == [{"members": [0, 2]}]
    assert "keeper" not in job.stderr

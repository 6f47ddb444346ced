"""The way out: exit codes, partings, and ranks that end in ways of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ulfm_core.launch.mpirun import find_mpirun, mpirun_options
from ulfm_core.testing import JobResult, run_ranks

PROGRAM = Path(__file__).parent / "programs" / "leaving.py"

pytestmark = pytest.mark.mpi


def run(case: str, ranks: int = 3) -> JobResult:
    return run_ranks(PROGRAM, ranks, [case])


def plain(folder: Path, *words: str, ranks: int = 3) -> "subprocess.CompletedProcess[str]":
    """Run under mpirun itself, without ulfmrun."""
    command: list[Any] = [
        find_mpirun().path, "-n", ranks, "--map-by", "slot:OVERSUBSCRIBE", *mpirun_options(),
        sys.executable, *words,
    ]  # fmt: skip
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "ULFM_TESTING_FOLDER": str(folder), "OMPI_ALLOW_RUN_AS_ROOT": "1",
             "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("case", "code"),
    [("return", 0), ("exit-3", 3), ("exit-system", 3), ("leave-5", 5), ("threads", 0)],
)
def test_all_ranks_end_alike(case: str, code: int) -> None:
    job = run(case)
    assert job.returncode == code, job.stderr
    if case != "exit-system":
        assert all({"consensus": True} in job.lines[rank] for rank in range(3))
    if case != "leave-5":  # leave() runs no exit functions
        assert all({"at_exit": True} in job.lines[rank] for rank in range(3))


@pytest.mark.parametrize("case", ["one-exits-3", "exception", "abort", "one-returns-early"])
def test_a_rank_that_ends_alone_is_one_more_failure(case: str) -> None:
    job = run(case)
    for rank in (0, 2):
        line = next(line for line in job.lines[rank] if "failed" in line)
        assert line["failed"] == [1]
        assert line.get("seconds", 0) < 3  # it does not hold the others up in MPI_Finalize
    assert job.returncode == 0, job.stderr  # the others finished the job
    assert "lost: rank 1" in job.stderr
    if case == "exception":
        assert "ArithmeticError: rank 1 had enough" in job.stderr


def test_an_exception_everywhere_fails_the_job() -> None:
    job = run("all-raise")
    assert job.returncode == 1
    assert job.stderr.count("ArithmeticError: we all had enough\n") == 3


def test_survivors_leave_after_failures() -> None:
    job = run("after-failures", ranks=4)
    assert job.returncode == 0, job.stderr
    assert {"members": [1, 2, 3]} in job.lines[1]
    assert {"members": [1, 2, 3]} in job.lines[3]


def test_a_forked_child_is_not_the_rank() -> None:
    job = run("fork")
    assert job.returncode == 0, job.stderr
    for rank in range(3):
        assert {"child_code": 7} in job.lines[rank]
        assert {"consensus": True} in job.lines[rank]
        assert any("fork" in line.get("child", "") for line in job.lines[rank])


def test_operations_nobody_waits_for_are_done_first() -> None:
    assert run("works-left").returncode == 0


@pytest.mark.parametrize("case", ["return", "exit-3", "exit-system", "one-exits-3", "all-raise"])
def test_without_ulfmrun(case: str, tmp_path: Path) -> None:
    # mpirun's own code says little after failures, so each rank notes its own.
    noted = tmp_path / "codes"
    shell = (
        "import subprocess, sys; code = subprocess.run(sys.argv[2:]).returncode;"
        " open(sys.argv[1], 'a').write(f'{code} '); sys.exit(code)"
    )
    job = plain(tmp_path, "-c", shell, str(noted), sys.executable, str(PROGRAM), case)
    wanted = {"return": "000", "exit-3": "333", "exit-system": "333", "one-exits-3": "003"}
    assert sorted(noted.read_text().split()) == list(wanted.get(case, "111")), job.stderr

"""A user's mistakes are refused in one clear sentence, on every rank, and do no harm."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ulfm_core.launch.mpirun import find_mpirun
from ulfm_core.testing import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "misuse.py"
INIT = "import ulfm_core; ulfm_core.init()"


def refusals(case: str, ranks: int) -> dict[str, Any]:
    job = run_ranks(PROGRAM, ranks, [case])
    assert job.returncode == 0, job.stderr
    said = [job.lines[rank] for rank in range(ranks)]
    assert all(lines == said[0] for lines in said)
    return {line["case"]: line for line in said[0]}


@pytest.mark.mpi
def test_arguments_of_init() -> None:
    said = refusals("arguments", 3)
    for name, words in {
        "replica size": "replica size 4 does not divide the 3 ranks",
        "no replica size": "replica size 0 does not divide",
        "detection": "detection 'eager' is unknown: use 'deferred' or 'guarded'",
        "wait limit": "wait_limit 0 is not positive",
        "recovery limit": "recovery_limit nan is not positive",
        "twice": "init() was called twice",
        "step limit": "a step limit of -1 s is negative",
    }.items():
        assert words in said[name]["words"]
        assert {"UsageError", "ValueError"} <= set(said[name]["kinds"])


@pytest.mark.mpi
def test_buffers() -> None:
    said = refusals("buffers", 3)
    for name, (kind, words) in {
        "not contiguous": ("ValueError", "not a C-contiguous, writable buffer"),
        "complex": ("TypeError", "'Zd' cannot be reduced; use float64/32/16"),
        "big endian": ("TypeError", "'>f' cannot be reduced"),
        "unsigned": ("TypeError", "'I' cannot be reduced"),
        "no buffer": ("TypeError", "'list' offers neither the buffer protocol nor __dlpack__"),
        "read-only": ("ValueError", "not a C-contiguous, writable buffer"),
        "bytes": ("ValueError", "not a C-contiguous, writable buffer"),
        "other type": ("ValueError", "64 elements of float32, destination 64 of float64"),
        "other size": ("ValueError", "destination 63 of float32, expected 64"),
        "overlap": ("ValueError", "source and destination overlap"),
        "operation": ("UsageError", "operation 'mean' is unknown: use sum, min, max or prod"),
        "spare": ("UsageError", "only a sum can be joined without adding to it"),
        "root": ("UsageError", "root 3 is not in 0..2"),
        "gather size": ("ValueError", "expected 192"),
        "gather overlap": ("ValueError", "source and destination overlap"),
        "used capsule": ("TypeError", "no fresh 'dltensor' capsule"),
    }.items():
        assert words in said[name]["words"], said[name]
        assert kind in said[name]["kinds"], said[name]


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_disagree_on_the_size(ranks: int) -> None:
    job = run_ranks(PROGRAM, ranks, ["mismatch"])
    lines = [line for rank in range(ranks) for line in job.lines[rank]]
    assert any("a peer sent" in line["words"] or "truncated" in line["words"]
               for line in lines if "case" in line)  # fmt: skip
    # Nobody was lost over it.
    assert sum(line == {"members": list(range(ranks))} for line in lines) == ranks


@pytest.mark.mpi
def test_ranks_that_disagree_on_init() -> None:
    job = run_ranks(PROGRAM, 2, ["different arguments"])
    for rank in range(2):
        (line,) = job.lines[rank]
        assert "UlfmError" in line["kinds"]
        assert "different replica sizes, 1 to 2: give all the same" in line["words"]


@pytest.mark.mpi
def test_a_rank_that_dies_while_the_world_is_set_up() -> None:
    job = run_ranks(PROGRAM, 3, ["dies in init"])
    refused = [line["kinds"] for lines in job.lines.values() for line in lines]
    assert all("UlfmError" in kinds for kinds in refused), job.lines
    # MPI may stall in it; then the guard has the last word.
    assert len(refused) + job.stderr.count("'set-up' has not returned for 20.0 s") == 2, job.stderr


@pytest.mark.mpi
def test_a_rank_that_never_joins() -> None:
    # The others are inside MPI_Init, which never returns; the wait limit ends them there.
    job = run_ranks(PROGRAM, 3, ["never joins"])
    assert job.lines == {}
    assert job.stderr.count("Timeout (0:00:02)!") == 2
    assert "in _load_mpi" in job.stderr


@pytest.mark.mpi
def test_mpirun_without_fault_tolerance(tmp_path: Path) -> None:
    job = subprocess.run(
        [str(find_mpirun().path), "--allow-run-as-root", "-n", "1", sys.executable, "-c", INIT],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert job.returncode != 0
    assert "started without fault tolerance: use ulfmrun" in job.stderr


def test_without_mpirun() -> None:
    job = subprocess.run(
        [sys.executable, "-c", INIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert job.returncode == 1
    assert job.stderr.strip().splitlines()[-1] == (
        "ulfm_core.errors.NotLaunchedError: this process is not a rank of an MPI job: start the"
        " program with `ulfmrun -n N program.py`"
    )

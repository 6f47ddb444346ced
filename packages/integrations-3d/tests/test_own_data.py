"""The example of the README: a Nanotron configuration of one's own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grad_txn.log.history import read_history
from grad_txn.log.verify import verify

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("nanotron") is None, reason="Nanotron is not installed"
    ),
]

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_it_trains_logs_and_saves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ulfm_core.launch", "-n", "4"]
    program = [str(EXAMPLES / "own_data.py"), str(EXAMPLES / "tiny.yaml"), "run"]
    job = subprocess.run(
        command + program,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert job.returncode == 0, job.stderr
    assert verify(tmp_path / "run").problems == ()
    steps = read_history(tmp_path / "run").steps
    assert len(steps) == 4
    assert steps[-1].loss < steps[0].loss
    # Nanotron's own log, from one replica; its checkpoint, with what is ours.
    assert job.stdout.count("iteration: 4 / 4") == 1
    assert (tmp_path / "checkpoints" / "latest.txt").read_text() == "4"
    assert (tmp_path / "checkpoints" / "4" / "grad_txn.json").is_file()

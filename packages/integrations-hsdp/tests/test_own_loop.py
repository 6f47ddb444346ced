"""The README's loop of one's own, run as a user runs it."""

from pathlib import Path

import pytest

from grad_txn.log.history import read_history
from grad_txn.verify import main as verify
from ulfm_core.testing import run_ranks

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

PROGRAM = Path(__file__).parents[1] / "examples" / "own_loop.py"


def test_it_loses_world_rank_0_and_keeps_its_batch(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = run_ranks(PROGRAM, 4, ["--out", str(out), "--kill", "3:0"])

    assert job.returncode == 0, job.stderr
    assert "lost: rank 0" in job.stderr
    assert "!! step 3: lost replica 0" in job.stdout
    assert verify([str(out)]) == 0
    steps = read_history(out).steps
    assert [step.total for step in steps] == [16] * 8
    assert steps[-1].loss < steps[0].loss


def test_the_failure_changes_no_loss(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for out, more in ((whole, []), (killed, ["--kill", "2:1"])):
        job = run_ranks(PROGRAM, 3, ["--out", str(out), *more])
        assert job.returncode == 0, job.stderr

    losses = [step.loss for step in read_history(whole).steps]
    assert len(losses) == 8
    assert [step.loss for step in read_history(killed).steps] == pytest.approx(losses, rel=1e-5)

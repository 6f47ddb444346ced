"""What the log and the report say of how long a recovery took."""

from pathlib import Path

import pytest
from jobs import Case, Trainer

from grad_txn.failures import At, Kill
from grad_txn.log.history import read_history
from grad_txn.report import main as report

pytestmark = [pytest.mark.mpi, pytest.mark.torch]


def test_every_recovery_is_timed_and_told(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = (
        Kill(step=1, replica=0, at=At.DURING_SYNC),
        Kill(step=3, replica=2, at=At.FORWARD),
    )
    run = trainer.run(Case(replicas=4, grad_accum=3, steps=6, policy="exact", kills=kills))
    assert run.code == 0, run.said
    history = read_history(run.out)
    assert [recovery.step for recovery in history.recoveries] == [1, 3]
    whole = max(line["time"] for line in run.of("exit")) - min(
        line["time"] for line in run.of("start")
    )
    for recovery, extra in zip(history.recoveries, (3, 4), strict=True):
        assert recovery.overhead is not None
        assert 0 < recovery.overhead < whole
        parts = (recovery.detect, recovery.repair, recovery.record, recovery.restore)
        assert all(0 <= part < whole for part in parts)
        assert recovery.repair > 0
        assert recovery.extra == extra
    assert history.median_overhead is not None
    assert report([str(run.out)]) == 0
    capsys.readouterr()
    page = Path(run.out, "report.html").read_text()
    for word in ("detect", "repair", "record", "restore"):
        assert word in page
    assert Path(run.out, "report.png").stat().st_size > 10_000


def test_a_lost_replica_is_told_rank_by_rank(
    trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    kills = (
        Kill(step=1, replica=0, position=0, at=At.DURING_SYNC),
        Kill(step=3, replica=2, position=1, at=At.FORWARD),
    )
    case = Case(
        replicas=3, grad_accum=2, steps=5, policy="exact", shard_size=2, batch=2, kills=kills
    )
    run = trainer.run(case)
    assert run.code == 0, run.said
    history = read_history(run.out)
    assert [(death.replica, death.positions) for death in history.deaths] == [(0, (0,)), (2, (1,))]
    for death in history.deaths:
        # By the peer's own last line: it was alive when its peer died, and gone before the commit.
        assert death.gone is not None
        assert death.gone > 0
    for line in run.of("exit"):
        assert line["code"] == 0 or "of its replica died" in line["reason"]
    assert report([str(run.out)]) == 0
    said = capsys.readouterr().out
    assert "replica 0 (rank 0, during sync)" in said
    assert "replica 2 (rank 1, forward)" in said
    assert "exit of a dead rank's last peer" in said

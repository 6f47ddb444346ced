import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grad_txn.errors import LogError
from grad_txn.failures import At, Kill
from grad_txn.log.lines import CommitLine, FailureLine
from grad_txn.log.metrics import MetricsSink, export_metrics
from grad_txn.testing.played import play_run

pytestmark = pytest.mark.timeout(120)

KILLS = [Kill(step=2, replica=0, at=At.DURING_SYNC), Kill(step=5, replica=2, at=At.DURING_SYNC)]
STEP = CommitLine(
    step=4, epoch=1, generation=0, loss=2.5, grad_norm=float("inf"),
    living=3, total=32, boundary=False,
    extra=0, plan="0123456789abcde", seconds=0.5, tokens=100,
)  # fmt: skip
FAILURE = FailureLine(
    step=5, epoch=2, failed=[1, 2], failed_ranks=[1, 2], boundary=False, restore="blocking",
    promoted={}, extra_ids={}, queued=[], contributions={0: 32},
)  # fmt: skip


def samples(out: Path) -> dict[str, float]:
    lines = (out / "metrics.prom").read_text().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line[0] != "#"]
    return {name: float(value) for name, value in pairs if not name.endswith("_created")}


def scalars(out: Path, name: str) -> list[tuple[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_prometheus_gets_the_newest_values_and_the_totals(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with MetricsSink(tmp_path, prometheus=True) as sink:
        sink.step(STEP)
        sink.failure(FAILURE, seconds=0.25)
        sink.step(replace(STEP, step=5, living=1, epoch=2))
    assert samples(tmp_path) == {
        "grad_txn_step": 5,
        "grad_txn_loss": 2.5,
        "grad_txn_grad_norm": float("inf"),
        "grad_txn_replicas": 1,
        "grad_txn_epoch": 2,
        "grad_txn_failures_total": 1,
        "grad_txn_replicas_lost_total": 2,
        "grad_txn_recovery_seconds_total": 0.25,
        "grad_txn_tokens_total": 200,
    }


def test_a_leader_that_takes_over_goes_on_counting(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with MetricsSink(tmp_path, prometheus=True, totals={"failures": 3, "tokens": 1000}) as sink:
        sink.step(STEP)
    assert samples(tmp_path)["grad_txn_failures_total"] == 3
    assert samples(tmp_path)["grad_txn_tokens_total"] == 1100


def test_tensorboard_gets_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with MetricsSink(tmp_path, tensorboard=True) as sink:
        sink.step(STEP)
        sink.failure(FAILURE, seconds=0.25)
        sink.step(replace(STEP, step=5, loss=2.0), at=1.7e9)
    assert scalars(tmp_path, "train/loss") == [(4, 2.5), (5, 2.0)]
    assert scalars(tmp_path, "failures/recovery_seconds") == [(5, 0.25)]


def test_the_log_can_be_exported_afterwards(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("tensorboard")
    play_run(tmp_path, kills=KILLS)
    export_metrics(tmp_path, tensorboard=True, prometheus=True)
    found = samples(tmp_path)
    assert (found["grad_txn_step"], found["grad_txn_replicas"]) == (7, 2)
    assert (found["grad_txn_failures_total"], found["grad_txn_tokens_total"]) == (2, 8 * 32 * 512)
    assert [value for _, value in scalars(tmp_path, "world/replicas")] == [4, 4, 3, 3, 3, 2, 2, 2]
    assert [step for step, _ in scalars(tmp_path, "failures/replicas_lost")] == [2, 5]


def test_the_times_are_those_of_the_log(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    play_run(tmp_path, steps=2, begin=1.7e9)
    export_metrics(tmp_path, tensorboard=True)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    times = [event.wall_time for event in events.Scalars("time/step_seconds")]
    assert times == [pytest.approx(1.7e9 + 0.26), pytest.approx(1.7e9 + 0.52)]


def test_a_closed_sink_may_be_closed_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with MetricsSink(tmp_path, tensorboard=True) as sink:
        sink.close()


def test_nothing_is_written_unasked(tmp_path: Path) -> None:
    with MetricsSink(tmp_path) as sink:
        sink.step(STEP)
        sink.failure(FAILURE, seconds=0.25)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="file: cannot be written"):
        MetricsSink(tmp_path / "file")


@pytest.mark.parametrize(
    ("library", "option", "message"),
    [
        ("prometheus_client", "prometheus", "pip install 'grad-txn[prometheus]'"),
        ("tensorboard", "tensorboard", "pip install 'grad-txn[tensorboard]'"),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, library: str, option: str, message: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from grad_txn.errors import ExtraMissingError\n"
        "from grad_txn.log.metrics import MetricsSink\n"
        f"try: MetricsSink(sys.argv[1], {option}=True)\n"
        "except ExtraMissingError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert message in done.stdout

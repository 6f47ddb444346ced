"""A run's numbers for TensorBoard and Prometheus.

One rank, the leader, feeds a `MetricsSink` while the job runs; `export_metrics` feeds one from the
event log afterwards. TensorBoard gets ``<out>/tensorboard`` (extra ``grad-txn[tensorboard]``), the
node exporter's text file collector gets ``<out>/metrics.prom`` (extra ``grad-txn[prometheus]``),
replaced as a whole at each step.
"""

import os
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Self

from grad_txn.errors import ExtraMissingError, LogError
from grad_txn.log.history import Recovery, Step, read_history
from grad_txn.log.lines import CommitLine, FailureLine

__all__ = ["MetricsSink", "export_metrics"]


class MetricsSink:
    """Takes a run's steps and failures; a `grad_txn.log.observer.Observer`.

    Args:
        out: Directory of the run.
        tensorboard: Write TensorBoard scalars.
        prometheus: Write the Prometheus text file.
        totals: What the counters stand at already, for a leader that takes over or a job that
            resumes: ``failures``, ``replicas_lost``, ``recovery_seconds``, ``tokens``.

    Raises:
        ExtraMissingError: What was asked for is not installed.
        LogError: The directory cannot be written.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        tensorboard: bool = False,
        prometheus: bool = False,
        totals: Mapping[str, float] | None = None,
    ) -> None:
        out = Path(out)
        self._scalars: _Scalars | None = None
        self._textfile: _TextFile | None = None
        try:
            out.mkdir(parents=True, exist_ok=True)
            if tensorboard:
                self._scalars = _Scalars(out / "tensorboard")
            if prometheus:
                self._textfile = _TextFile(out / "metrics.prom", totals or {})
        except OSError as error:
            raise LogError(f"{out}: cannot be written: {error.strerror}") from error

    def step(self, line: CommitLine | Step, *, at: float | None = None) -> None:
        """Take one committed step.

        Args:
            line: Its line, or the step as it stands in a `History`.
            at: When it was committed, in seconds since the epoch; now by default.
        """
        if self._scalars is not None:
            scalars = {
                "train/loss": line.loss,
                "train/grad_norm": line.grad_norm,
                "train/microbatches": line.total,
                "time/step_seconds": line.seconds,
                "world/replicas": line.living,
                "world/epoch": line.epoch,
            }
            self._scalars.write(scalars, step=line.step, at=at)
        if self._textfile is not None:
            self._textfile.step(line)

    def failure(
        self, line: FailureLine | Recovery, *, seconds: float, at: float | None = None
    ) -> None:
        """Take one failure, once it has been decided upon.

        Args:
            line: Its line, or the recovery as it stands in a `History`.
            seconds: What the recovery has taken, without extra microbatches.
            at: When it was over, in seconds since the epoch; now by default.
        """
        if self._scalars is not None:
            scalars = {
                "failures/replicas_lost": len(line.failed),
                "failures/recovery_seconds": seconds,
            }
            self._scalars.write(scalars, step=line.step, at=at)
        if self._textfile is not None:
            self._textfile.failure(len(line.failed), seconds)

    def close(self) -> None:
        """Flush what is buffered. Safe to repeat."""
        if self._scalars is not None:
            self._scalars.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def export_metrics(
    directory: str | os.PathLike[str], *, tensorboard: bool = False, prometheus: bool = False
) -> None:
    """Write the metrics of a run from its event log.

    Args:
        directory: Directory of the run, the one that holds ``events/``; the output goes there too.
        tensorboard: Write TensorBoard scalars.
        prometheus: Write the Prometheus text file, as of the last step.

    Raises:
        LogError: The log cannot be read, or the output cannot be written.
        ExtraMissingError: What was asked for is not installed.
    """
    history = read_history(directory)
    recoveries = list(history.recoveries)
    with MetricsSink(directory, tensorboard=tensorboard, prometheus=prometheus) as sink:
        for step in history.steps:
            while recoveries and recoveries[0].step <= step.step:
                recovery = recoveries.pop(0)
                sink.failure(recovery, seconds=recovery.work, at=step.time)
            sink.step(step, at=step.time)


class _Scalars:
    """An event file for TensorBoard, as torch's ``SummaryWriter`` writes it, but without torch."""

    def __init__(self, directory: Path) -> None:
        # By name: tensorboard declares no types, and need not be installed to check these.
        try:
            writer = import_module("tensorboard.summary.writer.event_file_writer")
            self._events = import_module("tensorboard.compat.proto.event_pb2")
            self._summaries = import_module("tensorboard.compat.proto.summary_pb2")
        except ModuleNotFoundError as error:
            raise ExtraMissingError(
                "writing TensorBoard scalars", library="tensorboard", extra="tensorboard"
            ) from error
        self._writer = writer.EventFileWriter(os.fspath(directory))

    def write(self, scalars: Mapping[str, float], *, step: int, at: float | None) -> None:
        """Write values of one step: tag -> value."""
        when = time.time() if at is None else at
        for tag, number in scalars.items():
            value = self._summaries.Summary.Value(tag=tag, simple_value=number)
            summary = self._summaries.Summary(value=[value])
            event = self._events.Event(summary=summary, step=step, wall_time=when)
            self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


class _TextFile:
    """``metrics.prom``: the newest values, in a registry that no other library shares."""

    def __init__(self, path: Path, totals: Mapping[str, float]) -> None:
        try:
            import prometheus_client
        except ModuleNotFoundError as error:
            raise ExtraMissingError(
                "the Prometheus text file", library="prometheus-client", extra="prometheus"
            ) from error
        self._path = path
        self._write = prometheus_client.write_to_textfile
        self._registry = prometheus_client.CollectorRegistry()
        gauges = {
            "step": "Last committed optimizer step",
            "loss": "Mean loss of the last committed step",
            "grad_norm": "Gradient norm of the last committed step",
            "replicas": "Living replicas",
            "epoch": "World epoch",
        }
        self._gauges = {
            name: prometheus_client.Gauge(f"grad_txn_{name}", text, registry=self._registry)
            for name, text in gauges.items()
        }
        counters = {
            "failures": "Failures recovered from",
            "replicas_lost": "Replicas lost",
            "recovery_seconds": "Time spent in recoveries, without extra microbatches",
            "tokens": "Tokens committed",
        }
        self._counters = {
            name: prometheus_client.Counter(f"grad_txn_{name}", text, registry=self._registry)
            for name, text in counters.items()
        }
        for name, value in totals.items():
            self._counters[name].inc(value)

    def step(self, step: CommitLine | Step) -> None:
        values = {
            "step": step.step,
            "loss": step.loss,
            "grad_norm": step.grad_norm,
            "replicas": step.living,
            "epoch": step.epoch,
        }
        for name, gauge in self._gauges.items():
            gauge.set(values[name])
        self._counters["tokens"].inc(step.tokens)
        self._write(os.fspath(self._path), self._registry)

    def failure(self, lost: int, seconds: float) -> None:
        self._counters["failures"].inc()
        self._counters["replicas_lost"].inc(lost)
        self._counters["recovery_seconds"].inc(seconds)

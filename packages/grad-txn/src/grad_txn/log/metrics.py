"""A run's numbers for TensorBoard and Prometheus.

One rank, the leader, feeds a `MetricsSink` while the job runs; `export_metrics` feeds one from the
event log afterwards. TensorBoard gets ``<out>/tensorboard`` (extra ``grad-txn[tensorboard]``), the
node exporter's text file collector gets ``<out>/metrics.prom`` (extra ``grad-txn[prometheus]``),
replaced as a whole at each step.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from grad_txn.errors import ExtraMissingError, LogError
from grad_txn.history import read_history

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["MetricsSink", "export_metrics"]


class MetricsSink:
    """Takes step and failure lines, in the form of the event log, as the leader writes them.

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
        self._scalars: SummaryWriter | None = None
        self._textfile: _TextFile | None = None
        try:
            out.mkdir(parents=True, exist_ok=True)
            if tensorboard:
                self._scalars = _summary_writer(out / "tensorboard")
            if prometheus:
                self._textfile = _TextFile(out / "metrics.prom", totals or {})
        except OSError as error:
            raise LogError(f"{out}: cannot be written: {error.strerror}") from error

    def step(self, line: Mapping[str, Any]) -> None:
        """Take the step line of one committed step.

        Args:
            line: Fields of the ``step`` event; ``time`` may be left out.
        """
        if self._scalars is not None:
            scalars = {
                "train/loss": float(line["loss"]),
                "train/grad_norm": float(line["grad_norm"]),
                "train/microbatches": line["total"],
                "time/step_seconds": line["seconds"],
                "world/replicas": line["replicas"],
                "world/epoch": line["epoch"],
            }
            for name, value in scalars.items():
                self._scalars.add_scalar(name, value, line["step"], walltime=line.get("time"))
        if self._textfile is not None:
            self._textfile.step(line)

    def failure(self, line: Mapping[str, Any], *, seconds: float = 0.0) -> None:
        """Take the failure line of one recovery, once it is over.

        Args:
            line: Fields of the ``failure`` event.
            seconds: What the recovery took: detect, repair, record, restore, reduce again.
        """
        if self._scalars is not None:
            for name, value in {
                "failures/replicas_lost": len(line["failed"]),
                "failures/recovery_seconds": seconds,
            }.items():
                self._scalars.add_scalar(name, value, line["step"], walltime=line.get("time"))
        if self._textfile is not None:
            self._textfile.failure(line, seconds)

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
                sink.failure(
                    {
                        "step": recovery.step,
                        "time": step.time,
                        "failed": [death.replica for death in recovery.deaths],
                    },
                    seconds=recovery.work,
                )
            sink.step(
                {
                    name: getattr(step, name)
                    for name in (
                        "step", "time", "loss", "grad_norm", "total", "seconds", "replicas",
                        "epoch", "tokens",
                    )
                }
            )  # fmt: skip


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

    def step(self, line: Mapping[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            gauge.set(float(line[name]))
        self._counters["tokens"].inc(line["tokens"])
        self._write(os.fspath(self._path), self._registry)

    def failure(self, line: Mapping[str, Any], seconds: float) -> None:
        self._counters["failures"].inc()
        self._counters["replicas_lost"].inc(len(line["failed"]))
        self._counters["recovery_seconds"].inc(seconds)


def _summary_writer(directory: Path) -> "SummaryWriter":
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ExtraMissingError(
            "writing TensorBoard scalars", library="tensorboard", extra="tensorboard"
        ) from error
    return SummaryWriter(os.fspath(directory))

"""One optimizer step as a transaction: it survives dying ranks and keeps its batch.

A training program makes a `Job` over `Gradients` and iterates over its steps (needs the extra
``grad-txn[train]``: torch and ulfm-core). What reads the log of a run (`write_report`, and
`grad_txn.log.verify`) needs neither.
"""

import importlib.metadata
from typing import TYPE_CHECKING

from grad_txn.errors import (
    CheckpointError,
    DivergenceError,
    ExtraMissingError,
    GradTxnError,
    InvariantError,
    LogError,
    ScheduleError,
    UsageError,
)
from grad_txn.lazily import exporter

if TYPE_CHECKING:
    from grad_txn.checkpoint import Checkpoints
    from grad_txn.communicator import Control, Reducer
    from grad_txn.failures import At, FailureInjector, Kill
    from grad_txn.gradients import Gradients
    from grad_txn.job import Job
    from grad_txn.log.console import Console
    from grad_txn.log.events import EventLog
    from grad_txn.log.history import read_history
    from grad_txn.log.metrics import MetricsSink, export_metrics
    from grad_txn.log.observer import Observer
    from grad_txn.log.report import write_report
    from grad_txn.passes import Pass
    from grad_txn.reduction import Reduced
    from grad_txn.replica import Joined, join, lone_world, replica_world
    from grad_txn.step import Step

__all__ = [
    "At",
    "CheckpointError",
    "Checkpoints",
    "Console",
    "Control",
    "DivergenceError",
    "EventLog",
    "ExtraMissingError",
    "FailureInjector",
    "GradTxnError",
    "Gradients",
    "InvariantError",
    "Job",
    "Joined",
    "Kill",
    "LogError",
    "MetricsSink",
    "Observer",
    "Pass",
    "Reduced",
    "Reducer",
    "ScheduleError",
    "Step",
    "UsageError",
    "__version__",
    "export_metrics",
    "join",
    "lone_world",
    "read_history",
    "replica_world",
    "write_report",
]

__version__ = importlib.metadata.version("grad-txn")

__getattr__ = exporter(
    __name__,
    {
        "At": "grad_txn.failures",
        "Checkpoints": "grad_txn.checkpoint",
        "Console": "grad_txn.log.console",
        "Control": "grad_txn.communicator",
        "EventLog": "grad_txn.log.events",
        "FailureInjector": "grad_txn.failures",
        "Gradients": "grad_txn.gradients",
        "Job": "grad_txn.job",
        "Joined": "grad_txn.replica",
        "Kill": "grad_txn.failures",
        "MetricsSink": "grad_txn.log.metrics",
        "Observer": "grad_txn.log.observer",
        "Pass": "grad_txn.passes",
        "Reduced": "grad_txn.reduction",
        "Reducer": "grad_txn.communicator",
        "Step": "grad_txn.step",
        "export_metrics": "grad_txn.log.metrics",
        "join": "grad_txn.replica",
        "lone_world": "grad_txn.replica",
        "read_history": "grad_txn.log.history",
        "replica_world": "grad_txn.replica",
        "write_report": "grad_txn.log.report",
    },
)

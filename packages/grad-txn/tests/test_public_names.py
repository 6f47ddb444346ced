"""What the root of the package offers, and that offering it costs nothing."""

import importlib.metadata
import subprocess
import sys

import pytest

import grad_txn
from grad_txn.errors import ExtraMissingError
from grad_txn.lazily import exporter

NAMES = [
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


def test_the_names_are_these() -> None:
    assert sorted(grad_txn.__all__) == NAMES
    assert grad_txn.__version__ == importlib.metadata.version("grad-txn")


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_each_is_there(name: str) -> None:
    assert getattr(grad_txn, name) is not None


def test_another_is_not() -> None:
    with pytest.raises(AttributeError, match="Transaction"):
        _ = grad_txn.Transaction


def test_importing_it_imports_no_torch() -> None:
    program = "import grad_txn, sys; sys.exit('torch' in sys.modules or 'ulfm_core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "grad_txn.step", raising=False)
    with pytest.raises(ExtraMissingError, match=r"pip install 'grad-txn\[train\]'"):
        exporter("grad_txn", {"Step": "grad_txn.step"})("Step")

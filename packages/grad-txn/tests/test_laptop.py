"""A log can be verified and reported on where there is neither torch nor MPI.

The log is made beside, so what runs here runs as on a laptop to which it was copied.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from grad_txn.failures import At, Kill
from grad_txn.testing.played import play_run

pytestmark = pytest.mark.timeout(120)

HEAVY = ("torch", "mpi4py", "ulfm_core")

BLOCKED = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None  # an import of it fails from here on
"""

MODULE = "import runpy, sys; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"

EVERYTHING = f"""
import importlib, pkgutil, sys
import grad_txn.failures, grad_txn.log
for package in (grad_txn.log, grad_txn.failures):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name == "matplotlib" and module.name == "grad_txn.log._charts", error
        print(module.name)
import grad_txn.report, grad_txn.testing.played, grad_txn.verify
heavy = [name for name in {HEAVY!r} if sys.modules.get(name) is not None]
assert not heavy, heavy
"""

ABSENT = importlib.util.find_spec("torch") is None

PRELUDES = [
    pytest.param(BLOCKED, id="blocked"),
    pytest.param(
        "", id="absent", marks=pytest.mark.skipif(not ABSENT, reason="torch is installed here")
    ),
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three replicas of two ranks that lost one, and the same run without that."""
    out = tmp_path_factory.mktemp("copied")
    play_run(out / "reference", replicas=3, replica_size=2, steps=5)
    kills = [Kill(step=2, replica=1, position=1, at=At.DURING_SYNC)]
    play_run(out / "run", replicas=3, replica_size=2, steps=5, kills=kills)
    return out


def python(prelude: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{prelude}\n{code}", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("prelude", PRELUDES)
def test_a_log_is_verified(log: Path, prelude: str) -> None:
    done = python(prelude, MODULE, "grad_txn.verify", str(log / "run"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("proved: 5 steps (0 to 4), each committed exactly 24 microb")


@pytest.mark.parametrize("prelude", PRELUDES)
def test_a_broken_log_is_refused(log: Path, tmp_path: Path, prelude: str) -> None:
    (tmp_path / "events").mkdir()
    for path in (log / "run" / "events").iterdir():
        text = path.read_text().replace('"total": 24', '"total": 23', 1)
        (tmp_path / "events" / path.name).write_text(text)
    done = python(prelude, MODULE, "grad_txn.verify", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "total 23, number of ids 24" in done.stderr


@pytest.mark.parametrize("prelude", PRELUDES)
def test_a_log_is_reported_on(log: Path, prelude: str) -> None:
    pytest.importorskip("matplotlib")
    run, reference = str(log / "run"), str(log / "reference")
    done = python(prelude, MODULE, "grad_txn.report", run, "--reference", reference)
    assert (done.returncode, done.stderr) == (0, "")
    assert "batch       proved: each step committed exactly 24 microbatches" in done.stdout
    assert (log / "run" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "replica 1 (rank 1, during sync)" in (log / "run" / "report.html").read_text()


@pytest.mark.parametrize("prelude", PRELUDES)
def test_metrics_are_exported(log: Path, prelude: str) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("prometheus_client")
    code = (
        "import sys; from grad_txn.log.metrics import export_metrics\n"
        "export_metrics(sys.argv[1], tensorboard=True, prometheus=True)"
    )
    done = python(prelude, code, str(log / "run"))
    assert done.returncode == 0, done.stderr
    assert len(list((log / "run" / "tensorboard").glob("events.out.tfevents.*"))) > 0
    assert "grad_txn_step 4.0" in (log / "run" / "metrics.prom").read_text()


@pytest.mark.parametrize("prelude", PRELUDES)
def test_a_schedule_is_drawn(prelude: str) -> None:
    done = python(prelude, MODULE, "grad_txn.failures", "--replicas", "3", "--count", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("- {step: ")


def test_no_module_of_the_log_or_the_failures_needs_torch_or_mpi() -> None:
    done = python("", EVERYTHING)
    assert done.returncode == 0, done.stderr
    for module in ("log.events", "log.metrics", "log.verify", "failures.injector"):
        assert f"grad_txn.{module}" in done.stdout.split()

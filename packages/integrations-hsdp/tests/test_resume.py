"""Resuming with flags that do not fit the checkpoint."""

from pathlib import Path

import pytest

from ulfm_core.testing import JobResult, run_ranks

pytestmark = [pytest.mark.mpi, pytest.mark.torch]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose checkpoint is the state before step 2."""
    out = tmp_path_factory.mktemp("resume") / "run"
    assert train(out, "--steps", "2", "--checkpoint-every", "2").returncode == 0
    return out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--steps", "2"], "nothing is left to do"),
        (["--steps", "4", "--policy", "exact"], "--policy"),
        (["--steps", "4", "--width", "32"], "is it of the same model?"),
    ],
)
def test_one_line_and_code_2(out: Path, flags: list[str], told: str) -> None:
    before = (out / "events" / "0.jsonl").read_bytes()
    job = train(out, *flags, "--resume")
    assert job.returncode == 2
    assert len(job.stderr.splitlines()) == 1, job.stderr
    assert told in job.stderr
    assert (out / "events" / "0.jsonl").read_bytes() == before


def train(out: Path, *flags: str) -> JobResult:
    return run_ranks(
        "integrations_hsdp.pretrain", 1, ["--grad-accum", "1", "--out", str(out), *flags]
    )

"""Wrong input gets one clear line, and exit code 2 (1 from the verifier)."""

import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Case, Trainer

from grad_txn.schedule import At, Kill

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

SMALL = Case(replicas=2, grad_accum=2, steps=3)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--failures", "schedule.yaml"], "replica 7 does not exist"),
        (["--failures", "missing.yaml"], "cannot be read"),
        (["--grad-accum", "0"], "--grad-accum 0"),
        (["--text", "missing.txt"], "missing.txt"),
        (["--text", "short.txt"], "has 5 bytes"),
        (["--resume", "empty"], "no complete checkpoint"),
        (["--shard-size", "2"], "--shard-size 2"),
        (["--heads", "5"], "width 32 is no multiple"),
    ],
    ids=lambda value: value[0] + value[1] if isinstance(value, list) else "",
)
def test_one_line_and_code_2(flags: list[str], told: str, trainer: Trainer) -> None:
    Path(trainer.folder, "schedule.yaml").write_text("- {step: 1, replica: 7, at: forward}\n")
    Path(trainer.folder, "short.txt").write_text("short")
    # A plain start: with forked ranks under load, two of eight gave more than one line.
    command = [
        "-n",
        "2",
        "-m",
        "integrations_hsdp.pretrain",
        *SMALL.flags(),
        "--out",
        "run",
        *flags,
    ]
    job = python("ulfm_core.launch", *command, folder=trainer.folder)
    assert job.returncode == 2, job.stderr
    assert job.stdout == ""
    assert len(job.stderr.splitlines()) == 1, job.stderr
    assert told in job.stderr


def test_without_ulfmrun(tmp_path: Path) -> None:
    done = python("integrations_hsdp.pretrain", *SMALL.flags(), "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "ulfmrun" in done.stderr


def test_an_mpi_without_ulfm(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'HYDRA build details: Version: 5.0.2'\n")
    mpirun.chmod(0o755)
    done = python("ulfm_core.launch", "--mpirun", str(mpirun), "-n", "2", "-m", "json.tool")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "has no ULFM" in done.stderr


def test_a_truncated_log(trainer: Trainer) -> None:
    run = trainer.run(SMALL)
    assert run.code == 0
    log = run.out / "events" / "1.jsonl"
    log.write_bytes(log.read_bytes()[:-40])
    done = python("grad_txn.verify", str(run.out))
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "1.jsonl" in done.stderr


def test_a_log_that_is_missing(tmp_path: Path) -> None:
    done = python("grad_txn.verify", str(tmp_path))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_the_verifier_finds_a_wrong_total(trainer: Trainer) -> None:
    run = trainer.run(
        Case(replicas=2, grad_accum=2, kills=(Kill(step=1, replica=0, at=At.FORWARD),))
    )
    assert run.code == 0, run.said
    log = run.out / "events" / "1.jsonl"
    log.write_text(log.read_text().replace('"total": 4', '"total": 3', 1))
    assert python("grad_txn.verify", str(run.out)).returncode == 1


def python(
    module: str, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )

"""Wrong input gets one clear line, and exit code 2 (1 from the verifier)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Case, Trainer

from grad_txn.failures import At, Kill

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
        (["--shard-size", "2"], "--batch 1"),
        (["--shard-size", "3", "--batch", "3"], "--shard-size 3: 2 ranks"),
        (["--shard-size", "2", "--sharding", "ddp"], "--sharding ddp --shard-size 2"),
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


def test_a_log_of_an_earlier_run_is_not_mixed_with_another(tmp_path: Path) -> None:
    (tmp_path / "run" / "events").mkdir(parents=True)
    job = python(
        "ulfm_core.launch", "-n", "2", "-m", "integrations_hsdp.pretrain", *SMALL.flags(),
        "--out", "run", folder=tmp_path,
    )  # fmt: skip
    assert job.returncode == 2, job.stderr
    assert len(job.stderr.splitlines()) == 1, job.stderr
    assert "holds the log of an earlier run" in job.stderr


def test_a_damaged_checkpoint(trainer: Trainer) -> None:
    first = trainer.run(SMALL, "run", "--checkpoint-every", "2")
    assert first.code == 0, first.said
    for data in (first.out / "checkpoints" / "step-2").glob("*.distcp"):
        data.write_bytes(data.read_bytes()[:100])
    job = python(
        "ulfm_core.launch", "-n", "2", "-m", "integrations_hsdp.pretrain", *SMALL.flags(),
        "--out", "run", "--resume", folder=trainer.folder,
    )  # fmt: skip
    assert job.returncode == 2, job.stderr
    told = [line for line in job.stderr.splitlines() if line.startswith("pretrain: ")]
    assert len(told) == 1, job.stderr
    assert "cannot be resumed from" in told[0]


def test_an_mpi_that_was_started_without_fault_tolerance(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("mpirun"), "-n", "2", "--map-by", "slot:OVERSUBSCRIBE",
            sys.executable, "-m", "integrations_hsdp.pretrain", *SMALL.flags(), "--out", "run",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": "1",
        },
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    # mpirun adds its own banner; of the ranks, each says its line and no more.
    told = [line for line in done.stderr.splitlines() if "pretrain" in line]
    assert 1 <= len(told) <= 2, done.stderr
    assert all("without fault tolerance: use ulfmrun" in line for line in told)
    assert "Traceback" not in done.stderr


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

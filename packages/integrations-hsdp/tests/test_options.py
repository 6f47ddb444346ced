import argparse
from pathlib import Path

import pytest

from grad_txn.errors import ScheduleError
from grad_txn.failures import At, Kill
from grad_txn.programs.flags import OptionError, schedule_of
from grad_txn.programs.run import parse as parse_program
from integrations_hsdp.pretrain import PROGRAM, main

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def outside_any_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "ULFM_RESTART"):
        monkeypatch.delenv(name, raising=False)


def arguments(tmp_path: Path, *more: str) -> list[str]:
    return ["--steps", "6", "--grad-accum", "8", "--out", str(tmp_path / "run"), *more]


def parse(flags: list[str]) -> argparse.Namespace:
    return parse_program(PROGRAM, flags)


def test_defaults(tmp_path: Path) -> None:
    options = parse(arguments(tmp_path))
    assert (options.policy, options.detection, options.staging) == ("static", "deferred", "no-copy")
    assert options.resume is None
    assert schedule_of(options, replicas=4, replica_size=1) == ()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--grad-accum", "0"], "--grad-accum 0"),
        (["--shard-size", "2", "--sharding", "ddp"], "--sharding ddp --shard-size 2"),
        (["--shard-size", "3"], "--batch 4"),
        (["--precision", "bfloat16"], "--precision bfloat16"),
        (["--accumulate", "unsharded"], "needs --sharding fsdp2 or fsdp1"),
        (
            ["--accumulate", "unsharded", "--sharding", "fsdp1", "--precision", "bfloat16"],
            "--accumulate unsharded: fsdp1 would sum in bfloat16",
        ),
        (["--failures", "f.yaml", "--random-failures", "1"], "exclude each other"),
    ],
)
def test_what_cannot_work_is_named(tmp_path: Path, flags: list[str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse(arguments(tmp_path, *flags))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--steps", "0"], "--steps: 0 is less than 1"),
        (["--steps", "x"], "--steps: 'x' is no whole number"),
        (["--lr", "0"], "--lr: 0 is not positive"),
        (["--lr", "nan"], "--lr: nan is not positive"),
        (["--lr", "fast"], "--lr: 'fast' is no number"),
        (["--unknown"], "--unknown"),
    ],
)
def test_malformed_flags_get_one_line_and_code_2(
    tmp_path: Path, flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments(tmp_path, *flags))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert named in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--policy", "none"], "'none'"),
        (["--policy", "missing.py"], "missing.py"),
        (["--policy", "workload_policy:Plan"], "workload_policy:Plan"),
        (["--policy", "static", "--redundancy", "2"], "--redundancy 2"),
    ],
)
def test_a_policy_that_cannot_be_used_gets_one_line_and_code_2(
    flags: list[str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert main(arguments(tmp_path, *flags)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert named in said


def test_an_earlier_run_is_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run" / "events").mkdir(parents=True)
    with pytest.raises(OptionError, match="earlier run"):
        parse(arguments(tmp_path))
    assert parse(arguments(tmp_path, "--resume")).resume == ""
    monkeypatch.setenv("ULFM_RESTART", "1")
    assert parse(arguments(tmp_path)).resume is None


def test_a_written_schedule(tmp_path: Path) -> None:
    path = tmp_path / "failures.yaml"
    path.write_text("- {step: 3, replica: 0, at: during_sync, bucket: 1}\n")
    options = parse(arguments(tmp_path, "--failures", str(path)))
    kill = Kill(step=3, replica=0, at=At.DURING_SYNC, bucket=1)
    assert schedule_of(options, replicas=4, replica_size=1) == (kill,)
    path.write_text("- {step: 3, replica: 9, at: forward}\n")
    with pytest.raises(ScheduleError, match="9"):
        schedule_of(options, replicas=4, replica_size=1)


def test_a_drawn_schedule_is_the_same_everywhere(tmp_path: Path) -> None:
    flags = ["--random-failures", "2", "--failure-seed", "7", "--failure-at", "forward"]
    one, other = (
        schedule_of(parse(arguments(tmp_path, *flags)), replicas=4, replica_size=1)
        for _ in range(2)
    )
    assert one == other
    assert [kill.at for kill in one] == [At.FORWARD] * 2


def test_more_deaths_than_replicas_are_refused(tmp_path: Path) -> None:
    options = parse(arguments(tmp_path, "--random-failures", "4"))
    with pytest.raises(OptionError, match="--random-failures 4"):
        schedule_of(options, replicas=4, replica_size=1)


def test_outside_ulfmrun_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(tmp_path)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ulfmrun -n N" in said


def test_a_missing_text_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert main(arguments(tmp_path, "--text", "no-such-file")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--text no-such-file" in said

import argparse
from pathlib import Path

import pytest

from grad_txn.errors import ScheduleError
from grad_txn.failures import At, Schedule
from grad_txn.programs.flags import OptionError, schedule_of
from grad_txn.programs.run import parse as parse_program
from integrations_3d.options import replica_size_of
from integrations_3d.pretrain import PROGRAM, main

NEEDED = ["--steps", "4", "--grad-accum", "2", "--out", "run"]


def parse(flags: list[str]) -> argparse.Namespace:
    return parse_program(PROGRAM, flags)


def test_the_same_flags_as_the_other_reference_program() -> None:
    how = ["--policy", "exact", "--staging", "snapshot", "--detection", "guarded"]
    more = ["--bucket-mb", "1", "--seed", "7", "--step-limit", "30", "--checkpoint-every", "2"]
    size = ["--tp", "2", "--pp", "3", "--dp-inner", "4", "--layers", "3"]
    options = parse([*NEEDED, *size, *how, *more])
    assert replica_size_of(options) == 24
    assert options.policy == "exact"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--width", "50"], "multiple of 8"),
        (["--width", "12"], "multiple of 8"),
        (["--tp", "3"], "--heads 4 --tp 3"),
        (["--pp", "3"], "--layers 2 --pp 3"),
        (["--dp-inner", "3"], "--batch 4 --dp-inner 3"),
        (["--tp", "2", "--tp-mode", "reduce_scatter", "--sequence", "33"], "--sequence 33"),
        (["--failures", "a", "--random-failures", "1"], "exclude each other"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as told:
        parse([*NEEDED, *flags])
    assert "\n" not in str(told.value)


def schedule_for(options: argparse.Namespace) -> Schedule:
    return schedule_of(options, replicas=2, replica_size=replica_size_of(options))


def test_a_schedule_names_ranks_of_a_replica(tmp_path: Path) -> None:
    file = tmp_path / "failures.yaml"
    file.write_text("- {step: 1, replica: 1, rank: 3, at: forward}\n")
    flags = [*NEEDED, "--failures", str(file), "--tp", "2"]
    [kill] = schedule_for(parse([*flags, "--pp", "2"]))
    assert (kill.replica, kill.position, kill.at) == (1, 3, At.FORWARD)
    with pytest.raises(ScheduleError, match="rank 3"):
        schedule_for(parse(flags))


def test_bad_input_ends_with_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NEEDED, "--tp", "3"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("pretrain: --heads 4 --tp 3")
    assert told.count("\n") == 1


def test_ranks_make_whole_replicas(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "6")
    assert main([*NEEDED, "--tp", "2", "--pp", "2"]) == 2
    assert "6 ranks are no whole number of replicas of 4" in capsys.readouterr().err


STACKING = """
from dataclasses import replace
from workload_policy import ExactBatch, Stack

class Stacking(ExactBatch):
    def start(self, *, replicas, grad_accum):
        plan = super().start(replicas=replicas, grad_accum=grad_accum)
        stacks = {
            m: (Stack(shard_type=m, ids=ids, counted=True),) for m, ids in plan.assigned.items()
        }
        return replace(plan, stacks=stacks)
"""


def test_redundant_stacks_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stacking.py").write_text(STACKING)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    policy = str(tmp_path / "stacking.py")
    assert main([*NEEDED, "--policy", policy]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"pretrain: --policy {policy}: ")
    assert "no redundant stacks" in told
    assert told.count("\n") == 1


def test_it_says_how_it_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    assert main(NEEDED) == 2
    assert "ulfmrun -n N -m integrations_3d.pretrain" in capsys.readouterr().err

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grad_txn.failures import At, Kill, Shape, generate
from grad_txn.log import _run_checks
from grad_txn.log.verify import verify
from grad_txn.testing.events import read_events, write_events
from grad_txn.testing.played import LEFT, play_run
from grad_txn.verify import main

pytestmark = pytest.mark.timeout(60)


def kill(step: int, replica: int, at: At = At.DURING_SYNC, position: int = 0) -> Kill:
    return Kill(step=step, replica=replica, position=position, at=at)


# What a policy can decide and a run can live through.


@pytest.mark.parametrize("policy", ["static", "exact"])
@pytest.mark.parametrize(
    "kills",
    [
        [],
        [kill(2, 0)],
        [kill(0, 0, At.FORWARD)],
        [kill(2, 0), kill(2, 1, At.BEFORE_COMMIT)],
        [kill(2, 0), kill(2, 1, At.DURING_REPAIR), kill(2, 3, At.DURING_EXTENSION)],
        [kill(2, 0, At.AFTER_COMMIT)],
        [kill(2, 0, At.OPTIMIZER), kill(3, 1, At.DURING_REPAIR)],
        [kill(7, 0, At.AFTER_COMMIT), kill(7, 1, At.OPTIMIZER)],
        [kill(2, 0, position=1), kill(2, 0, position=0)],
    ],
)
def test_a_run_that_kept_its_batch_is_proved(
    tmp_path: Path, policy: str, kills: list[Kill]
) -> None:
    play_run(tmp_path, policy=policy, replica_size=2, kills=kills)
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.steps, verdict.ids, verdict.global_batch) == (8, 8 * 32, 32)
    dead = {kill.replica for kill in kills}
    assert set(verdict.survivors) == set(range(4)) - dead


@pytest.mark.property
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(["static", "exact", "adaptive"]),
    replicas=st.integers(2, 9),
    replica_size=st.integers(1, 3),
    grad_accum=st.integers(1, 6),
    steps=st.integers(1, 12),
    data=st.data(),
)
def test_any_schedule_of_deaths_is_proved(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    policy: str,
    replicas: int,
    replica_size: int,
    grad_accum: int,
    steps: int,
    data: st.DataObject,
) -> None:
    out = tmp_path_factory.mktemp("run")
    shape = Shape(replicas=replicas, replica_size=replica_size, steps=steps)
    kills = generate(shape, seed=seed, count=data.draw(st.integers(0, replicas - 1)))
    play_run(
        out,
        policy=policy,
        replicas=replicas,
        replica_size=replica_size,
        grad_accum=grad_accum,
        steps=steps,
        kills=kills,
    )
    assert verify(out, allow_shrinking_batch=True).problems == ()


def test_a_resumed_run_replaces_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(1, 0), kill(5, 2)], stop=7)
    checkpoint = play_run(tmp_path / "aside", kills=[kill(1, 0)], stop=4)
    play_run(tmp_path, resume=checkpoint, run="second", begin=1.8e9, kills=[kill(6, 1)])
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.runs, verdict.steps, verdict.ids) == (2, 8, 8 * 32)
    assert (verdict.lost, verdict.survivors) == (((0,), (1,)), (0, 2, 3))


def test_a_run_resumed_with_fewer_replicas_keeps_the_batch(tmp_path: Path) -> None:
    checkpoint = play_run(tmp_path, kills=[kill(1, 0)], stop=4)
    play_run(tmp_path, replicas=3, resume=checkpoint, run="second", begin=1.8e9)
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert verdict.survivors == (0, 1, 2)


@pytest.mark.parametrize("rank", [0, 3, 4, 5])
def test_a_log_that_a_resumed_run_lost_is_missed(tmp_path: Path, rank: int) -> None:
    checkpoint = play_run(tmp_path, kills=[kill(1, 0)], stop=4, replica_size=2)
    play_run(tmp_path, replicas=3, replica_size=2, resume=checkpoint, run="second", begin=1.8e9)
    path = tmp_path / "events" / f"{rank}.jsonl"
    first, _, _ = path.read_text().partition('{"event": "start", "time": 1800000000.0')
    path.write_text(first)
    assert not verify(tmp_path).holds


def test_a_run_started_again_may_find_that_all_is_done(tmp_path: Path) -> None:
    done = play_run(tmp_path, steps=4, stop=4)
    play_run(tmp_path, steps=4, resume=done, run="second", begin=1.8e9)
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.runs, verdict.steps) == (2, 4)


def test_a_run_may_resume_into_a_directory_of_its_own(tmp_path: Path) -> None:
    checkpoint = play_run(tmp_path / "aside", kills=[kill(1, 0)], stop=4)
    play_run(tmp_path, replicas=3, resume=checkpoint)
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.first_step, verdict.steps) == (4, 4)


def left_out(out: Path, rank: int, step: int, *events: str) -> None:
    """What a rank would have written of a step, had it not died before."""
    log = read_events(out)
    lines, unsaid = log[rank], {(event, step) for event in events}
    log[rank] = [line for line in lines if (line["event"], line.get("step")) not in unsaid]
    assert len(log[rank]) == len(lines) - len(events)
    write_events(log, out)


@pytest.mark.parametrize("step", [2, 7])
@pytest.mark.parametrize("policy", ["static", "exact"])
@pytest.mark.parametrize("events", [("commit",), ("step", "commit")])
def test_a_leader_may_die_behind_the_agreement_before_its_lines(
    tmp_path: Path, events: tuple[str, ...], policy: str, step: int
) -> None:
    play_run(tmp_path, policy=policy, kills=[kill(step, 0, At.AFTER_COMMIT)])
    left_out(tmp_path, 0, step, *events)
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.steps, verdict.ids, verdict.survivors) == (8, 8 * 32, (1, 2, 3))


def test_two_may_die_behind_the_agreement_before_their_lines(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(2, 0, At.AFTER_COMMIT), kill(2, 1, At.AFTER_COMMIT)])
    left_out(tmp_path, 0, 2, "step", "commit")
    left_out(tmp_path, 1, 2, "step")
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.steps, verdict.ids, verdict.survivors) == (8, 8 * 32, (2, 3))


def test_weights_that_are_no_numbers_are_a_problem_and_no_crash(tmp_path: Path) -> None:
    play_run(tmp_path, grad_accum=2, steps=1)
    path = tmp_path / "events" / "1.jsonl"
    wrong = '"weight_sum": 2.0, "weights": ["inf", "-inf"]'
    path.write_text(path.read_text().replace('"weight_sum": 2.0', wrong))
    (problem,) = verify(tmp_path).problems
    assert "weight_sum is 2.0, the weights of its 2 microbatches say otherwise" in problem


def test_a_repair_that_found_nobody_dead_is_no_loss(tmp_path: Path) -> None:
    play_run(tmp_path, steps=1)
    log = read_events(tmp_path)
    for rank, (start, *steps, end) in log.items():
        failure = {"event": "failure", "time": 1, "step": 0, "epoch": 1, "failed": []}
        failure |= {"failed_ranks": [], "queued": []}
        failure["contributions"] = {str(replica): 8 for replica in range(4)}
        log[rank] = [start, failure, *(step | {"epoch": 1} for step in steps), end]
    write_events(log, tmp_path)
    verdict = verify(tmp_path)
    assert (verdict.problems, verdict.lost) == ((), ((),))


def test_who_a_rank_is_stands_in_its_start_line(tmp_path: Path) -> None:
    """Ranks 1 and 2 have changed places, as in a world that numbers position by position."""
    play_run(tmp_path / "as played", replicas=2, replica_size=2, kills=[kill(2, 0)])
    (tmp_path / "events").mkdir()
    for rank, number in enumerate((0, 2, 1, 3)):
        text = (tmp_path / "as played" / "events" / f"{rank}.jsonl").read_text()
        moved = text.replace(f'"rank": {rank}', f'"rank": {number}', 1)
        (tmp_path / "events" / f"{number}.jsonl").write_text(moved)
    verdict = verify(tmp_path)
    assert (verdict.problems, verdict.survivors) == ((), (1,))


def test_a_verdict_says_what_was_promised(tmp_path: Path) -> None:
    play_run(tmp_path, policy="exact", steps=1)
    verdict = verify(tmp_path)
    assert (verdict.policy, verdict.promise) == ("exact", "exact")


def test_a_run_that_lost_steps_between_its_parts_is_not_proved(tmp_path: Path) -> None:
    play_run(tmp_path, stop=3)
    checkpoint = play_run(tmp_path / "aside", stop=4)
    play_run(tmp_path, resume=checkpoint, run="second", begin=1.8e9)
    assert any("step 3 is missing" in problem for problem in verify(tmp_path).problems)


def test_a_shrunken_batch_may_take_several_steps_over_what_deaths_gave_back(tmp_path: Path) -> None:
    kills = [kill(2, replica) for replica in range(7)]
    play_run(tmp_path, policy="adaptive", replicas=8, grad_accum=1, steps=8, kills=kills)
    assert verify(tmp_path, allow_shrinking_batch=True).problems == ()


def test_a_smaller_batch_passes_only_when_told_and_only_where_none_was_promised(
    tmp_path: Path,
) -> None:
    play_run(tmp_path, policy="adaptive", kills=[kill(2, 0)])
    (first, *_) = verify(tmp_path).problems
    assert first.endswith("step 2: number of ids 24; it has to be 32")
    assert verify(tmp_path, allow_shrinking_batch=True).smallest_total == 24
    for path in (tmp_path / "events").iterdir():
        path.write_text(path.read_text().replace('"promise": "none"', '"promise": "batch"'))
    assert not verify(tmp_path, allow_shrinking_batch=True).holds


def test_the_judge_and_the_player_know_the_code_that_a_guard_leaves() -> None:
    """Neither may import the package that says it."""
    codes = pytest.importorskip("ulfm_core.codes")
    assert _run_checks._LEFT == LEFT == codes.CONDEMNED


# The command.


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grad_txn.verify", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_the_command_prints_the_proof(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(2, 0), kill(5, 2)])
    done = run_module(str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "proved: 8 steps (0 to 7), each committed exactly 32 microbatches\n"
        "  ids        256 committed, each once\n"
        "  failures   2 survived, replicas 0, 2 lost\n"
        "  survivors  replicas 1, 3, with identical parameters\n"
    )


def test_the_command_says_when_it_was_lenient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play_run(tmp_path, policy="adaptive", kills=[kill(2, 0)])
    assert main([str(tmp_path), "--allow-shrinking-batch"]) == 0
    printed = capsys.readouterr().out
    assert "each committed 24 to 32 microbatches" in printed
    assert "allowed to shrink below 32" in printed


def test_the_command_prints_ten_problems_and_counts_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play_run(tmp_path, policy="adaptive", steps=14, kills=[kill(2, 0)])
    assert main([str(tmp_path)]) == 1
    *first, last = capsys.readouterr().err.splitlines()
    assert len(first) == 10
    assert last == "error: and 2 more, 12 problems"


def test_the_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play_run(tmp_path)
    assert main([str(tmp_path), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["holds"], verdict["global_batch"], verdict["steps"]) == (True, 32, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: DIR"),
        (("no-such-directory",), "no-such-directory: no such directory"),
        (("--lenient", "."), "unrecognized arguments: --lenient"),
    ],
)
def test_a_wrong_call_is_one_line_and_code_1(arguments: tuple[str, ...], message: str) -> None:
    done = run_module(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_directory_without_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert "nothing was recorded" in capsys.readouterr().err


def test_the_judge_knows_nobody() -> None:
    """Neither the policies nor the writer, and no torch: the log alone is what counts."""
    code = (
        "import sys, grad_txn.verify; known = set(sys.modules); "
        "print(*sorted(m for m in known if m.partition('.')[0] in "
        "('torch', 'yaml', 'workload_policy', 'ulfm_core', 'grad_txn', 'mpi4py')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.split() == [
        "grad_txn", "grad_txn.errors", "grad_txn.lazily",  # the root, which the judge does not use
        "grad_txn.log", "grad_txn.log._evidence", "grad_txn.log._ids", "grad_txn.log._run_checks",
        "grad_txn.log._stream_checks", "grad_txn.log.verify", "grad_txn.verify",
    ]  # fmt: skip

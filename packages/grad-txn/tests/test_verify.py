import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grad_txn.schedule import At, Kill, Shape, generate
from grad_txn.testing import play_run
from grad_txn.verify import main, verify

pytestmark = pytest.mark.timeout(60)

Log = dict[int, list[dict[str, Any]]]


def kill(step: int, replica: int, at: At = At.DURING_SYNC, rank: int = 0) -> Kill:
    return Kill(step=step, replica=replica, rank=rank, at=at)


KILLS = (kill(2, 0), kill(5, 2), kill(7, 3, At.AFTER_COMMIT))
"""Of 5 replicas with 2 ranks, 8 steps: a boundary, a promotion, and a death no step follows."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Log:
    out = tmp_path_factory.mktemp("good")
    play_run(out, replicas=5, replica_size=2, kills=KILLS)
    return load(out)


def load(out: Path) -> Log:
    return {
        int(path.stem): [json.loads(line) for line in path.read_text().splitlines()]
        for path in (out / "events").iterdir()
    }


def save(log: Log, out: Path) -> None:
    (out / "events").mkdir()
    for rank, events in log.items():
        text = "".join(json.dumps(event) + "\n" for event in events)
        (out / "events" / f"{rank}.jsonl").write_text(text)


def copied(log: Log) -> Log:
    return {rank: json.loads(json.dumps(events)) for rank, events in log.items()}


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
        [kill(2, 0, rank=1), kill(2, 0, rank=0)],
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


def test_a_repair_that_found_nobody_dead_is_no_loss(tmp_path: Path) -> None:
    play_run(tmp_path, steps=1)
    for path in (tmp_path / "events").iterdir():
        start, step, end = map(json.loads, path.read_text().splitlines())
        failure = {"event": "failure", "time": 1, "step": 0, "epoch": 1, "failed": []}
        failure["failed_ranks"] = []
        lines = (start, failure, step | {"epoch": 1}, end)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = verify(tmp_path)
    assert (verdict.problems, verdict.lost) == ((), ((),))


def test_a_run_that_lost_steps_between_its_parts_is_not_proved(tmp_path: Path) -> None:
    play_run(tmp_path, stop=3)
    checkpoint = play_run(tmp_path / "aside", stop=4)
    play_run(tmp_path, resume=checkpoint, run="second", begin=1.8e9)
    assert any("step 3 is missing" in problem for problem in verify(tmp_path).problems)


def test_a_shrunken_batch_may_take_several_steps_over_what_deaths_gave_back(tmp_path: Path) -> None:
    kills = [kill(2, replica) for replica in range(7)]
    play_run(tmp_path, policy="adaptive", replicas=8, grad_accum=1, steps=8, kills=kills)
    assert verify(tmp_path, allow_shrinking_batch=True).problems == ()


def test_a_smaller_batch_passes_only_when_told_and_only_for_adaptive(tmp_path: Path) -> None:
    play_run(tmp_path, policy="adaptive", kills=[kill(2, 0)])
    (first, *_) = verify(tmp_path).problems
    assert first.endswith("step 2: total 24, sum of contributions 24, number of ids 24; "
                          "it has to be 32")  # fmt: skip
    assert verify(tmp_path, allow_shrinking_batch=True).smallest_total == 24
    for path in (tmp_path / "events").iterdir():
        path.write_text(path.read_text().replace('"adaptive"', '"static"'))
    assert not verify(tmp_path, allow_shrinking_batch=True).holds


# What must never pass. Each corruption is one a bug, a bad disk or a cheat could cause.


def find(log: Log, event: str, rank: int, **fields: object) -> dict[str, Any]:
    return next(
        e
        for e in log[rank]
        if e["event"] == event and all(e.get(name) == value for name, value in fields.items())
    )


def all_of(log: Log, event: str, **fields: object) -> list[dict[str, Any]]:
    return [
        e
        for events in log.values()
        for e in events
        if e["event"] == event and all(e.get(name) == value for name, value in fields.items())
    ]


def drop(event: str, rank: int | None = None, **fields: object) -> Callable[[Log], None]:
    def mutate(log: Log) -> None:
        doomed = all_of(log, event, **fields)
        assert doomed
        for name, events in log.items():
            if rank in (None, name):
                log[name] = [e for e in events if not any(e is d for d in doomed)]

    return mutate


def change(
    event: str, rank: int | None = None, /, where: dict[str, Any] | None = None, **values: Any
) -> Callable[[Log], None]:
    def mutate(log: Log) -> None:
        if rank is None:
            changed = all_of(log, event, **(where or {}))
        else:
            changed = [find(log, event, rank, **(where or {}))]
        assert changed
        for e in changed:
            e.update({k: v(e[k]) if callable(v) else v for k, v in values.items()})

    return mutate


def recount(log: Log) -> None:
    """One microbatch is dropped, and every number agrees that it was."""
    for e in all_of(log, "step", step=3):
        e["ids"]["1"].pop()
        e["contributions"]["1"] -= 1
        e["total"] -= 1


def same_id_twice(log: Log) -> None:
    for e in all_of(log, "step", step=3):
        e["ids"]["1"][0] = e["ids"]["4"][0]


def old_id(log: Log) -> None:
    old = find(log, "step", 2, step=0)["ids"]["0"][0]
    for e in all_of(log, "step", step=3):
        e["ids"]["1"][0] = old


def skipped_id(log: Log) -> None:
    for e in all_of(log, "step", step=6):
        e["ids"]["1"][0] = 10_000


def negative_id(log: Log) -> None:
    for e in all_of(log, "step", step=3):
        e["ids"]["1"][0] = -1


def unlisted_ids(log: Log) -> None:
    for e in all_of(log, "step", step=3):
        e["contributions"]["1"] -= 1
        e["contributions"]["4"] += 1


def dead_contributor(log: Log) -> None:
    for e in all_of(log, "step", step=3):
        e["contributions"]["0"] = e["contributions"].pop("1")
        e["ids"]["0"] = e["ids"].pop("1")


def ghost(log: Log) -> None:
    log[0].append(find(log, "step", 2, step=3) | {"replica": 0})


def twice(log: Log) -> None:
    log[2].append(find(log, "step", 2, step=7))


def foreign(log: Log) -> None:
    moved = find(log, "step", 2, step=7)
    log[2].remove(moved)
    log[8].append(moved)


def gap(log: Log) -> None:
    drop("step", step=4)(log)


def no_start(log: Log) -> None:
    del log[2][0]


def nobody_left(log: Log) -> None:
    for e in all_of(log, "failure", epoch=2):
        e.update(failed=[1, 2, 3, 4], failed_ranks=[2, 4, 6, 8])


def zombie(log: Log) -> None:
    log[0].append(find(log, "failure", 2, epoch=2))


def swap_epochs(log: Log) -> None:
    for e in all_of(log, "failure"):
        e["epoch"] = 3 - e["epoch"]


def missing_file(log: Log) -> None:
    del log[3]


def missing_leader(log: Log) -> None:
    log[2] = log[2][:1]


def extra_file(log: Log) -> None:
    log[10] = [log[9][0] | {"rank": 10, "replica": 5, "position": 0}]


def unnoticed(log: Log) -> None:
    inject = find(log, "inject", 0)
    log[2].append(inject | {"replica": 1, "step": 3})


CORRUPTIONS: dict[str, tuple[Callable[[Log], None], str]] = {
    "a microbatch less": (recount, "step 3: total 39, sum of contributions 39, number of ids 39"),
    "total too small": (change("step", where={"step": 3}, total=39), "step 3: total 39, sum of"),
    "an id twice in a step": (same_id_twice, r"step 3: id \d+ committed before, by replica 1 in"),
    "an id of an earlier step": (old_id, "step 3: id 0 committed before, by replica 0 in step 0"),
    "an id left behind": (skipped_id, r"step 6: id \d+ was left behind"),
    "a negative id": (negative_id, "step 3: id -1 is below 0"),
    "contributions without ids": (unlisted_ids, r"step 3: replica 1 contributed \d+ but lists"),
    "a dead contributor": (dead_contributor, "step 3: replica 0 contributed while dead"),
    "wrong replica count": (change("step", where={"step": 3}, replicas=5), "5 replicas, 4 were"),
    "wrong epoch": (change("step", where={"step": 3}, epoch=0), "epoch is 0, the last failure"),
    "a loss of its own": (
        change("step", 2, where={"step": 3}, loss=lambda x: x + 1e-15),
        "step 3: loss is ",
    ),
    "a norm of its own": (change("step", 2, where={"step": 3}, grad_norm=1), "grad_norm is "),
    "ids in another order": (
        change("step", 8, where={"step": 3}, ids=lambda ids: ids | {"1": ids["1"][::-1]}),
        "step 3: ids is ",
    ),
    "a role of its own": (change("step", 8, where={"step": 3}, roles={}), "step 3: roles is "),
    "a step of the dead": (ghost, "replica 0 committed step 3 after its death"),
    "a step twice": (twice, "step 7 committed twice by replica 1"),
    "a step in another's log": (foreign, "step line of replica 1 in another's log"),
    "a missing step": (gap, "step 5 follows, step 4 is missing"),
    "a missing step of one": (drop("step", 2, step=4), "replica 1 has no line for step 4"),
    "a missing last step of one": (drop("step", 2, step=7), "replica 1 has no line for step 7"),
    "missing last steps of all": (drop("step", step=7), "exit after step 7, the log says 6"),
    "no step": (drop("step"), "no step was committed"),
    "no start": (no_start, "step event before any start line"),
    "no failure line of one": (drop("failure", 2, epoch=1), "no failure line of epoch 1"),
    "no failure line of all": (drop("failure", epoch=1), "replica 0 has no line for step 2"),
    "another victim": (change("failure", 2, failed=[1], failed_ranks=[2]), "failed is "),
    "another decision": (change("failure", 2, boundary=False), "boundary is true, but false in"),
    "another extra": (change("failure", 9, extra={}), "failure of step 2: extra is "),
    "wrong ranks": (change("failure", where={"epoch": 1}, failed_ranks=[2]), "are not ranks of"),
    "named twice": (change("failure", where={"epoch": 1}, failed=[0, 0]), "must name each replica"),
    "nobody failed": (
        change("failure", where={"epoch": 1}, failed=[]),
        "are not ranks of replicas",
    ),
    "died twice": (change("failure", where={"epoch": 2}, failed=[0]), "replica 0 reported dead"),
    "unknown victim": (change("failure", where={"epoch": 2}, failed=[9]), "replica 9 reported"),
    "nobody left": (nobody_left, "no replica survived"),
    "an epoch again": (change("failure", where={"epoch": 2}, epoch=1), "second failure line of"),
    "epoch 0": (change("failure", where={"epoch": 1}, epoch=0), "epoch 0 does not follow epoch 0"),
    "epochs out of order": (swap_epochs, "epoch 2 is at step 2, before 5"),
    "the dead report": (zombie, "failure event after the rank killed itself"),
    "reports its own death": (
        change("failure", where={"epoch": 1}, failed=[1], failed_ranks=[2]),
        "replica 1 reports its own death",
    ),
    "a death nobody noticed": (unnoticed, "replica 1 was killed at step 3, nobody noticed"),
    "missing file": (missing_file, "rank 3 has no start line, its log is missing"),
    "a file cut at a line": (missing_leader, "replica 1 has no line for step 0"),
    "a file too many": (extra_file, "rank 10 in a world of 10 ranks"),
    "file of another rank": (
        change("start", 4, rank=3),
        r"rank, replica, position are \(3, 2, 0\)",
    ),
    "another batch": (
        change("start", global_batch=41),
        "global_batch is 41, replicas . grad_accum is 40",
    ),
    "another batch of one": (
        change("start", 2, global_batch=48),
        "global_batch is 48, other ranks",
    ),
    "another policy of one": (change("start", 2, policy="exact"), "policy is 'exact', other ranks"),
    "no replicas": (change("start", replicas=0), "replicas is 0, below 1"),
    "no exit": (drop("exit", 2), "rank 2 survived, but has 0 exit lines"),
    "no exit at all": (drop("exit"), "rank 2 survived, but has 0 exit lines"),
    "bad exit": (change("exit", 2, code=1, reason="stuck"), "rank 2 ended with code 1: stuck"),
    "other parameters": (change("exit", 9, parameters="0" * 64), "parameters differ from those"),
    "no digest": (change("exit", 2, parameters=None), "exit without a digest"),
    "another last step": (change("exit", 2, step=6), "exit after step 6, the log says 7"),
    "a field is missing": (lambda log: find(log, "step", 2).pop("ids"), "step event without 'ids'"),
    "a text for a number": (change("step", 2, total="40"), "step event with total = '40'"),
    "true for a number": (change("step", 2, total=True), "step event with total = 'True'"),
    "ids that are no list": (change("step", 2, ids={"1": 3}), "step event with ids = "),
    "replicas that are no numbers": (change("step", 2, contributions={"a": 3}), "contributions ="),
    "a replica written oddly": (change("step", 2, contributions={"01": 3}), "contributions ="),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_detected(tmp_path: Path, good: Log, name: str) -> None:
    mutate, expected = CORRUPTIONS[name]
    log = copied(good)
    mutate(log)
    save(log, tmp_path)
    problems = verify(tmp_path).problems
    assert any(re.search(expected, problem) for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_the_log_is_good_before_it_is_corrupted(tmp_path: Path, good: Log) -> None:
    save(copied(good), tmp_path)
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.failures, verdict.lost, verdict.survivors) == (2, ((0, 2),), (1, 4))


@pytest.mark.parametrize("last", [1, 40, 1500])
def test_a_torn_file_is_refused_by_name_and_line(tmp_path: Path, good: Log, last: int) -> None:
    save(copied(good), tmp_path)
    path = tmp_path / "events" / "2.jsonl"
    raw = path.read_bytes()
    path.write_bytes(raw[:-last])
    lines = raw[:-last].count(b"\n") + 1
    assert verify(tmp_path).problems == (
        f"{path}:{lines}: torn line, the file ends in the middle of it",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty, it needs at least a start line"),
        (b'{"event": \n', ":1: torn or invalid line"),
        (b"\xff\xfe\n", ":1: torn or invalid line"),
        (b"3\n", ":1: not an event but a int"),
        (b'{"time": 1}\n', ":1: an event without 'event'"),
        (b'{"event": 1, "time": 1}\n', ":1: 1 event with event = '1'"),
        (b'{"event": "any"}\n', ":1: any event without 'time'"),
        (b'{"event": "any", "time": 1}\n', ":1: any event before any start line"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "0.jsonl").write_bytes(content)
    (found,) = verify(tmp_path).problems
    assert problem in found


def test_every_deleted_line_that_carries_evidence_is_missed(tmp_path: Path, good: Log) -> None:
    """Of a survivor's log no start, step, failure or exit can go without being noticed."""
    rank = 2
    for index, event in enumerate(good[rank]):
        if event["event"] not in ("start", "step", "failure", "exit"):
            continue
        out = tmp_path / str(index)
        out.mkdir()
        log = copied(good)
        del log[rank][index]
        save(log, out)
        assert not verify(out).holds, event


def test_two_start_lines_of_one_run_are_refused(tmp_path: Path, good: Log) -> None:
    log = copied(good)
    log[2].append(log[2][0])
    save(log, tmp_path)
    assert "second start line of run first" in verify(tmp_path).problems[0]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("static", "step 3: id 96 was left behind"),
        ("exact", "step 3: exact has to commit ids 96 to 127; id 96 is missing"),
    ],
)
def test_ids_that_change_places_between_steps_are_noticed(
    tmp_path: Path, policy: str, problem: str
) -> None:
    """Every count is right and every id committed once, and still it is not the promised batch."""
    play_run(tmp_path / "run", policy=policy)
    log = load(tmp_path / "run")
    for rank in log:
        earlier, later = (find(log, "step", rank, step=step)["ids"]["0"] for step in (3, 4))
        earlier[0], later[0] = later[0], earlier[0]
    save(log, tmp_path)
    assert any(problem in found for found in verify(tmp_path).problems)


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
        "print(sorted(m for m in known if m.partition('.')[0] in "
        "('torch', 'yaml', 'workload_policy', 'ulfm_core', 'grad_txn', 'mpi4py')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "['grad_txn', 'grad_txn._evidence', 'grad_txn.verify']"

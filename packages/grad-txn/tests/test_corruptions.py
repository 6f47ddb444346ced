"""What the judge must never let pass: corruptions of a log that is good before."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grad_txn.failures import At, Kill
from grad_txn.log.verify import verify
from grad_txn.testing.events import Events, read_events, write_events
from grad_txn.testing.played import play_run

pytestmark = pytest.mark.timeout(60)

KILLS = (
    Kill(step=2, replica=0, at=At.DURING_SYNC),
    Kill(step=5, replica=2, at=At.DURING_SYNC),
    Kill(step=7, replica=3, at=At.AFTER_COMMIT),
)
"""Of 5 replicas with 2 ranks, 8 steps: a boundary, a promotion, and a death no step follows."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Events:
    out = tmp_path_factory.mktemp("good")
    play_run(out, replicas=5, replica_size=2, kills=KILLS)
    return read_events(out)


def copied(log: Events) -> Events:
    return {rank: json.loads(json.dumps(events)) for rank, events in log.items()}


# Each corruption is one that a bug, a bad disk or a cheat could cause.


def find(log: Events, event: str, rank: int, **fields: object) -> dict[str, Any]:
    return next(
        e
        for e in log[rank]
        if e["event"] == event and all(e.get(name) == value for name, value in fields.items())
    )


def all_of(log: Events, event: str, **fields: object) -> list[dict[str, Any]]:
    return [
        e
        for events in log.values()
        for e in events
        if e["event"] == event and all(e.get(name) == value for name, value in fields.items())
    ]


def drop(event: str, rank: int | None = None, **fields: object) -> Callable[[Events], None]:
    def mutate(log: Events) -> None:
        doomed = all_of(log, event, **fields)
        assert doomed
        for name, events in log.items():
            if rank in (None, name):
                log[name] = [e for e in events if not any(e is d for d in doomed)]

    return mutate


def change(
    event: str, rank: int | None = None, /, where: dict[str, Any] | None = None, **values: Any
) -> Callable[[Events], None]:
    def mutate(log: Events) -> None:
        if rank is None:
            changed = all_of(log, event, **(where or {}))
        else:
            changed = [find(log, event, rank, **(where or {}))]
        assert changed
        for e in changed:
            e.update({k: v(e[k]) if callable(v) else v for k, v in values.items()})

    return mutate


def own(log: Events, replica: int, step: int = 3) -> dict[str, Any]:
    """What a replica of two ranks says it did in a step."""
    return find(log, "step", 2 * replica, step=step)


def recount(log: Events) -> None:
    """One microbatch is dropped, and every number agrees that it was."""
    line, (lead,) = own(log, 1), all_of(log, "commit", step=3)
    line["ids"][-1][1] -= 1
    line["weight_sum"] -= 1
    lead["total"] -= 1


def move(log: Events, first: int) -> None:
    """Of step 3 replica 1 has as many ids as it had, from another one on."""
    line = own(log, 1)
    line["ids"] = [[first, first + sum(b - a for a, b in line["ids"])]]


def same_id_twice(log: Events) -> None:
    move(log, own(log, 4)["ids"][0][0])


def old_id(log: Events) -> None:
    move(log, 0)


def skipped_id(log: Events) -> None:
    line = own(log, 1, 6)
    last = line["ids"][-1]
    last[1] -= 1
    line["ids"].append([10_000, 10_000])


def negative_id(log: Events) -> None:
    own(log, 1)["ids"][0][0] = -1


def lone_worker(log: Events) -> None:
    """One replica is credited with all ids, and every number agrees with it."""
    lines = [own(log, replica) for replica in (1, 2, 3, 4)]
    ids = sorted(r for line in lines for r in line["ids"])
    total = {name: sum(line[name] for line in lines) for name in ("loss_sum", "weight_sum")}
    for line in lines:
        line.update(ids=[], loss_sum=0.0, weight_sum=0.0)
    lines[0].update(total, ids=ids)


def no_loss(log: Events) -> None:
    for e in all_of(log, "step"):
        e["loss_sum"] = 0.0
    for e in all_of(log, "commit"):
        e.update(loss=0.0, grad_norm="nan")


def jump_after_a_death(log: Events) -> None:
    """In a step with a death ids are left out that nobody gave back."""
    line = own(log, 1, 2)
    line["ids"][-1][1] -= 1
    line["ids"].append([5_000, 5_000])


def dead_with_other_parameters(log: Events) -> None:
    """Replica 0 was called dead, and goes on to the end with parameters of its own."""
    log[0] = [e for e in log[0] if e["event"] == "start"]
    log[0].append(find(log, "exit", 2) | {"parameters": "f" * 64})


def two_leaders(log: Events) -> None:
    log[8].insert(-1, find(log, "commit", 2, step=7))


def no_last_step(log: Events) -> None:
    drop("step", step=7)(log)
    drop("commit", step=7)(log)


def no_commit(log: Events) -> None:
    drop("commit", 2, step=4)(log)


def ghost(log: Events) -> None:
    log[0].insert(-1, find(log, "step", 2, step=3) | {"replica": 0})


def twice(log: Events) -> None:
    log[2].append(find(log, "step", 2, step=7))


def foreign(log: Events) -> None:
    moved = find(log, "step", 2, step=7)
    log[2].remove(moved)
    log[8].append(moved)


def gap(log: Events) -> None:
    drop("step", step=4)(log)
    drop("commit", step=4)(log)


def no_start(log: Events) -> None:
    del log[2][0]


def nobody_left(log: Events) -> None:
    for e in all_of(log, "failure", epoch=2):
        e.update(failed=[1, 2, 3, 4], failed_ranks=[2, 4, 6, 8])


def zombie(log: Events) -> None:
    log[0].append(find(log, "failure", 2, epoch=2))


def swap_epochs(log: Events) -> None:
    for e in all_of(log, "failure"):
        e["epoch"] = 3 - e["epoch"]


def missing_file(log: Events) -> None:
    del log[3]


def missing_leader(log: Events) -> None:
    log[2] = log[2][:1]


def extra_file(log: Events) -> None:
    log[10] = [log[9][0] | {"rank": 10, "replica": 5, "position": 0}]


def unnoticed(log: Events) -> None:
    inject = find(log, "inject", 0)
    log[2].append(inject | {"replica": 1, "step": 3})


def two_in_one(log: Events) -> None:
    for rank in (6, 7):
        log[rank][0]["replica"] = 2


def change_places(log: Events) -> None:
    """Of replicas 2 and 3 both leaders say that they are the other one."""
    log[4][0]["replica"], log[6][0]["replica"] = 3, 2


CORRUPTIONS: dict[str, tuple[Callable[[Events], None], str]] = {
    "a microbatch less": (recount, "step 3: number of ids 39; it has to be 40"),
    "total too small": (
        change("commit", where={"step": 3}, total=39),
        "step 3: total 39, number of ids 40",
    ),
    "an id twice in a step": (same_id_twice, r"step 3: id \d+ committed twice"),
    "an id of an earlier step": (old_id, "step 3: id 0 committed before"),
    "an id left behind": (skipped_id, r"step 6: id \d+ was left behind"),
    "ids that jump after a death": (jump_after_a_death, r"step 2: id \d+ was left behind"),
    "a negative id": (negative_id, "step event with ids ="),
    "a lone worker": (lone_worker, "step 3: a major without ids"),
    "no loss and no norm": (no_loss, "grad_norm is nan, but the loss 0.0"),
    "a dead replica that finishes": (dead_with_other_parameters, "parameters differ from those"),
    "a second leader": (two_leaders, "commit line of replica 4, replica 1 led"),
    "no commit line": (no_commit, "replica 1 led step 4, but has no commit line"),
    "wrong count of the living": (
        change("commit", where={"step": 3}, living=5),
        "step 3: living is 5, it has to be 4",
    ),
    "wrong epoch": (change("step", where={"step": 3}, epoch=0), "epoch is 0, the last failure"),
    "a loss of its own": (
        change("commit", 2, where={"step": 3}, loss=lambda x: x + 1e-6),
        "step 3: loss is ",
    ),
    "a replica's other loss": (
        change("step", 4, where={"step": 3}, loss_sum=lambda x: x + 1e-6),
        "step 3: loss is ",
    ),
    "another plan": (change("step", 8, where={"step": 3}, plan="0" * 15), "step 3: plan is "),
    "an unknown role": (
        change("step", 8, where={"step": 3}, role="boss"),
        "step 3: role is 'boss'",
    ),
    "a step of the dead": (ghost, "replica 0 committed step 3 after its death"),
    "a step twice": (twice, "step 7 committed twice by replica 1"),
    "a step in another's log": (foreign, "step line of replica 1 in another's log"),
    "a missing step": (gap, "step 5 follows, step 4 is missing"),
    "a missing step of one": (drop("step", 2, step=4), "replica 1 has no line for step 4"),
    "a missing last step of one": (drop("step", 2, step=7), "replica 1 has no line for step 7"),
    "missing last steps of all": (no_last_step, "exit after step 7, the log says 6"),
    "no step": (drop("step"), "no step was committed"),
    "no start": (no_start, "step event before any start line"),
    "no failure line of one": (drop("failure", 2, epoch=1), "no failure line of epoch 1"),
    "no failure line of all": (drop("failure", epoch=1), "replica 0 has no line for step 2"),
    "another victim": (change("failure", 2, failed=[1], failed_ranks=[2]), "failed is "),
    "another decision": (change("failure", 2, boundary=False), "boundary is true, but false in"),
    "another extra": (
        change("failure", 9, extra_ids={}),
        "failure of step 2: extra_ids is ",
    ),
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
    "epochs out of order": (swap_epochs, "epoch 1 does not follow epoch 2"),
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
        "rank is 3, this file belongs to rank 4",
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
    "another promise of one": (
        change("start", 2, promise="none"),
        "promise is 'none', other ranks started with 'batch'",
    ),
    "a promise nobody knows": (
        change("start", promise="best effort"),
        "promise is 'best effort', the judge knows exact, batch, none",
    ),
    "no promise": (lambda log: find(log, "start", 2).pop("promise"), "start event without 'prom"),
    "no replicas": (change("start", replicas=0), "replicas is 0, below 1"),
    "nobody living": (change("start", living=0), "living is 0, below 1"),
    "more living than there are": (
        change("start", living=6),
        "rank 10 has no start line, its log is missing",
    ),
    "fewer living than there are": (change("start", living=4), "rank 8 in a world of 8 ranks"),
    "another living of one": (change("start", 2, living=4), "living is 4, other ranks"),
    "a position held twice": (
        change("start", 5, position=0),
        r"5.jsonl:1: position 0 of replica 2 is taken by \S*4.jsonl:1",
    ),
    "a position that is none": (change("start", 5, position=2), "a replica has positions 0 to 1"),
    "a replica below 0": (change("start", 5, replica=-1), "replica is -1, below 0"),
    "a replica too many": (
        change("start", 5, replica=7),
        "replicas 0, 1, 2, 3, 4, 7 started, living is 5",
    ),
    "two replicas in one": (two_in_one, "position 0 of replica 2 is taken by"),
    "ranks that changed places": (change_places, "step line of replica 2 in another's log"),
    "a dead rank nobody knows": (
        change("failure", where={"epoch": 1}, failed_ranks=[99]),
        r"failed_ranks \[99\] are not ranks of",
    ),
    "no exit": (drop("exit", 2), "rank 2 survived, but has 0 exit lines"),
    "no exit at all": (drop("exit"), "rank 2 survived, but has 0 exit lines"),
    "bad exit": (change("exit", 2, code=1, reason="stuck"), "rank 2 ended with code 1: stuck"),
    "other parameters": (change("exit", 9, parameters="0" * 64), "parameters differ from those"),
    "no digest": (change("exit", 2, parameters=None), "exit without a digest"),
    "another last step": (change("exit", 2, step=6), "exit after step 6, the log says 7"),
    "a field is missing": (lambda log: find(log, "step", 2).pop("ids"), "step event without 'ids'"),
    "a text for a number": (change("commit", 2, total="40"), "commit event with total = '40'"),
    "true for a number": (change("commit", 2, total=True), "commit event with total = 'True'"),
    "ids that are no list": (change("step", 2, ids={"1": 3}), "step event with ids = "),
    "replicas that are no numbers": (
        change("failure", 2, contributions={"a": 3}),
        "contributions =",
    ),
    "a replica written oddly": (change("failure", 2, contributions={"01": 3}), "contributions ="),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_detected(tmp_path: Path, good: Events, name: str) -> None:
    mutate, expected = CORRUPTIONS[name]
    log = copied(good)
    mutate(log)
    write_events(log, tmp_path)
    problems = verify(tmp_path).problems
    assert any(re.search(expected, problem) for problem in problems), problems
    assert all("\n" not in problem for problem in problems)


def test_the_log_is_good_before_it_is_corrupted(tmp_path: Path, good: Events) -> None:
    write_events(copied(good), tmp_path)
    verdict = verify(tmp_path)
    assert verdict.problems == ()
    assert (verdict.failures, verdict.lost, verdict.survivors) == (2, ((0, 2),), (1, 4))


@pytest.mark.parametrize("last", [1, 40, 1500])
def test_a_torn_file_is_refused_by_name_and_line(tmp_path: Path, good: Events, last: int) -> None:
    write_events(copied(good), tmp_path)
    path = tmp_path / "events" / "2.jsonl"
    raw = path.read_bytes()
    path.write_bytes(raw[:-last])
    lines = raw[:-last].count(b"\n") + 1
    torn = f"{path}:{lines}: torn line, the file ends in the middle of it"
    assert torn in verify(tmp_path).problems


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


def test_every_deleted_line_that_carries_evidence_is_missed(tmp_path: Path, good: Events) -> None:
    """Of a survivor's log no start, step, failure or exit can go without being noticed."""
    rank = 2
    for index, event in enumerate(good[rank]):
        if event["event"] not in ("start", "step", "commit", "failure", "exit"):
            continue
        out = tmp_path / str(index)
        out.mkdir()
        log = copied(good)
        del log[rank][index]
        write_events(log, out)
        assert not verify(out).holds, event


def test_two_start_lines_of_one_run_are_refused(tmp_path: Path, good: Events) -> None:
    log = copied(good)
    log[2].append(log[2][0])
    write_events(log, tmp_path)
    assert "second start line of run first" in verify(tmp_path).problems[0]


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("static", "step 3: id 96 was left behind"),
        ("exact", "step 3: exact has to commit ids 96 to 127, not"),
    ],
)
def test_ids_that_change_places_between_steps_are_noticed(
    tmp_path: Path, policy: str, problem: str
) -> None:
    """Every count is right and every id committed once, and still it is not the promised batch."""
    play_run(tmp_path / "run", policy=policy)
    log = read_events(tmp_path / "run")
    earlier, later = (find(log, "step", 0, step=step)["ids"] for step in (3, 4))
    earlier[:], later[:] = list(later), list(earlier)
    write_events(log, tmp_path)
    assert any(problem in found for found in verify(tmp_path).problems)

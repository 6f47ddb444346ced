from pathlib import Path

import pytest

from grad_txn.errors import LogError
from grad_txn.failures import At, Kill
from grad_txn.log.history import read_history
from grad_txn.testing.events import read_events, write_events
from grad_txn.testing.played import LEFT, play_run

pytestmark = pytest.mark.timeout(60)


def kill(step: int, replica: int, at: At = At.DURING_SYNC) -> Kill:
    return Kill(step=step, replica=replica, at=at)


def test_steps_are_those_that_were_committed(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(2, 0)], replica_size=2)
    history = read_history(tmp_path)
    assert [step.step for step in history.steps] == list(range(8))
    assert [step.ranks for step in history.steps] == [8, 8, 6, 6, 6, 6, 6, 6]
    assert [step.boundary for step in history.steps].index(True) == 2
    first = history.steps[0]
    assert first.roles == dict.fromkeys(range(4), "major")
    assert first.throughput == pytest.approx(32 * 512 / (first.seconds * 8))


def test_a_recovery_is_broken_down(tmp_path: Path) -> None:
    """The played run takes 20 ms to repair, 12 to restore, then 3 extra microbatches of 30 ms."""
    play_run(tmp_path, kills=[kill(2, 0)])
    (recovery,) = read_history(tmp_path).recoveries
    assert (recovery.step, recovery.epoch, recovery.extra, recovery.boundary) == (2, 1, 8, True)
    assert (recovery.detect, recovery.repair, recovery.record) == (0.004, 0.013, 0.003)
    assert (recovery.restore, recovery.rereduce) == (0.002, 0.02)
    assert recovery.compute == pytest.approx(0.09)
    assert recovery.to_commit == pytest.approx(0.02 + 0.012 + 0.09 + 0.02, abs=1e-5)
    assert recovery.overhead == pytest.approx(0.02 + 0.012 + 0.02, abs=1e-5)


def test_two_deaths_in_a_step_share_its_commit(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(2, 0), kill(2, 1, At.DURING_EXTENSION)])
    first, second = read_history(tmp_path).recoveries
    assert first.to_commit is not None
    assert second.to_commit is not None
    assert first.to_commit > second.to_commit
    assert first.compute_to_commit == pytest.approx(first.compute + second.compute)
    assert second.compute_to_commit == pytest.approx(second.compute)


def test_a_replica_goes_as_a_whole(tmp_path: Path) -> None:
    play_run(
        tmp_path,
        replica_size=3,
        kills=[
            Kill(step=2, replica=0, position=1, at=At.DURING_SYNC),
            Kill(step=4, replica=3, position=2, at=At.FORWARD),
        ],
    )
    history = read_history(tmp_path)
    assert [(death.replica, death.positions) for death in history.deaths] == [(0, (1,)), (3, (2,))]
    assert [death.gone for death in history.deaths] == [pytest.approx(0.006, abs=1e-6)] * 2
    assert history.median_gone() == pytest.approx(0.006, abs=1e-6)


def test_without_peers_nobody_has_to_follow(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[Kill(step=2, replica=0, at=At.DURING_SYNC)])
    (death,) = read_history(tmp_path).deaths
    assert (death.positions, death.gone) == ((0,), None)


def test_a_peer_that_left_no_word_leaves_it_open(tmp_path: Path) -> None:
    play_run(
        tmp_path, replica_size=3, kills=[Kill(step=2, replica=0, position=1, at=At.DURING_SYNC)]
    )
    log = tmp_path / "events" / "2.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if f'"code": {LEFT}' not in line))
    assert read_history(tmp_path).deaths[0].gone is None


def test_a_death_from_outside_has_no_known_time(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(2, 0)])
    path = tmp_path / "events" / "0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(x for x in lines if '"inject"' not in x))
    history = read_history(tmp_path)
    (death,) = history.deaths
    assert (death.replica, death.step, death.at, death.time) == (0, 2, "outside", None)
    assert history.recoveries[0].to_commit is None
    assert history.median_overhead() is None


def test_a_resumed_run_replaces_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(1, 0), kill(5, 2)], stop=7)
    checkpoint = play_run(tmp_path / "aside", kills=[kill(1, 0)], stop=4)
    play_run(tmp_path, resume=checkpoint, run="second", begin=1.8e9, kills=[kill(6, 1)])
    history = read_history(tmp_path)
    assert [step.step for step in history.steps] == list(range(8))
    assert [step.living for step in history.steps] == [4, 3, 3, 3, 4, 4, 3, 3]
    assert [(death.step, death.replica) for death in history.deaths] == [(1, 0), (6, 1)]
    assert history.resumed == (4,)


def test_a_log_without_steps_is_refused(tmp_path: Path) -> None:
    play_run(tmp_path, stop=0)
    with pytest.raises(LogError, match="no step was committed"):
        read_history(tmp_path)


def test_a_log_without_a_start_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "0.jsonl").write_text(
        '{"event": "exit", "time": 1, "code": 0, "reason": ""}\n'
    )
    with pytest.raises(LogError, match="no run was recorded"):
        read_history(tmp_path)


def test_an_event_that_lacks_a_field_is_refused(tmp_path: Path) -> None:
    play_run(tmp_path)
    events = read_events(tmp_path)
    del events[1][1]["loss_sum"]
    write_events(events, tmp_path)
    with pytest.raises(LogError, match=r"1.jsonl:2: step line without 'loss_sum'"):
        read_history(tmp_path)


def test_who_had_no_extra_work_does_not_hide_that_of_others(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(2, 0)])
    events = read_events(tmp_path)
    for line in (*events[2], *events[3]):  # a patch that replica 1 alone has computed
        if line["event"] == "extend":
            line |= {"microbatches": 0, "seconds": 0.0}
    write_events(events, tmp_path)
    (recovery,) = read_history(tmp_path).recoveries
    assert recovery.compute == pytest.approx(0.09)
    assert recovery.compute_to_commit == pytest.approx(0.09)


def test_a_replica_and_its_ranks_are_as_the_start_lines_say(tmp_path: Path) -> None:
    """Ranks 1 and 2 have changed places, as in a world that numbers position by position."""
    play_run(tmp_path, replicas=2, replica_size=2, kills=[kill(2, 0)])
    events = read_events(tmp_path)
    events[1], events[2] = events[2], events[1]
    for rank, lines in events.items():
        lines[0]["rank"] = rank
    write_events(events, tmp_path)
    (death,) = read_history(tmp_path).deaths
    assert (death.replica, death.positions) == (0, (0,))
    assert death.gone == pytest.approx(0.006, abs=1e-6)


def test_what_was_lost_is_named_by_replica(tmp_path: Path) -> None:
    play_run(tmp_path, kills=[kill(2, 3), kill(2, 1)])
    (recovery,) = read_history(tmp_path).recoveries
    assert recovery.failed == (1, 3)

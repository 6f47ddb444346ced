"""The guard: nothing waits for ever, and nobody is ended who should not be."""

from pathlib import Path

import pytest

from ulfm_core.testing import JobResult, run_ranks

PROGRAM = Path(__file__).parent / "programs" / "bounds.py"

pytestmark = pytest.mark.mpi


def run(case: str, ranks: int) -> JobResult:
    job = run_ranks(PROGRAM, ranks, [case])
    assert job.returncode == 0, job.stderr
    return job


@pytest.mark.parametrize("attempt", range(3))
def test_a_rank_ends_when_its_replica_loses_another(attempt: int) -> None:
    job = run("peer", 6)
    for rank in (0, 1, 4, 5):
        assert {"members": [0, 1, 4, 5]} in job.lines[rank]
    ended = next(line["ended"] for line in job.lines[3] if "ended" in line)
    assert ended - job.lines[2][0]["killed"] < 0.5
    assert "rank 3 (replica 1, position 1): rank 2 of its replica died" in job.stderr


def test_the_step_limit_ends_a_rank_that_hangs_and_says_where() -> None:
    job = run("hang", 4)
    assert [job.lines.get(rank) for rank in range(4)] == [
        [{"members": [0, 2, 3]}], None, [{"members": [0, 2, 3]}], [{"members": [0, 2, 3]}],
    ]  # fmt: skip
    assert "rank 1 (replica 1, position 0): no progress for 1.0 s, stuck at: step 2, forward" in (
        job.stderr
    )


def test_a_slow_rank_and_those_who_wait_for_it_live() -> None:
    job = run("slow", 3)
    assert all(job.lines[rank] == [{"members": [0, 1, 2]}] for rank in range(3))


def test_the_wait_limit_ends_those_who_wait_too_long() -> None:
    job = run_ranks(PROGRAM, 3, ["wait"])
    assert job.lines == {1: [{"alive": True}]}
    assert job.stderr.count("'all-reduce' has not returned for 1.5 s") == 2


def test_the_recovery_limit_ends_a_rank_that_stalls_a_repair() -> None:
    job = run("frozen", 4)
    assert job.lines == {0: [{"members": [0, 3]}], 3: [{"members": [0, 3]}]}
    assert "'repair: fence' has not returned for 2.0 s" in job.stderr


@pytest.mark.parametrize("case", ["quiesce", "quiesce-guarded", "quiesce-replicas"])
def test_quiesce_skips_what_is_queued_and_wakes_the_others(case: str) -> None:
    job = run(case, 4)
    for rank in range(4):
        line = job.lines[rank][0]
        assert line["all_alive"]
        assert line["failed"] == []
        assert line["epoch"] == 1
        if case != "quiesce-replicas" or rank == 2:  # the only other one in rank 0's group
            assert line["outcomes"] == (["QUIESCED"] if rank == 0 else ["FAILED", "QUIESCED"])


def test_signal_handlers_run_while_a_rank_waits() -> None:
    (line,) = run("signals", 2).lines[0]
    assert line["heard"]
    assert line["heard"][0] < 1.0


def test_a_callback_cannot_wait_for_its_own_thread() -> None:
    job = run("callback", 2)
    for rank in range(2):
        (line,) = job.lines[rank]
        assert "a callback must not wait" in line["caught"][0]
    assert job.stderr.count("ZeroDivisionError") == 2


def test_one_rank_is_a_world() -> None:
    assert run("one", 1).lines == {0: [{"members": [0], "failed": []}]}


def test_a_rank_that_its_guard_ends_has_a_code_of_its_own(tmp_path: Path) -> None:
    noted = tmp_path / "codes"
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import subprocess, sys\n"
        f"code = subprocess.run([sys.executable, {str(PROGRAM)!r}, 'hang']).returncode\n"
        f"open({str(noted)!r}, 'a').write(f'{{code}} ')\n"
    )
    job = run_ranks(wrapper, 4)
    assert sorted(noted.read_text().split()) == ["0", "0", "0", "75"], job.stderr

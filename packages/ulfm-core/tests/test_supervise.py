import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from ulfm_core.testing import run_ranks

pytestmark = pytest.mark.mpi

Program: TypeAlias = Callable[[str], Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(PREAMBLE + textwrap.dedent(text))
        return path

    return write


PREAMBLE = """
import os, signal, sys, time
from ulfm_core.rank.report import report
from ulfm_core.testing import say
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])

def go_on_without(*dead, by=signal.SIGKILL):
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    world.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        world.Barrier()
        if rank in dead:
            os.kill(os.getpid(), by)
        while True:
            world.Barrier()
    except MPI.Exception:
        world.Revoke()
    survivors = world.Shrink()
    say(survivors=survivors.allreduce(1))

"""


def alive(marker: str) -> list[str]:
    """Return the processes whose environment has this marker in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (process / "environ").read_bytes():
                found.append(process.name)
    return found


@pytest.mark.parametrize("dead", [[2], [0], [1, 3], [0, 1]])
def test_zero_when_the_survivors_finish(program: Program, dead: list[int]) -> None:
    job = run_ranks(program(f"go_on_without(*{dead})"), 4)
    assert job.returncode == 0, job.stderr
    names = " and ".join(map(str, dead))
    left = 4 - len(dead)
    assert f"ulfmrun: {left} of 4 ranks finished; lost: rank" in job.stderr
    assert names in job.stderr
    assert [job.lines[rank] for rank in range(4) if rank not in dead] == [
        [{"survivors": left}]
    ] * left


def test_silent_when_nothing_happened(program: Program) -> None:
    job = run_ranks(program("say(rank=rank)"), 3)
    assert (job.returncode, job.stdout, job.stderr) == (0, "", "")
    assert job.lines == {rank: [{"rank": rank}] for rank in range(3)}


# A barrier that some have left still fails in those who have not, once a rank that left it is dead:
# each says that it is out, and dies when all have said so.
ALL_LEFT_A_BARRIER = """
from mpi4py import MPI
from pathlib import Path
MPI.COMM_WORLD.Barrier()
here = Path(__file__).parent
(here / f"{rank}.left").touch()
until = time.monotonic() + 30
while len(list(here.glob("*.left"))) < 3 and time.monotonic() < until:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("before", ["", ALL_LEFT_A_BARRIER], ids=["without-mpi", "with-mpi"])
def test_nobody_finished(program: Program, before: str) -> None:
    kill = "report('progress', step=5)\nos.kill(os.getpid(), signal.SIGKILL)"
    job = run_ranks(program(f"{before}{kill}"), 3)
    assert job.returncode == 1
    last = job.stderr.strip().splitlines()[-1]
    assert "no rank finished: ranks 0, 1 and 2 lost after step 5" in last
    assert "checkpoint" in last


@pytest.mark.parametrize("pause", [0.0, 1.0])
def test_bad_input_is_answered_once(program: Program, pause: float) -> None:
    text = f"""
        time.sleep({pause} * (rank == 0))
        import argparse
        parser = argparse.ArgumentParser(prog="train", usage="train [--steps N]")
        parser.add_argument("--steps", type=int)
        parser.parse_args()
    """
    job = run_ranks(program(text), 4, ["--steps", "many"])
    assert job.returncode == 2
    refused = "train: error: argument --steps: invalid int value: 'many'"
    assert job.stderr.splitlines() == ["usage: train [--steps N]", refused]


def test_bad_input_is_answered_once_though_the_exit_takes_long(program: Program) -> None:
    text = """
        import atexit
        atexit.register(time.sleep, 0.6)
        print("refused", file=sys.stderr)
        sys.exit(2)
    """
    job = run_ranks(program(text), 3)
    assert job.returncode == 2
    assert job.stderr.splitlines() == ["refused"]


def test_a_missing_module_is_bad_input(program: Program) -> None:
    job = run_ranks("json.no_such_part", 3)
    assert job.returncode == 2
    assert job.stderr.splitlines() == ["ulfmrun: no such module: 'json.no_such_part'"]


def test_an_exception_fails_the_job_and_is_shown(program: Program) -> None:
    job = run_ranks(program("assert rank != 1, 'rank one is wrong'"), 3)
    assert job.returncode == 1
    assert job.stderr.count("AssertionError: rank one is wrong") == 1
    assert "bootstrap" not in job.stderr
    assert job.stderr.strip().splitlines()[-1] == "ulfmrun: rank 1 failed, exit code 1"


def test_an_exception_in_one_mpi_program_is_a_death_to_the_others(program: Program) -> None:
    text = """
        if rank == 1:
            from mpi4py import MPI
            MPI.COMM_WORLD.Barrier()
            sys.exit(7)
        go_on_without()
    """
    job = run_ranks(program(text), 3)
    assert job.returncode == 7
    assert job.lines == {0: [{"survivors": 2}], 2: [{"survivors": 2}]}


def test_other_exit_codes_are_handed_on(program: Program) -> None:
    job = run_ranks(program("sys.exit(0 if rank else 41)"), 2)
    assert job.returncode == 41


def test_exit_functions_have_run_before_the_rank_counts_as_finished(program: Program) -> None:
    text = """
        import atexit, threading
        atexit.register(lambda: say(exit_function=True))
        threading.Thread(target=lambda: (time.sleep(0.3), say(thread=True))).start()
    """
    job = run_ranks(program(text), 2)
    assert job.returncode == 0
    assert job.lines[1] == [{"thread": True}, {"exit_function": True}]


def test_a_rank_that_counts_itself_lost_is_lost(program: Program) -> None:
    job = run_ranks(program("if rank == 1: report('lost', ranks=[1]); sys.exit(3)"), 3)
    assert job.returncode == 0
    assert "2 of 3 ranks finished; lost: rank 1" in job.stderr


def test_a_condemned_rank_is_lost_and_needs_no_traceback(program: Program) -> None:
    text = """
        from ulfm_core import ReplicaCondemnedError
        if rank == 1:
            raise ReplicaCondemnedError("replica 0 is lost", failed=(0,), epoch=1)
    """
    job = run_ranks(program(text), 3)
    assert job.returncode == 0
    assert job.stderr.splitlines() == [
        "rank 1: replica 0 is lost",
        "ulfmrun: 2 of 3 ranks finished; lost: rank 1",
    ]


def test_a_stopped_rank_does_not_hold_the_job_up(program: Program) -> None:
    text = "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)"
    start = time.monotonic()
    job = run_ranks(program(text), 3, options=["--grace", "1"])
    assert job.returncode == 0
    assert time.monotonic() - start < 10
    assert "killed rank 1" in job.stderr
    assert "stopped" in job.stderr
    assert "2 of 3 ranks finished; lost: rank 1" in job.stderr


def test_a_rank_declared_lost_is_killed_while_the_others_go_on(program: Program) -> None:
    text = """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        report("lost", ranks=[1])
        time.sleep(3)
    """
    job = run_ranks(program(text), 3, options=["--grace", "1"])
    assert job.returncode == 0
    assert "killed rank 1" in job.stderr
    assert "declared lost" in job.stderr


def replicas(text: str) -> str:
    """Return a program of replicas of two ranks each that ends in this text."""
    return textwrap.dedent(REPLICAS) + textwrap.dedent(text)


# What Open MPI says when a message for the dead meets a closed connection. A survivor's revoke gets
# EPIPE, its transport closes the socket and then waits for it (strace shows that order); or it is
# mpirun's own, for a rank that dies meanwhile.
CLOSED = re.compile(
    r"\[warn\] Epoll (ADD|MOD)\(\d\) on fd \d+ failed\. .*: Bad file descriptor$"
    r"|\[\S+:\d+\] pmix_ptl_base: send_msg: write failed: Broken pipe"
)

REPLICAS = """
    import numpy as np
    import ulfm_core
    world = ulfm_core.init(replica_size=2)
    data = np.ones(10)
    world.barrier().result()

    def go_on():
        while True:
            work = world.all_reduce(data, np.empty_like(data))
            if world.consensus(work.wait() is ulfm_core.Outcome.OK).passed:
                return say(members=world.members)

"""


def test_a_stopped_rank_is_killed_when_its_replica_loses_another(program: Program) -> None:
    text = """
        if rank == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        if rank == 2:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        go_on()
    """
    start = time.monotonic()
    job = run_ranks(program(replicas(text)), 4)
    assert job.returncode == 0, job.stderr
    assert time.monotonic() - start < 10
    assert job.lines == {0: [{"members": [0, 1]}], 1: [{"members": [0, 1]}]}
    assert "killed rank 3" in job.stderr
    assert "stopped while its replica was lost" in job.stderr


@pytest.mark.parametrize("end", ["raise RuntimeError('closed by peer')", "sys.exit('closed')"])
def test_a_rank_that_raises_because_its_replica_is_lost_is_lost(program: Program, end: str) -> None:
    text = f"""
        if rank == 2:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 3:
            {end}
        go_on()
    """
    job = run_ranks(program(replicas(text)), 4)
    assert job.returncode == 0, job.stderr
    assert job.lines == {0: [{"members": [0, 1]}], 1: [{"members": [0, 1]}]}
    said, verdict = (line for line in job.stderr.splitlines() if not CLOSED.match(line))
    assert said.startswith("ulfm-core: rank 3 (replica 1, position 1): rank 2 of its replica died")
    assert verdict == "ulfmrun: 2 of 4 ranks finished; lost: ranks 2 and 3"


def test_a_mistake_in_a_replica_of_several_is_shown(program: Program) -> None:
    text = """
        if rank == 3:
            raise RuntimeError("rank three is wrong")
        go_on()
    """
    job = run_ranks(program(replicas(text)), 4)
    assert job.stderr.count("RuntimeError: rank three is wrong") == 1
    # Its guard sees that first, or the repair that it takes part in: it is lost either way.
    by_guard = "rank 2 (replica 1, position 0): rank 3 of its replica died"
    by_repair = "rank 2: replica 1 lost a rank"
    assert by_guard in job.stderr or by_repair in job.stderr
    assert job.stderr.splitlines()[-1] == "ulfmrun: 2 of 4 ranks finished; lost: ranks 2 and 3"


def test_a_straggler_has_its_own_patience(program: Program) -> None:
    text = "if rank == 1: time.sleep(60)"
    job = run_ranks(program(text), 2, options=["--grace", "0.5", "--straggler-grace", "2"])
    assert job.returncode == 0
    assert "still running although others had finished" in job.stderr


def test_a_slow_rank_may_finish(program: Program) -> None:
    text = "time.sleep(3 * rank)"
    job = run_ranks(program(text), 2, options=["--grace", "0.5"])
    assert (job.returncode, job.stderr) == (0, "")


def test_the_detector_finds_a_stopped_rank(program: Program) -> None:
    text = "go_on_without(1, by=signal.SIGSTOP)"
    job = run_ranks(program(text), 3, options=["--detector", "--grace", "1"])
    assert job.returncode == 0, job.stderr
    assert job.lines == {0: [{"survivors": 2}], 2: [{"survivors": 2}]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_signal_ends_everything(
    program: Program, tmp_path: Path, number: signal.Signals, stubborn: bool
) -> None:
    job, marker = start(program, tmp_path, stubborn=stubborn)
    job.send_signal(number)
    assert job.wait(timeout=20) == 128 + number
    assert alive(marker) == []


def test_nothing_outlives_a_killed_launcher(program: Program, tmp_path: Path) -> None:
    job, marker = start(program, tmp_path, stubborn=True)
    job.kill()
    job.wait()
    until = time.monotonic() + 15
    while alive(marker) and time.monotonic() < until:
        time.sleep(0.1)
    assert alive(marker) == []


def start(
    program: Program, tmp_path: Path, *, stubborn: bool
) -> tuple["subprocess.Popen[bytes]", str]:
    """Start three ranks that sleep, with a child each, and wait until they do."""
    text = f"""
        if {stubborn}:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        say(ready=True)
        time.sleep(60)
    """
    marker = f"SUPERVISE_TEST={os.getpid()}.{time.monotonic_ns()}"
    name, _, value = marker.partition("=")
    job = subprocess.Popen(
        [sys.executable, "-m", "ulfm_core.launch", "-n", "3", str(program(text))],
        env={**os.environ, name: value, "ULFM_TESTING_FOLDER": str(tmp_path)},
        stdin=subprocess.DEVNULL,
    )
    until = time.monotonic() + 20
    while len(list(tmp_path.glob("*.jsonl"))) < 3:
        assert time.monotonic() < until
        time.sleep(0.05)
    return job, marker


def test_restart_when_nobody_finished(program: Program) -> None:
    text = """
        say(restart=os.environ["ULFM_RESTART"], initial=os.environ["ULFM_INITIAL_WORLD_SIZE"])
        if os.environ["ULFM_RESTART"] != "2":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    job = run_ranks(program(text), 2, options=["--max-restarts", "3"])
    assert job.returncode == 0
    assert job.lines[0] == [{"restart": str(k), "initial": "2"} for k in range(3)]
    assert job.stderr.splitlines() == [
        "ulfmrun: no rank finished: ranks 0 and 1 lost before any of them was in a world;"
        f" restart {k} of 3 with 2 of 2 ranks"
        for k in (1, 2)
    ]


def test_a_start_that_does_not_get_through_mpi_init_is_bounded(program: Program) -> None:
    text = """
        say(here=1)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        import ulfm_core
        ulfm_core.init(wait_limit=2)
    """
    start = time.monotonic()
    job = run_ranks(program(text), 3, options=["--max-restarts", "1"])
    assert job.returncode == 1
    assert time.monotonic() - start < 20
    assert job.lines == {rank: [{"here": 1}] * 2 for rank in range(3)}
    assert "before any of them was in a world; restart 1 of 1 with 3 of 3 ranks" in job.stderr
    assert "no rank finished: ranks 0, 1 and 2 lost" in job.stderr.splitlines()[-1]


def test_no_restart_beyond_the_limit_or_after_a_failure_of_the_program(program: Program) -> None:
    job = run_ranks(program("os.kill(os.getpid(), 9)"), 2, options=["--max-restarts", "1"])
    assert job.returncode == 1
    assert job.stderr.count("restart 1 of 1") == 1
    job = run_ranks(program("say(here=1); sys.exit(3)"), 2, options=["--max-restarts", "1"])
    assert job.returncode == 3
    assert job.lines[0] == [{"here": 1}]


def test_mpirun_that_starts_nothing(program: Program) -> None:
    job = run_ranks(program("pass"), 2, options=["--mpi-arg=--no-such-option"])
    assert job.returncode not in {0, 2}
    assert "no rank started" in job.stderr.splitlines()[-1]


def test_run_ranks_ends_what_takes_too_long(program: Program) -> None:
    marker = f"SUPERVISE_TEST={os.getpid()}.{time.monotonic_ns()}"
    name, _, value = marker.partition("=")
    with pytest.raises(TimeoutError, match=r"longer than 2 s(.|\n)*said.*asleep"):
        run_ranks(program("say(asleep=1); time.sleep(60)"), 2, timeout=2, env={name: value})
    assert alive(marker) == []

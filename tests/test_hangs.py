"""A rank that hangs is ended, by its own guard or by who finds it silent; the others go on."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from jobs import Case, Trainer
from preload import Launched

from grad_txn.log.verify import verify

pytestmark = [pytest.mark.mpi, pytest.mark.torch]


def test_a_rank_that_sleeps_for_ever_in_its_data_is_ended(trainer: Trainer) -> None:
    program = Path(trainer.folder, "sleepy.py")
    program.write_text(
        """
import os, sys, time
from grad_txn.programs.text import ByteText
from integrations_hsdp.pretrain import main

microbatch = ByteText.microbatch
def sleepy(text, number):
    if number >= 18 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        time.sleep(10_000)
    return microbatch(text, number)
ByteText.microbatch = sleepy
sys.exit(main())
"""
    )
    case = Case(replicas=3, grad_accum=3, policy="exact")
    run = trainer.run(case, "run", "--step-limit", "4", program=[str(program)])
    assert run.code == 0, run.said
    assert run.finishers() == [0, 2]
    verdict = verify(run.out)
    assert verdict.problems == ()
    assert verdict.lost == ((1,),)


def stop_once_training(trainer: Trainer, job: Launched, rank: int, *, leader: int = -1) -> None:
    """Stop this rank when it, or the leader of its replica, has logged a step."""
    folder = trainer.folder / "run" / "events"
    log = folder / f"{rank if leader < 0 else leader}.jsonl"
    until = time.monotonic() + 40
    while not (log.exists() and '"event": "step"' in log.read_text()):
        assert job.running(), job.stderr
        assert time.monotonic() < until
        time.sleep(0.01)
    start = (folder / f"{rank}.jsonl").read_text().splitlines()[0]
    os.kill(json.loads(start)["pid"], signal.SIGSTOP)


def test_a_stopped_rank_is_found_by_the_detector(trainer: Trainer) -> None:
    case = Case(replicas=3, grad_accum=3, steps=60, policy="static")
    job = trainer.start(case, "run", options=["--detector", "--grace", "2"])
    stop_once_training(trainer, job, 0)
    assert job.wait(60) == 0, job.stderr
    verdict = verify(trainer.folder / "run")
    assert verdict.problems == ()
    assert verdict.survivors == (1, 2)


def test_a_stopped_rank_is_ended_by_its_keeper(trainer: Trainer) -> None:
    case = Case(replicas=3, grad_accum=3, steps=60, policy="exact")
    job = trainer.start(case, "run", "--step-limit", "4")
    stop_once_training(trainer, job, 1)
    begun = time.monotonic()
    assert job.wait(60) == 0, job.stderr
    assert time.monotonic() - begun > 4
    assert "rank 1 (replica 1, position 0): its process has been stopped for 4.0 s" in job.stderr
    verdict = verify(trainer.folder / "run")
    assert verdict.problems == ()
    assert verdict.survivors == (0, 2)


@pytest.mark.parametrize("rank", [2, 3])
def test_a_stopped_rank_takes_its_replica_along(rank: int, trainer: Trainer) -> None:
    case = Case(replicas=3, shard_size=2, batch=2, grad_accum=2, steps=40, policy="exact")
    job = trainer.start(case, "run", "--step-limit", "4")
    stop_once_training(trainer, job, rank, leader=2)
    assert job.wait(60) == 0, job.stderr
    # Its keeper says so, or its peer's guard, which waits for it inside the replica.
    stopped = f"rank {rank} (replica 1, position {rank % 2}): its process has been stopped"
    assert stopped in job.stderr or "no progress for 4.0 s, stuck at: step" in job.stderr
    verdict = verify(trainer.folder / "run")
    assert verdict.problems == ()
    assert verdict.survivors == (0, 2)


def test_a_data_loader_that_blocks_takes_its_replica_along(trainer: Trainer) -> None:
    program = Path(trainer.folder, "blocked.py")
    program.write_text(
        """
import os, sys, time
from grad_txn.programs.text import ByteText
from integrations_hsdp.pretrain import main

microbatch = ByteText.microbatch
def blocked(text, number):
    if number >= 12 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        time.sleep(10_000)
    return microbatch(text, number)
ByteText.microbatch = blocked
sys.exit(main())
"""
    )
    case = Case(replicas=3, shard_size=2, batch=2, grad_accum=2, policy="exact")
    run = trainer.run(case, "run", "--step-limit", "4", program=[str(program)])
    assert run.code == 0, run.said
    assert run.finishers() == [2, 3, 4, 5]
    assert "no progress for 4.0 s, stuck at: step 2, microbatch 12" in run.said
    verdict = verify(run.out)
    assert (verdict.problems, verdict.lost) == ((), ((0,),))


def test_a_slow_rank_lives(trainer: Trainer) -> None:
    program = Path(trainer.folder, "slow.py")
    program.write_text(
        """
import os, sys, time
from grad_txn.programs.text import ByteText
from integrations_hsdp.pretrain import main

microbatch = ByteText.microbatch
def slow(text, number):
    if number % 9 == 3 and number > 9:  # the first of rank 1 in every step but one
        assert os.environ["OMPI_COMM_WORLD_RANK"] == "1"
        time.sleep(1.5)
    return microbatch(text, number)
ByteText.microbatch = slow
sys.exit(main())
"""
    )
    case = Case(replicas=3, grad_accum=3, policy="exact")
    begun = time.monotonic()
    run = trainer.run(case, "run", "--step-limit", "4", program=[str(program)])
    assert time.monotonic() - begun > 6  # in sum more than the limit
    assert run.code == 0, run.said
    assert run.finishers() == [0, 1, 2]
    verdict = verify(run.out)
    assert (verdict.problems, verdict.lost) == ((), ((),))
    assert "keeper" not in run.said

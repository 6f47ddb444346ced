"""A rank that hangs is ended, by its own guard or by who finds it silent; the others go on."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from jobs import Case, Trainer

from grad_txn.verify import verify

pytestmark = [pytest.mark.mpi, pytest.mark.torch]


def test_a_rank_that_sleeps_for_ever_in_its_data_is_ended(trainer: Trainer) -> None:
    program = Path(trainer.folder, "sleepy.py")
    program.write_text(
        """
import os, sys, time
from integrations_hsdp.data import ByteText
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


def test_a_stopped_rank_is_found_by_the_detector(trainer: Trainer) -> None:
    case = Case(replicas=3, grad_accum=3, steps=60, policy="static")
    job = trainer.start(case, "run", options=["--detector", "--grace", "2"])
    log = trainer.folder / "run" / "events" / "0.jsonl"
    until = time.monotonic() + 40
    while time.monotonic() < until and not (log.exists() and '"event": "step"' in log.read_text()):
        time.sleep(0.01)
    os.kill(json.loads(log.read_text().splitlines()[0])["pid"], signal.SIGSTOP)
    assert job.wait(60) == 0, job.stderr
    verdict = verify(trainer.folder / "run")
    assert verdict.problems == ()
    assert verdict.survivors == (1, 2)

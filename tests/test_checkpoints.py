"""A run goes on from its checkpoint with the batch it had, whatever its size is now."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import References
from jobs import Case, Run, Trainer, apart

from grad_txn.failures import At, Kill
from grad_txn.log.verify import verify

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

STEPS = 8
WHOLE = Case(replicas=4, grad_accum=3, steps=STEPS, policy="exact")


def check(run: Run, references: References, *, whole: Case = WHOLE) -> None:
    """B is kept, ids are neither lost nor repeated, and the losses are those of one whole run."""
    verdict = verify(run.out)
    assert verdict.problems == ()
    assert (verdict.global_batch, verdict.steps) == (12, STEPS)
    assert verdict.ids == 12 * STEPS
    expected = references(whole)
    if run.case.policy == "exact":
        assert not [s for s, found in run.trajectory().items() if apart(found, expected[s])]


@pytest.mark.parametrize("policy", ["static", "exact"])
@pytest.mark.parametrize("ranks", [4, 3, 5])
def test_resume(ranks: int, policy: str, trainer: Trainer, references: References) -> None:
    # The job is lost after its step 6, of which the checkpoint before step 4 knows nothing: a rank
    # dies in step 1 for good, and all others are killed in the end.
    first = replace(WHOLE, policy=policy, kills=(Kill(step=1, replica=0, at=At.DURING_SYNC),))
    job = trainer.start(first, "run", "--checkpoint-every", "4", program=lost_after(trainer, 6))
    assert job.wait(60) == 1
    assert "no rank finished" in job.stderr
    again = replace(WHOLE, policy=policy)
    run = trainer.run(again, "run", "--resume", ranks=ranks)
    assert run.code == 0, run.said
    assert {line["first_step"] for line in run.of("start")} == {0, 4}
    check(run, references)


@pytest.mark.parametrize(
    ("sharding", "replicas", "shard_size", "then"),
    [
        ("fsdp2", 3, 2, "fsdp2"),
        ("fsdp2", 5, 2, "fsdp2"),
        ("fsdp1", 3, 2, "fsdp1"),
        ("fsdp2", 2, 3, "fsdp2"),
        ("fsdp2", 3, 1, "ddp"),
    ],
)
def test_resume_sharded_replicas(
    sharding: str,
    replicas: int,
    shard_size: int,
    then: str,
    trainer: Trainer,
    references: References,
) -> None:
    whole = replace(WHOLE, batch=6)
    first = replace(
        whole,
        sharding=sharding,
        shard_size=2,
        kills=(Kill(step=1, replica=0, position=1, at=At.DURING_SYNC),),
    )
    job = trainer.start(first, "run", "--checkpoint-every", "4", program=lost_after(trainer, 6))
    assert job.wait(60) == 1
    again = replace(whole, sharding=then, shard_size=shard_size)
    resumed = [] if shard_size == 2 else ["--out", "other"]  # one log holds replicas of one size
    source = str(trainer.folder / "run" / "checkpoints")
    run = trainer.run(again, "run", "--resume", source, *resumed, ranks=replicas * shard_size)
    assert run.code == 0, run.said
    if not resumed:
        check(run, references, whole=whole)
        return
    verdict = verify(trainer.folder / "other")
    assert verdict.problems == ()
    assert (verdict.first_step, verdict.steps) == (4, 4)
    expected = references(whole)
    run.out = trainer.folder / "other"
    assert not [s for s, found in run.trajectory().items() if apart(found, expected[s])]


def test_all_ranks_die_and_the_job_starts_again(trainer: Trainer, references: References) -> None:
    run = trainer.run(
        WHOLE,
        "run",
        "--checkpoint-every",
        "2",
        options=["--max-restarts", "1"],
        program=lost_after(trainer, 4),
    )
    assert run.code == 0, run.said
    assert "restart 1 of 1 with 4 of 4 ranks" in run.said
    assert {line["first_step"] for line in run.of("start")} == {0, 4}
    check(run, references)


def lost_after(trainer: Trainer, step: int) -> list[str]:
    """Return a program: the training program, each rank of which dies after this step."""
    program = Path(trainer.folder, "lost.py")
    program.write_text(
        f"""
import os, signal, sys
from grad_txn.job import Job
from grad_txn.checkpoint import Checkpoints
from integrations_hsdp.pretrain import main

steps = Job.steps
def until_lost(job, max_steps):
    for step in steps(job, max_steps):
        yield step
        # The program saves and polls between this yield and the next one.
        if step.number == {step} and os.environ.get("ULFM_RESTART", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)

def save_and_wait(checkpoints, state, step, save=Checkpoints.save):
    save(checkpoints, state, step)
    checkpoints.wait()

Job.steps = until_lost
Checkpoints.save = save_and_wait
sys.exit(main())
"""
    )
    return [str(program)]

"""The same on GPUs: NCCL inside a replica, gradients of the device across. Skipped without."""

import pytest
import torch
from jobs import Case, Trainer, apart, problems_of

from grad_txn.failures import At, Kill

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [pytest.mark.mpi, pytest.mark.torch]

KILLS = (
    Kill(step=1, replica=0, at=At.DURING_SYNC),
    Kill(step=3, replica=2, at=At.FORWARD),
)


def check(case: Case, trainer: Trainer) -> None:
    """Lose two replicas, and commit what the same job without failures commits."""
    plain = Case(
        replicas=case.replicas,
        grad_accum=case.grad_accum,
        steps=case.steps,
        shard_size=case.shard_size,
        batch=case.batch,
        policy="exact",
    )
    whole = trainer.run(plain, "whole", timeout=300)
    assert whole.code == 0, whole.said
    assert {line["device"].partition(":")[0] for line in whole.of("start")} == {"cuda"}
    run = trainer.run(case, "run", timeout=300)
    reference = whole.trajectory()
    assert problems_of(run, reference) == []
    assert not [step for step, found in run.trajectory().items() if apart(found, reference[step])]


@pytest.mark.skipif(GPUS < 1, reason="no GPU")
@pytest.mark.parametrize("staging", ["no-copy", "snapshot"])
def test_ddp_with_several_replicas_on_one_gpu(staging: str, trainer: Trainer) -> None:
    check(
        Case(replicas=4, grad_accum=2, policy="exact", staging=staging, kills=KILLS),
        trainer,
    )


@pytest.mark.skipif(GPUS < 6, reason="fewer than 6 GPUs")
@pytest.mark.parametrize("sharding", ["fsdp2", "fsdp1"])
def test_sharded_replicas(sharding: str, trainer: Trainer) -> None:
    check(
        Case(
            replicas=3,
            grad_accum=2,
            policy="exact",
            shard_size=2,
            batch=2,
            sharding=sharding,
            kills=KILLS,
        ),
        trainer,
    )

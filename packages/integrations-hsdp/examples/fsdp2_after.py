"""`fsdp2_before.py`, changed so that it survives the loss of replicas.

    ulfmrun -n 4 fsdp2_after.py RUN

Two replicas of two shards fit a known function. When a rank dies, its replica is lost; the other
one goes on, inside the step and with the same batch.
"""

import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ulfm_core
from grad_txn import EventLog, Job, replica_world
from integrations_hsdp import FSDP2Gradients
from workload_policy import ExactBatch

STEPS, GRAD_ACCUM, SHARDS = 8, 4, 2


def microbatch(number: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Map a microbatch id and a rank inside the replica to data."""
    draw = torch.Generator().manual_seed(SHARDS * number + rank)
    inputs = torch.randn(16, 8, generator=draw)
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def main() -> None:
    """Train, as one of the job's ranks."""
    world = ulfm_core.init(replica_size=SHARDS)
    group = replica_world(world)
    rank = world.position
    mesh = init_device_mesh("cpu", (SHARDS,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gradients, log = FSDP2Gradients(model, process_group=group), EventLog(sys.argv[1], world.rank)
    job = Job(
        world, gradients, optimizer,
        policy=ExactBatch(), grad_accum=GRAD_ACCUM, log=log, max_norm=1.0,
    )  # fmt: skip
    for step in job.steps(STEPS):
        for number in step:
            inputs, targets = microbatch(number, rank)
            loss = nn.functional.mse_loss(model(inputs), targets)
            step.backward(loss)
        if job.leads:
            print(f"step {step.number} loss {step.loss:.6f}")
    job.finish(list(model.parameters()))


if __name__ == "__main__":
    main()

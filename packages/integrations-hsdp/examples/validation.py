"""A validation between the steps, and the best checkpoint, whoever dies meanwhile.

    ulfmrun -n 4 validation.py RUN

Each replica evaluates its part of a validation set. The loss is the same on all ranks, over the
whole set; what was best is known to whoever leads.
"""

import math
import sys
from pathlib import Path

import torch
from torch import nn

import ulfm_core
from grad_txn import EventLog, Job, replica_world
from integrations_hsdp import DDPGradients
from workload_policy import ExactBatch

STEPS, GRAD_ACCUM, VALIDATION = 8, 4, 10


def microbatch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Map a number to data: of training from 0 upwards, of validation the negative ones."""
    draw = torch.Generator().manual_seed(number % 2**32)
    inputs = torch.randn(16, 8, generator=draw)
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def validate(job: Job, world: ulfm_core.World, model: nn.Module) -> float:
    """Return the mean loss over the whole validation set. Collective over the living."""
    while True:
        living = job.plan.members
        sums = torch.zeros(2, dtype=torch.float64)  # of losses, and how many they are
        for index in range(living.index(world.replica), VALIDATION, len(living)):
            inputs, targets = microbatch(-1 - index)
            with torch.no_grad():
                sums += torch.tensor([nn.functional.mse_loss(model(inputs), targets), 1.0])
        reduced = job.reduce(sums)
        if reduced.replicas == living:  # else one died before it counted: deal the set out again
            return float(reduced.value[0] / reduced.value[1])


def main() -> None:
    """Train, as one of the job's ranks."""
    world = ulfm_core.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gradients = DDPGradients(model, process_group=replica_world(world))
    out = Path(sys.argv[1])
    log = EventLog(out, world.rank)
    job = Job(world, gradients, optimizer, policy=ExactBatch(), grad_accum=GRAD_ACCUM, log=log)
    for step in job.steps(STEPS):
        for number in step:
            inputs, targets = microbatch(number)
            step.backward(nn.functional.mse_loss(gradients.model(inputs), targets))
        loss = validate(job, world, model)
        if loss < job.notes.get("best", {"loss": math.inf})["loss"]:
            best = None
            if job.leads:
                best = {"loss": loss, "path": str(out / f"best-{step.number}.pt")}
                torch.save(model.state_dict(), best["path"])
            job.note("best", best)  # the leader's, on every rank, once the file is there
        if job.leads:
            print(f"step {step.number} validation {loss:.6f} best {job.notes['best']['path']}")
    job.finish(list(model.parameters()))


if __name__ == "__main__":
    main()

"""A training loop of one's own that loses ranks and keeps its batch.

    ulfmrun -n 4 own_loop.py --out own-run --kill 3:0

Four replicas of a small network fit a known function; `--kill STEP:REPLICA` kills one of them, with
SIGKILL, in the middle of that step's gradient synchronization.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import ulfm_core
from grad_txn import At, Console, EventLog, FailureInjector, Job, Kill, replica_world
from integrations_hsdp import DDPGradients
from workload_policy import load_policy


def microbatch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Map a microbatch id to data; whoever computes an id must get the same."""
    draw = torch.Generator().manual_seed(number)
    inputs = torch.randn(16, 8, generator=draw)
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def main() -> None:
    """Train, as one of the job's ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kill", metavar="STEP:REPLICA")
    options = parser.parse_args()
    kills = []
    if options.kill:
        step, replica = map(int, options.kill.split(":"))
        kills.append(Kill(step=step, replica=replica, at=At.DURING_SYNC))

    world = ulfm_core.init()
    torch.manual_seed(0)  # the same weights on every replica
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gradients = DDPGradients(model, process_group=replica_world(world))
    log = EventLog(options.out, world.rank)
    job = Job(
        world,
        gradients,
        optimizer,
        policy=load_policy("exact"),
        grad_accum=4,
        log=log,
        injector=FailureInjector(kills, world.replica, world.position, log),
        observers=[Console(replicas=world.initial_size)],
    )

    for step in job.steps(8):
        for number in step:  # more of them when a failure leaves work to redo
            inputs, targets = microbatch(number)
            loss = nn.functional.mse_loss(gradients.model(inputs), targets)
            step.backward(loss)
        # here B = 4 * 4 microbatches are committed and the optimizer has stepped
    job.finish(list(model.parameters()))


if __name__ == "__main__":
    main()

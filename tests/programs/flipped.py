"""Pre-train, with one bit of one rank's memory flipped: flipped.py RANK STEPS FLAGS...

After so many optimizer steps of this rank the last bit of a parameter's exponent is another one,
as a particle or a worn transistor would leave it.
"""

import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from grad_txn.gradients import local_part
from integrations_hsdp.pretrain import main
from ulfm_core import environment

victim, after, *flags = sys.argv[1:]
taken = 0


def flip(optimizer: torch.optim.Optimizer, *_: object) -> None:
    global taken  # noqa: PLW0603
    taken += 1
    if taken == int(after):
        part = local_part(optimizer.param_groups[0]["params"][0].detach())
        part.view(-1).view(torch.int32)[3] ^= 1 << 23


if environment.rank() == int(victim):
    register_optimizer_step_post_hook(flip)
sys.exit(main(flags))

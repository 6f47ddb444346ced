"""A hand-written recovery loop around DDP: torch_recovery.py hook|plain RANK:STEP ...

The ranks named are killed in the middle of the step's gradient synchronization.
"""

import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ulfm_core.testing import say
from ulfm_core.torch_backend import default_group

STEPS = 5
hooked = sys.argv[1] == "hook"
victims = [tuple(map(int, part.split(":"))) for part in sys.argv[2:]]

torch.set_num_threads(1)
dist.init_process_group("ulfm")
group = default_group()
me = group.world.rank
before = dist.new_group([0, 1, 3], backend="ulfm")
torch.manual_seed(1)
first = torch.nn.Linear(40, 300)
module = torch.nn.Sequential(
    first, torch.nn.ReLU(), torch.nn.Linear(300, 300), torch.nn.Linear(300, 5)
)
optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
step = 0


def die() -> None:
    if (me, step) in victims:
        os.kill(os.getpid(), signal.SIGKILL)


def reduce_bucket(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    if bucket.index() == 1:
        die()
    work = dist.all_reduce(bucket.buffer().div_(state.size()), group=state, async_op=True)
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed


def wrapped() -> DistributedDataParallel:
    model = DistributedDataParallel(module, bucket_cap_mb=0.1)
    if hooked:
        model.register_comm_hook(group, reduce_bucket)
    return model


if not hooked:  # the first layer's gradient comes last: other buckets are on their way by then
    first.weight.register_hook(lambda _: die())  # type: ignore[no-untyped-call]

model = wrapped()
while step < STEPS:
    try:
        model(torch.randn(8, 40)).square().mean().backward()
        error = ""
    except RuntimeError as failure:
        error = str(failure)
    consensus = group.consensus(not error, record=[step])
    if consensus.passed:
        optimizer.step()
        step += 1
    else:
        assert consensus.repair is not None
        say(
            failed=consensus.repair.failed,
            records=consensus.repair.records,
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            error=error,
        )
        model = wrapped()
    optimizer.zero_grad()

flat = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
dist.all_gather(everyone, flat)
identical = all(torch.equal(other, flat) for other in everyone)

# Groups are made as before, with the survivors' numbers, and old ones have them too.
last = dist.new_group([dist.get_world_size() - 1], backend="ulfm")
if dist.get_rank() == dist.get_world_size() - 1:
    dist.barrier(last)
old = None
if before is not dist.GroupMember.NON_GROUP_MEMBER:
    tensor = torch.tensor(float(me))
    dist.broadcast(tensor, src=dist.get_global_rank(before, before.size() - 1), group=before)
    old = [dist.get_rank(before), before.size(), tensor.item()]
say(finished=step, identical=identical, members=group.members, epoch=group.world.epoch, old=old)
if me % 2:  # both ways out
    dist.destroy_process_group()

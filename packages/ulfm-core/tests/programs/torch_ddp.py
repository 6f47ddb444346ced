"""DDP over ulfm and over gloo: the same model, data and seed."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import ulfm_core.torch_backend  # noqa: F401 - registers it
from ulfm_core.testing import say

torch.set_num_threads(1)
dist.init_process_group("ulfm")
gloo = dist.new_group(backend="gloo")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
Hook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


def own_hook(group: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer().div_(SIZE), group=group, async_op=True)
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed


def train(group: Any, hook: Hook | None, *, view: bool) -> torch.Tensor:
    torch.manual_seed(RANK)  # DDP makes the first parameters equal
    module = torch.nn.Sequential(
        torch.nn.Linear(40, 300),
        torch.nn.ReLU(),
        torch.nn.Linear(300, 300),
        torch.nn.Linear(300, 5),
    )
    model = DistributedDataParallel(
        module, process_group=group, gradient_as_bucket_view=view, bucket_cap_mb=0.1
    )
    if hook is not None:
        model.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(RANK)
    for _ in range(4):
        model(torch.randn(8, 40, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


hooks: tuple[Hook | None, ...] = (None, own_hook, default_hooks.fp16_compress_hook)
for hook, view in itertools.product(hooks, (False, True)):
    trained = train(dist.group.WORLD, hook, view=view)
    expected = train(gloo, hook, view=view)
    everyone = [torch.empty_like(trained) for _ in range(SIZE)]
    dist.all_gather(everyone, trained)
    say(
        hook=getattr(hook, "__name__", None),
        off=(trained - expected).abs().max().item(),
        moved=(trained - trained.mean()).abs().max().item(),
        identical=all(torch.equal(other, trained) for other in everyone),
    )

"""Tensors on a GPU: the core, the torch backend, and DDP against gloo on the CPU."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ulfm_core.testing import say
from ulfm_core.torch_backend import default_group

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
dist.init_process_group("ulfm")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
TOTAL = sum(range(SIZE))
right = True
for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32):
    for count in (1, 1000, 3_000_000):
        torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # the producer is late
        tensor = torch.full((count,), RANK, dtype=dtype, device="cuda")
        dist.all_reduce(tensor)
        right &= bool((tensor == TOTAL).all())
with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
    torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
    tensor = torch.full((1000,), float(RANK), device="cuda")
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    right &= bool((tensor == TOTAL / SIZE).all())
rows = torch.empty(SIZE, 100, device="cuda")
default_group().all_gather_single(rows, torch.full((100,), float(RANK), device="cuda")).wait()
right &= rows[:, 1].tolist() == list(range(SIZE))
listed = [torch.empty(3, device="cuda") for _ in range(SIZE)]
dist.all_gather(listed, torch.full((3,), float(RANK), device="cuda"))
right &= [row[0].item() for row in listed] == list(range(SIZE))
tensor = torch.full((1000,), float(RANK), device="cuda")
dist.broadcast(tensor, 1)
right &= bool((tensor == 1).all())

gloo = dist.new_group(backend="gloo")


def train(group: dist.ProcessGroup, device: str) -> torch.Tensor:
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.Linear(300, 5)).to(device)
    model = DistributedDataParallel(module, process_group=group, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(RANK)
    for _ in range(4):
        model(torch.randn(8, 40, generator=data).to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([parameter.detach().flatten().cpu() for parameter in module.parameters()])


off = (train(default_group(), "cuda") - train(gloo, "cpu")).abs().max().item()
say(right=right and off < 1e-3, off=off, transport=default_group().world.device_transport)

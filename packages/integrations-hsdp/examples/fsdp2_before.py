"""An FSDP2 training script as one writes it for torchrun; `fsdp2_after.py` survives failures.

    torchrun --nproc-per-node 4 fsdp2_before.py

Two replicas of two shards fit a known function. When a rank dies, the job is lost.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, GRAD_ACCUM, SHARDS = 8, 4, 2


def microbatch(number: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Map a microbatch id and a rank inside the replica to data."""
    draw = torch.Generator().manual_seed(SHARDS * number + rank)
    inputs = torch.randn(16, 8, generator=draw)
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def main() -> None:
    """Train, as one of the job's ranks."""
    dist.init_process_group("gloo")
    replicas = dist.get_world_size() // SHARDS
    replica, rank = divmod(dist.get_rank(), SHARDS)
    mesh = init_device_mesh("cpu", (replicas, SHARDS), mesh_dim_names=("replica", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        total = torch.zeros(())
        for number in range(GRAD_ACCUM * replica, GRAD_ACCUM * (replica + 1)):
            inputs, targets = microbatch(step * GRAD_ACCUM * replicas + number, rank)
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / GRAD_ACCUM).backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step} loss {total / (GRAD_ACCUM * dist.get_world_size()):.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

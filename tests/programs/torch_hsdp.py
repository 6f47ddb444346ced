"""Plain torch HSDP on gloo, as its documentation has it: what the product is compared with.

    ulfmrun -n 4 torch_hsdp.py --shard-size 2 --steps 4 --grad-accum 2 ... --out FILE

No failure is survived here. It takes the reference program's flags and data, and trains on the same
batches; rank 0 writes the losses and gradient norms, a JSON list a step.
"""

import json
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from grad_txn.programs.run import parse
from grad_txn.programs.text import ByteText, read_text
from integrations_hsdp.model import Block, Decoder, ModelShape
from integrations_hsdp.pretrain import PROGRAM
from integrations_hsdp.training import warm_up_then_cosine


def main() -> None:
    options = parse(PROGRAM)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    size = options.shard_size
    replicas = dist.get_world_size() // size
    mesh = init_device_mesh("cpu", (replicas, size), mesh_dim_names=("replicate", "shard"))
    text = ByteText(
        read_text(options.text), batch=options.batch, sequence=options.sequence, seed=options.seed
    )
    torch.manual_seed(options.seed)
    decoder = Decoder(
        ModelShape(
            layers=options.layers,
            width=options.width,
            heads=options.heads,
            sequence=options.sequence,
        )
    )
    model: torch.nn.Module = decoder
    if options.sharding == "fsdp1":
        model = FullyShardedDataParallel(
            decoder,
            device_mesh=mesh,
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    else:
        for block in decoder.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(decoder, mesh=mesh)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, warm_up_then_cosine(options.warmup, options.steps)
    )
    replica, position = divmod(dist.get_rank(), size)
    rows = options.batch // size
    mine = slice(position * rows, (position + 1) * rows)
    lines = []
    for step in range(options.steps):
        batch = replicas * options.grad_accum
        first = step * batch + replica * options.grad_accum
        total = torch.zeros(1, dtype=torch.float64)
        for number in range(first, first + options.grad_accum):
            tokens, targets = (part[mine] for part in text.microbatch(number))
            loss = model(tokens, targets)
            (loss / options.grad_accum).backward()
            total += loss.detach()
        if isinstance(model, FullyShardedDataParallel):
            norm = float(model.clip_grad_norm_(options.clip))
        else:
            clipped = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            norm = float(clipped.full_tensor())  # type: ignore[attr-defined]
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        lines.append([float(total) / (batch * size), norm])
    if dist.get_rank() == 0:
        Path(options.out).write_text(json.dumps(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

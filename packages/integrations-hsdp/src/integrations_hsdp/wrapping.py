"""The reference model in DDP, FSDP2 or FSDP1, and where its gradients are then found."""

from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from integrations_hsdp.ddp import DDPGradients
from integrations_hsdp.fsdp1 import FSDP1Gradients
from integrations_hsdp.fsdp2 import FSDP2Gradients
from integrations_hsdp.model import Block, Decoder
from integrations_hsdp.sharded import Accumulate

__all__ = ["Sharding", "wrap"]

Sharding = Literal["ddp", "fsdp2", "fsdp1"]


def wrap(
    model: Decoder,
    *,
    process_group: dist.ProcessGroup,
    sharding: Sharding,
    bucket_mb: float,
    accumulate: Accumulate = "sharded",
    low_precision: bool = False,
    recompute: bool = False,
) -> DDPGradients | FSDP2Gradients | FSDP1Gradients:
    """Wrap a model as the flags say: in DDP, or sharded over the replica. Collective over it.

    Args:
        model: On its device, the same on all ranks.
        process_group: The replica's.
        sharding: What wraps it.
        bucket_mb: Size of a bucket of gradients, in MiB.
        accumulate: What a sharded replica keeps of the gradients between microbatches; nothing that
            DDP knows.
        low_precision: Compute in bfloat16; reduce, add and step in float32.
        recompute: Keep no activations inside a layer.
    """
    if recompute:
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=partial(checkpoint_wrapper, preserve_rng_state=False),
            check_fn=lambda module: isinstance(module, Block),
        )
    compute = torch.bfloat16 if low_precision else None
    reduction = torch.float32 if low_precision else None
    if sharding == "ddp":
        return DDPGradients(model, process_group=process_group, bucket_mb=bucket_mb)
    mesh = DeviceMesh.from_group(process_group, _device_of(model).type)
    if sharding == "fsdp1":
        wrapped = FullyShardedDataParallel(
            model,
            device_mesh=mesh,  # and not process_group: only then its state is made of DTensors
            sharding_strategy=(
                ShardingStrategy.FULL_SHARD
                if dist.get_world_size(process_group) > 1
                else ShardingStrategy.NO_SHARD
            ),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            mixed_precision=MixedPrecision(param_dtype=compute, reduce_dtype=reduction),
            device_id=_device_of(model),
            use_orig_params=True,
        )
        return FSDP1Gradients(
            wrapped, process_group=process_group, bucket_mb=bucket_mb, accumulate=accumulate
        )
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduction)
    # What was gathered for a forward stays for the backward and for the microbatches that follow:
    # parameters are gathered once a pass.
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for block in model.blocks:
        shard(block)
    shard(model)
    return FSDP2Gradients(
        model, process_group=process_group, bucket_mb=bucket_mb, accumulate=accumulate
    )


def _device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device

"""Finished gradients of FSDP1 (`FullyShardedDataParallel`), wrapped over the replica's ranks alone.

FSDP1 has no hook behind its reduce-scatter, so the reductions across replicas start when backward
has returned, from the sharded gradients that it leaves (ReCoVer, appendix C, path 3). With the
replica as its whole world there is no replicate axis, and no division by its size to undo.

Within `no_sync` FSDP1 keeps whole gradients, and their sum in the type of the computation. Where
that is shorter than float32 only ``accumulate="sharded"`` is right, which reduces every microbatch
inside the replica and adds here in float32: a sum must not depend on which replica has computed
which microbatch.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from grad_txn.errors import UsageError
from integrations_hsdp.sharded import Accumulate, ShardedGradients

__all__ = ["FSDP1Gradients"]

_OF_ONE_AXIS = (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP)


class FSDP1Gradients(ShardedGradients):
    """The gradients of an FSDP1 model; a `grad_txn.gradients.Gradients`.

    Args:
        model: The wrapped root module, over the replica's ranks: by `device_mesh` if its state is
            to be saved by `torch.distributed.checkpoint` (by `process_group` it would be made of
            ShardedTensors, which asynchronous saving does not take). The strategy is FULL_SHARD or
            SHARD_GRAD_OP; with or without `use_orig_params`.
        process_group: The replica's.
        bucket_mb: Bucket size, in MiB.
        accumulate: ``"sharded"`` reduce-scatters every microbatch and adds the shards, in the
            parameters' type. ``"unsharded"`` is `no_sync` for all but the last microbatch of a
            pass: one reduce-scatter a pass, and until then this rank holds the replica's whole
            gradients.

    Raises:
        UsageError: The model is not wrapped by FSDP1, or its strategy has an axis of replicas; or
            FSDP1 would accumulate in less than float32.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        process_group: dist.ProcessGroup,
        bucket_mb: float = 25.0,
        accumulate: Accumulate = "sharded",
    ) -> None:
        if not isinstance(model, FullyShardedDataParallel):
            raise UsageError(
                f"{type(model).__name__} is not wrapped by FSDP1: use "
                "FullyShardedDataParallel(model, process_group=GROUP), GROUP the replica's ranks"
            )
        several = dist.get_world_size(process_group) > 1
        for module in FullyShardedDataParallel.fsdp_modules(model):
            if module.sharding_strategy not in _OF_ONE_AXIS and several:
                raise UsageError(
                    f"the sharding strategy is {module.sharding_strategy.name}: use FULL_SHARD or "
                    "SHARD_GRAD_OP, replicas are outside of FSDP here"
                )
            compute = module.mixed_precision.param_dtype
            if accumulate == "unsharded" and compute not in {None, torch.float32, torch.float64}:
                raise UsageError(
                    f'accumulate="unsharded": FSDP1 would sum microbatches in {compute}, use '
                    '"sharded", which sums in the type of the parameters'
                )
        self.model = model
        self._unsynchronized = ExitStack()
        self._passing = False
        super().__init__(
            (parameter for parameter in model.parameters() if parameter.requires_grad),
            process_group=process_group,
            bucket_mb=bucket_mb,
            accumulate=accumulate,
            as_grad=_as_it_is,
        )

    def begin_microbatch(self, *, last: bool, ready: Callable[[int], None]) -> None:
        """Prepare the next forward and backward; ``ready`` is called after the last backward."""
        if not self._passing:
            self.hide()
            if not (last or self._each):
                self._unsynchronized.enter_context(self.model.no_sync())
        if last:
            self._unsynchronized.close()
            self.start_last(ready)
        self._passing = not last


def _as_it_is(view: Tensor, _parameter: nn.Parameter) -> Tensor:
    return view

"""Finished gradients of FSDP1 (`FullyShardedDataParallel`), wrapped over the replica's ranks alone.

FSDP1 has no hook behind its reduce-scatter, so the reductions across replicas start when backward
has returned, from the sharded gradients that it leaves (ReCoVer, appendix C, path 3). With the
replica as its whole world there is no replicate axis, and no division by its size to undo.

Between the microbatches of a pass FSDP1 would keep a sum in the type of the computation. Where that
is shorter than float32, every microbatch is reduced inside the replica instead and added here in
float32: a sum must not depend on which replica has computed which microbatch.
"""

from collections.abc import Callable
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

from grad_txn.errors import UsageError
from integrations_hsdp.sharded import ShardedGradients

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

    Raises:
        UsageError: The model is not wrapped by FSDP1, or its strategy has an axis of replicas.
    """

    def __init__(
        self, model: nn.Module, *, process_group: dist.ProcessGroup, bucket_mb: float = 25.0
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
        self.model = model
        self._reduces_each = any(
            module.mixed_precision.param_dtype not in {None, torch.float32, torch.float64}
            for module in FullyShardedDataParallel.fsdp_modules(model)
        )
        self._unsynchronized = ExitStack()
        self._passing = False
        super().__init__(
            (parameter for parameter in model.parameters() if parameter.requires_grad),
            process_group=process_group,
            bucket_mb=bucket_mb,
            as_grad=_as_it_is,
        )

    def begin_microbatch(self, *, last: bool, ready: Callable[[int], None]) -> None:
        """Prepare the next forward and backward; ``ready`` is called after the last backward."""
        self._last = last
        if not self._passing:
            self.hide()
            if not (last or self._reduces_each):
                self._unsynchronized.enter_context(self.model.no_sync())
        if last:
            self._unsynchronized.close()
            self.start_last(ready)
        self._passing = not last

    def end_microbatch(self) -> None:
        """Tell of all buckets, if they are final."""
        if self._last:
            self.finish_last()
        elif self._reduces_each:
            for parameter in self.with_gradient():
                self.add(parameter)


def _as_it_is(view: Tensor, _parameter: nn.Parameter) -> Tensor:
    return view

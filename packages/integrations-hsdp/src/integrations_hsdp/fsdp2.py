"""Finished gradients of FSDP2 (`fully_shard`), each replica a 1-D mesh of its own.

FSDP2 reduce-scatters a module's gradients in backward and then calls the post-accumulate hooks of
its sharded parameters. Through these a shard moves to its bucket, and in the last microbatch every
bucket's reduction across replicas starts while earlier layers still compute.
`FSDPModule.set_all_reduce_hook`, made for the same purpose, would see one flat buffer whose layout
is FSDP's own and depends on which parameters took part, before FSDP has divided it, and refuses
modules with several parameter groups.
"""

from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from grad_txn.errors import UsageError
from integrations_hsdp.sharded import Accumulate, ShardedGradients

__all__ = ["FSDP2Gradients"]


class FSDP2Gradients(ShardedGradients):
    """The gradients of a `fully_shard`ed model; a `grad_txn.gradients.Gradients`.

    Args:
        model: The root module that `fully_shard` was applied to, over the replica's ranks alone,
            materialised, and not changed any more.
        process_group: The replica's.
        bucket_mb: Bucket size, in MiB.
        accumulate: ``"sharded"`` reduce-scatters every microbatch and adds the shards, in the
            parameters' type. ``"unsharded"`` is `set_requires_gradient_sync(False)` for all but the
            last microbatch of a pass: one reduce-scatter a pass, and until then this rank holds
            the replica's whole gradients, in the policy's `reduce_dtype`.
        reshard: Free the gathered parameters after the backward of every microbatch, and gather
            them again in the next. Without, only the first microbatch of a pass gathers (if the
            modules have `reshard_after_forward=False`), and a rank holds all parameters meanwhile.

    Raises:
        UsageError: The model is not sharded by FSDP2, or a parameter of it is not.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        process_group: dist.ProcessGroup,
        bucket_mb: float = 25.0,
        accumulate: Accumulate = "sharded",
        reshard: bool = False,
    ) -> None:
        if not isinstance(model, FSDPModule):
            raise UsageError(
                f"{type(model).__name__} is not sharded by FSDP2: call fully_shard() on it first, "
                "with a mesh of the replica's ranks"
            )
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        for name, parameter in named:
            if not isinstance(parameter, DTensor):
                raise UsageError(
                    f"parameter {name} is not sharded, so nothing would sum its gradient inside "
                    "the replica: leave it out of ignored_params, or freeze it"
                )
        self.model = model
        self._reshard = reshard
        super().__init__(
            (parameter for _, parameter in named),
            process_group=process_group,
            bucket_mb=bucket_mb,
            accumulate=accumulate,
            as_grad=_as_dtensor,
        )
        for _, parameter in named:
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self.collect
            )

    def begin_microbatch(self, *, last: bool, ready: Callable[[int], None]) -> None:
        """Prepare the next forward and backward; ``ready`` is called within the last backward."""
        self.hide()
        self.model.set_requires_gradient_sync(last or self._each)
        self.model.set_reshard_after_backward(last or self._reshard)
        if last:
            self.start_last(ready)


def _as_dtensor(view: Tensor, parameter: nn.Parameter) -> Tensor:
    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        view,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )

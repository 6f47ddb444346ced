"""Finished gradients of `DistributedDataParallel`, one rank a replica.

DDP runs over a process group of this rank alone (ReCoVer, appendix C, path 1), so nothing of it
crosses a replica: no store that dies with rank 0, no barrier, no re-bucketing that has to be agreed
on. What is used of it is its bucketing and its hook in backward, through which each bucket's
reduction across replicas starts while earlier layers still compute. The hook gives DDP its own
buffer back: to DDP the gradients are this replica's sums, and the sums over the replicas are the
transaction's.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with classes.
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grad_txn.errors import UsageError

__all__ = ["DDPGradients"]


class DDPGradients:
    """A module in DDP, and the buckets of its gradients; a `grad_txn.gradients.Gradients`.

    Args:
        module: The model, its parameters equal on all replicas.
        process_group: The replica's: of this rank alone.
        bucket_mb: DDP's bucket size, in MiB.

    Attributes:
        model: What to call instead of `module`.
    """

    def __init__(
        self, module: nn.Module, *, process_group: dist.ProcessGroup, bucket_mb: float = 25.0
    ) -> None:
        # Buffers are this replica's own; torch 2.13 renamed the switch.
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        own_buffers: dict[str, Any] = {
            "forward_sync_buffers" if renamed else "broadcast_buffers": False
        }
        self.model = DistributedDataParallel(
            module,
            process_group=process_group,
            bucket_cap_mb=bucket_mb,
            gradient_as_bucket_view=True,
            init_sync=False,
            **own_buffers,
        )
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        self._ready: Callable[[int], None] | None = None
        self._forgotten = False
        self._buckets: dict[int, Tensor] = {}
        self._name_of = {parameter: name for name, parameter in module.named_parameters()}
        self._names: dict[int, list[str]] = {}
        self._told: set[int] = set()
        self.model.register_comm_hook(None, self._hook)
        self._settle_buckets(module)

    @property
    def buckets(self) -> Sequence[Tensor]:
        """One flat tensor a DDP bucket, in the order in which backward fills them."""
        return [self._buckets[index] for index in range(len(self._buckets))]

    def begin_microbatch(self, *, last: bool, ready: Callable[[int], None]) -> None:
        """Prepare the next forward and backward; ``ready`` is called within the last backward."""
        # What DDP.no_sync() does; it is read in forward, so it is set before.
        self.model.require_backward_grad_sync = last
        self._ready = ready if last else None
        self._told.clear()
        if self._forgotten:
            self._forgotten = False
            if last:
                # DDP copies what it finds outside its buckets: one pass instead of two.
                for parameter in self._parameters:
                    parameter.grad = None
            else:
                for bucket in self._buckets.values():
                    bucket.zero_()

    def end_microbatch(self) -> None:
        """Make sure that every bucket was told of during backward.

        Raises:
            UsageError: Some parameter got no gradient; DDP itself would say so in the next forward.
        """
        if self._ready is not None and len(self._told) < len(self._buckets):
            index = min(self._buckets.keys() - self._told)
            names = ", ".join(self._names[index])
            raise UsageError(
                f"the last microbatch gave no gradient to one or more of these parameters: "
                f"{names}; freeze what is not used with requires_grad_(False), before DDPGradients"
            )

    def zero(self) -> None:
        """Let the next microbatch accumulate on zero. The gradients stay where they are."""
        self._forgotten = True

    def norm(self, sums: Sequence[Tensor]) -> float:
        """Return the global norm of `sums`, one tensor a bucket."""
        return float(torch.nn.utils.get_total_norm(sums))

    def mean_losses(self, losses: Sequence[float]) -> list[float]:
        """Return them: a rank computes whole microbatches."""
        return list(losses)

    def expose(self) -> None:
        """Do nothing: each parameter's gradient is a view of a bucket."""

    def _hook(
        self,
        _state: None,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        index = bucket.index()
        if index not in self._buckets:
            self._buckets[index] = bucket.buffer()
            self._names[index] = [self._name_of[parameter] for parameter in bucket.parameters()]
        self._told.add(index)
        if self._ready is not None:
            self._ready(index)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def _settle_buckets(self, module: nn.Module) -> None:
        """Let DDP form its final buckets now, the same on every replica.

        DDP regroups its buckets after the first backward, in the order the gradients arrived in,
        and replicas that run different numbers of forwards would then disagree. So it sees a first
        backward here, of a graph in which every parameter's gradient is zero and arrives in reverse
        order of registration (as in a real one, nearly), and a second one, in which it regroups.
        """
        forward = module.forward
        parameters = self._parameters

        def touch_all() -> Tensor:
            total = torch.zeros((), device=parameters[0].device, dtype=parameters[0].dtype)
            for parameter in parameters:
                total = total + parameter.reshape(-1)[0] * 0.0
            return total

        try:
            module.forward = touch_all
            for _ in range(2):
                self._buckets.clear()
                self.model().backward()
        finally:
            module.forward = forward

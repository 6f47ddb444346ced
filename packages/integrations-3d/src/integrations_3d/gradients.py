"""Where Nanotron keeps finished gradients: the seam of `grad_txn` to it.

A rank of a replica holds the gradients of its own part of the model: of its pipeline stage, sharded
over the tensor-parallel ranks. They are either a `param.grad` each, or, with
`accumulate_grad_in_fp32`, pieces of one float32 buffer of Nanotron's gradient accumulator. Both are
used where they lie, cut into buckets.

After the backwards of a pass, what Nanotron's own training step would do inside the replica is done
first, by Nanotron's functions: the average over the inner data-parallel ranks, the sum over tied
parameters. Then the buckets are complete, and reduced across replicas. That order makes the sums
equal on all replicas to the last bit, in whatever order a collective inside a replica has added.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from nanotron.parallel.data_parallel.utils import sync_gradients_across_dp
from nanotron.parallel.tied_parameters import get_tied_id_to_param, sync_tied_weights_gradients
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grad_txn.errors import UsageError
from grad_txn.replica import of_all_ranks
from integrations_3d.slots import Slot, cut, in_accumulator, in_own_buffers

__all__ = ["NanotronGradients", "ParallelContext"]


class ParallelContext(Protocol):
    """What is needed of Nanotron's."""

    world_pg: dist.ProcessGroup
    dp_pg: dist.ProcessGroup
    tp_pg: dist.ProcessGroup
    pp_pg: dist.ProcessGroup
    world_ranks_to_pg: Mapping[tuple[int, ...], dist.ProcessGroup]


class NanotronGradients:
    """The gradients of one rank of a replica; a `grad_txn.gradients.Gradients`.

    Args:
        model: Nanotron's, as its trainer has it: inside DDP or not.
        accumulator: The trainer's gradient accumulator, or None.
        context: The trainer's parallel context.
        output_stage: The pipeline rank that computes the loss.
        bucket_mb: Bucket size, in MiB.

    Memory: none of its own; without an accumulator, `param.grad` lies in its buffers. While an
    extended pass runs, one more gradient.

    Collective over the replica.

    Raises:
        ConfigError: The accumulator keeps its gradients in another way than is known.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        accumulator: Any,
        context: ParallelContext,
        output_stage: int,
        bucket_mb: float = 25.0,
    ) -> None:
        self._model = model
        self._inside: Any = model.module if isinstance(model, DistributedDataParallel) else model
        self._accumulator = accumulator
        self._context = context
        # Newer versions split sequences, too: those ranks hold the same parameters as well.
        self._alike: dist.ProcessGroup = getattr(context, "dp_cp_pg", context.dp_pg)
        self._ready: Callable[[int], None] | None = None
        self._fresh = True
        self._earlier: list[Tensor] = []
        self._buckets: list[Tensor] = []
        self._slots: list[Slot] = []
        parameters = {name: p for name, p in self._named_parameters() if p.requires_grad}
        places = (
            in_own_buffers(parameters)
            if accumulator is None
            else in_accumulator(accumulator, parameters)
        )
        for base, members in places:
            for bucket, slots in cut(
                base, members, limit=bucket_mb * 2**20, first_bucket=len(self._buckets)
            ):
                self._buckets.append(bucket)
                self._slots += slots
        self._counted = [slot for slot in self._slots if self._counts(slot)]
        self._tied = self._tied_groups()
        knows_loss = (
            dist.get_rank(context.pp_pg) == output_stage and dist.get_rank(context.tp_pg) == 0
        )
        self._with_loss = [
            rank for rank, (knows,) in enumerate(self._of_all([knows_loss])) if knows
        ]
        self.zero()

    # --------------------------------------------------------------------------- where they lie

    def _named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Each parameter once, under the name that the accumulator knows it by."""
        yield from self._inside.get_named_params_with_correct_tied()

    def _counts(self, slot: Slot) -> bool:
        """Whether the gradient counts in the norm here, and not at another rank that has it too."""
        if dist.get_rank(self._alike) != 0:
            return False
        tied = slot.parameter.is_tied
        mine = dist.get_rank(self._context.world_pg)
        return not tied or mine == slot.parameter.get_tied_info().global_ranks[0]

    def _tied_groups(self) -> list[tuple[tuple[int, ...], list[Tensor]]]:
        """The ranks that share parameters, and the gradients of these, in the same order on all."""
        views = {id(slot.parameter): slot.view for slot in self._slots}
        tied = get_tied_id_to_param([slot.parameter for slot in self._slots], self._inside)
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        for (_, ranks), parameter in sorted(tied.items(), key=lambda item: item[0]):
            if len(ranks) > 1:
                groups.setdefault(ranks, []).append(views[id(parameter)])
        return sorted(groups.items())

    # ---------------------------------------------------------------------------- a transaction's

    @property
    def buckets(self) -> Sequence[Tensor]:
        """Runs of whole parameters, in the order of the model."""
        return self._buckets

    def begin_microbatch(self, *, last: bool, ready: Callable[[int], None]) -> None:
        """Prepare a pass of the pipeline.

        Raises:
            UsageError: It is not a whole pass.
        """
        if not last:
            raise UsageError(
                "a pipeline takes all microbatches of a pass: use Step.passes, not the step itself"
            )
        self._ready = ready
        if not self._fresh:
            # What the earlier passes of the step left has been summed over tied parameters. That
            # of this one is to be summed alone.
            self._earlier = [bucket.clone() for bucket in self._buckets]
            for bucket in self._buckets:
                bucket.zero_()
        self._fresh = False

    def end_microbatch(self) -> None:
        """Complete the buckets inside the replica, and tell of them. Collective over it."""
        self._collect()
        self._sync_inside()
        for bucket, earlier in zip(self._buckets, self._earlier, strict=False):
            bucket.add_(earlier)
        self._earlier = []
        assert self._ready is not None
        for index in range(len(self._buckets)):
            self._ready(index)

    def zero(self) -> None:
        """Have the next pass accumulate on zero."""
        self._fresh = True
        if self._accumulator is not None:
            self._accumulator.zero_grad()
            return
        for bucket in self._buckets:
            bucket.zero_()
        for slot in self._slots:
            slot.parameter.grad = slot.view

    def norm(self, sums: Sequence[Tensor]) -> float:
        """Return the norm of the replica's gradients, shared ones counted once. Collective."""
        squares = 0.0
        if self._counted:
            parts = [sums[slot.bucket][slot.begin : slot.end] for slot in self._counted]
            norms = [torch.linalg.vector_norm(part, dtype=torch.float32) for part in parts]
            squares = float(torch.stack(norms).double().square().sum())
        return math.sqrt(math.fsum(square for (square,) in self._of_all([squares])))

    def mean_losses(self, losses: Sequence[float]) -> list[float]:
        """Return the means over those ranks that compute one. Collective over the replica."""
        of_all = self._of_all(losses)
        known = [of_all[rank] for rank in self._with_loss]
        return [sum(parts) / len(known) for parts in zip(*known, strict=True)]

    def expose(self) -> None:
        """Have the optimizer see what the buckets hold. Collective over the replica.

        Parameters that several ranks have get the gradient of the first one of them: reduced across
        replicas at each rank by itself, they may differ in the last bit.
        """
        for ranks, views in self._tied:
            together = torch.cat([view.reshape(-1) for view in views])
            dist.broadcast(together, src=ranks[0], group=self._context.world_ranks_to_pg[ranks])
            parts = torch.split(together, [view.numel() for view in views])
            for view, part in zip(views, parts, strict=True):
                view.copy_(part.view(view.shape))
        if self._accumulator is None:
            return
        # Nanotron does so in backward, which a replica may have had none of in this step.
        offsets = getattr(self._accumulator, "param_name_to_offsets", None)
        for name, copies in self._accumulator.parameters.items():
            grad = self._accumulator.get_grad_buffer(name)
            if offsets is None:
                copies["fp32"].grad = grad
            elif name in offsets:
                begin, end = offsets[name]
                copies["fp32"].grad = grad.view(-1)[begin:end]

    # ------------------------------------------------------------------------------- Nanotron's

    def _collect(self) -> None:
        """See that what backward left lies in the buckets."""
        if self._accumulator is not None:
            return
        for slot in self._slots:
            grad = slot.parameter.grad
            if grad is None or grad.data_ptr() != slot.view.data_ptr():
                if grad is not None:
                    slot.view.copy_(grad)
                slot.parameter.grad = slot.view

    def _sync_inside(self) -> None:
        """Do what Nanotron's training step does between backward and clipping."""
        if isinstance(self._model, DistributedDataParallel):
            if self._accumulator is not None:
                handles = self._accumulator.fp32_grads_allreduce_handle
                for handle in handles if isinstance(handles, list) else [handles]:
                    handle.wait()
        elif dist.get_world_size(self._alike) > 1:
            sync_gradients_across_dp(
                module=self._model,
                dp_pg=self._alike,
                reduce_op=dist.ReduceOp.AVG,
                grad_accumulator=self._accumulator,
                reduce_scatter=False,
            )
        sync_tied_weights_gradients(
            module=self._inside,
            parallel_context=self._context,
            grad_accumulator=self._accumulator,
        )

    def _of_all(self, values: Sequence[float]) -> list[list[float]]:
        return of_all_ranks(
            values, process_group=self._context.world_pg, device=self._buckets[0].device
        )

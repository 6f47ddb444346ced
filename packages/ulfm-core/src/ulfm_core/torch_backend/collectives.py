"""torch's collectives, built from those of ulfm_core.

All-reduce, broadcast, all-gather and barrier are native. The others are built from these: right,
but moving more than they would have to.
"""

# torch's stubs describe the collectives in all the ways they may be called; torch itself uses one.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from ulfm_core.errors import UsageError
from ulfm_core.torch_backend.arguments import (
    bytes_of,
    copy_into,
    listed,
    nested,
    operation_of,
    root_of,
)
from ulfm_core.torch_backend.work import TorchWork

if TYPE_CHECKING:
    from collections.abc import Callable

    from ulfm_core.subgroup import Subgroup
    from ulfm_core.work import Work
    from ulfm_core.world import World

__all__ = ["TorchCollectives"]


class TorchCollectives(dist.ProcessGroup):
    """The collectives of a process group, over a world or a subgroup of it.

    Attributes:
        world: The world it is part of.
    """

    world: World
    _among: Subgroup | None

    def allreduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        """All-reduce in place, bit-identical on every rank."""
        return self._reduce_in_place(listed(tensors), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> TorchWork:
        """All-reduce each tensor in place."""
        return self._reduce_in_place(listed(tensors), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> TorchWork:
        """Broadcast in place from the group rank `opts.rootRank`."""
        tensors = listed(tensors)
        root = root_of(opts)
        works = [self.world.broadcast(bytes_of(t), root=root, among=self._among) for t in tensors]
        return TorchWork(works, tensors)

    def all_gather_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        opts: Any = None,  # noqa: ARG002
    ) -> TorchWork:
        """Gather everyone's input, one after the other, in the output."""
        return TorchWork([self._gather(output, given)], [output])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:  # noqa: ARG002
        """Do `all_gather_single` for each pair."""
        pairs = zip(outputs, inputs, strict=True)
        return TorchWork([self._gather(output, given) for output, given in pairs], list(outputs))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:  # noqa: ARG002
        """Gather everyone's input in a list of outputs."""
        (targets,), (given,) = nested(outputs), listed(inputs)
        return self._gather_into(targets, given)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        """Gather everyone's input in the root's list of outputs (by an all-gather)."""
        (given,) = listed(inputs)
        targets = nested(outputs)[0] if self.rank() == root_of(opts) else []
        return self._gather_into(targets, given)

    def reduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        """Reduce to the root's tensor (by an all-reduce)."""
        tensors = listed(tensors)
        scratch = [torch.empty_like(tensor) for tensor in tensors]
        works, average = self._reductions(tensors, scratch, opts)
        targets = tensors if self.rank() == root_of(opts) else []

        def finish() -> None:
            average()
            for target, reduced in zip(targets, scratch, strict=False):
                target.detach().copy_(reduced)

        return TorchWork(works, tensors, finish)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        """Deal the root's list of inputs to the ranks (by a broadcast of all of them)."""
        (target,), root, rank = listed(outputs), root_of(opts), self.rank()
        scratch = target.new_empty((self.size(), *target.shape))
        if rank == root:
            torch.stack(nested(inputs)[0], out=scratch)
        work = self.world.broadcast(bytes_of(scratch), root=root, among=self._among)
        return TorchWork([work], [target], lambda: copy_into(target, scratch[rank]))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        """Reduce the lists of inputs, and leave each rank its part (by an all-reduce)."""
        (target,), (parts,) = listed(outputs), nested(inputs)
        return self._reduce_part([target], [torch.stack(parts)], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> TorchWork:
        """Reduce the inputs, and leave each rank its part (by an all-reduce)."""
        return self._reduce_part([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> TorchWork:
        """Do `reduce_scatter_single` for each pair."""
        return self._reduce_part(list(outputs), list(inputs), opts)

    def barrier(self, opts: Any = None) -> TorchWork:  # noqa: ARG002
        """Done when every member has come here."""
        return TorchWork([self.world.barrier(among=self._among)], [])

    # The names before torch 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _refuse(self, operation: str) -> NoReturn:
        message = f"the ulfm backend has no {operation}: use a gloo or NCCL group for it"
        raise NotImplementedError(message)

    def send(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("send")

    def recv(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("recv")

    def recv_anysource(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("recv_anysource")

    def alltoall(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("alltoall")

    def all_to_all_single(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("all_to_all_single")

    alltoall_base = all_to_all_single

    def _reductions(
        self, sources: list[torch.Tensor], targets: list[torch.Tensor], opts: Any
    ) -> tuple[list[Work], Callable[[], None]]:
        """Submit the reductions; also return what makes averages of the sums, if wanted."""
        operation, averaged = operation_of(opts, sources)
        works = [
            self.world.all_reduce(source.detach(), target.detach(), op=operation, among=self._among)
            for source, target in zip(sources, targets, strict=True)
        ]
        size = self.size()

        def average() -> None:
            for target in targets if averaged else ():
                target.detach().div_(size)

        return works, average

    def _reduce_in_place(self, tensors: list[torch.Tensor], opts: Any) -> TorchWork:
        works, average = self._reductions(tensors, tensors, opts)
        return TorchWork(works, tensors, average if operation_of(opts, tensors)[1] else None)

    def _reduce_part(
        self, targets: list[torch.Tensor], given: list[torch.Tensor], opts: Any
    ) -> TorchWork:
        size, rank = self.size(), self.rank()
        for target, whole in zip(targets, given, strict=True):
            if whole.numel() != target.numel() * size:
                message = f"{whole.numel()} elements do not make {size} parts of {target.numel()}"
                raise UsageError(message)
        reduced = [torch.empty_like(whole) for whole in given]
        works, average = self._reductions(given, reduced, opts)

        def finish() -> None:
            average()
            for target, whole in zip(targets, reduced, strict=True):
                copy_into(target, whole.view(size, -1)[rank])

        return TorchWork(works, targets, finish)

    def _gather(self, output: torch.Tensor, given: torch.Tensor) -> Work:
        return self.world.all_gather(bytes_of(given), bytes_of(output), among=self._among)

    def _gather_into(self, targets: list[torch.Tensor], given: torch.Tensor) -> TorchWork:
        scratch = given.new_empty((self.size(), *given.shape))

        def finish() -> None:
            for target, gathered in zip(targets, scratch, strict=True):
                copy_into(target, gathered)

        if targets and len(targets) != len(scratch):
            message = f"{len(targets)} outputs for {len(scratch)} ranks: give one tensor a rank"
            raise UsageError(message)
        return TorchWork([self._gather(scratch, given)], targets, finish if targets else None)

"""The reduce phase: collectives that survive, over the cross-replica group or a subgroup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ulfm_core.bounds import Bounds
from ulfm_core.errors import UsageError
from ulfm_core.subgroup import Subgroup
from ulfm_core.work import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ulfm_core import _core

__all__ = ["Collectives", "Operation", "Transport"]

Operation = Literal["sum", "min", "max", "prod"]
Transport = Literal["cuda-aware MPI", "host staging", "none"]


class Collectives(Bounds):
    """Collectives that end with an outcome when a peer dies, and never with an exception.

    `ulfm_core.World` is one. They run in the order of the calls, on one communication thread.
    """

    def __init__(self, native: _core.World) -> None:
        super().__init__(native.guard)
        self._native = native

    def all_reduce(
        self,
        source: Any,
        destination: Any = None,
        *,
        op: Operation = "sum",
        contribute: bool = True,
        among: Subgroup | None = None,
    ) -> Work:
        """Combine `source` of all group members into `destination`, bit-identical on each of them.

        Args:
            source: a contiguous buffer of float64/32/16, bfloat16, int64/32/16/8 or uint8: anything
                with the buffer protocol, `__dlpack__` or `__cuda_array_interface__`. 16-bit floats
                are summed in float32. Left untouched unless it is the destination.
            destination: a buffer of the same type and size; by default the source, in place.
                Garbage unless the outcome is OK.
            op: how to combine.
            contribute: False adds nothing to a sum (a spare); the source then only gives type and
                size.
            among: a subgroup of `World.subgroup` to run among, instead of the group.

        Both buffers belong to the operation until it has ended. Collective over the group, in the
        same order on all.

        If a rank dies in it, nothing is repeated: each survivor may hold another partial sum, or
        the right one, and only the outcome of `Work.wait` tells (see there). No number may be used
        before a `consensus` has passed on it. In a job of grad_txn use `Job.reduce`, which does
        this and repeats it.

        Raises:
            TypeError: the buffer's type, or its memory, cannot be communicated.
            ValueError: not contiguous, or the two do not match.
            UlfmError: CUDA refused a call (device memory).
        """
        if op != "sum" and not contribute:
            message = (
                f"contribute=False with op={op!r}: only a sum can be joined without adding to it"
            )
            raise UsageError(message)
        target = source if destination is None else destination
        return self._work(
            self._native.all_reduce(
                source,
                target,
                op=_native_op(op),
                contribute=contribute,
                among=_native_subgroup(among),
            ),
            target,
        )

    def broadcast(self, buffer: Any, *, root: int, among: Subgroup | None = None) -> Work:
        """Copy `buffer` of the group member with index `root` into everyone's.

        Collective over the group.
        """
        size = self._native.group_size if among is None else among.size
        if not 0 <= root < size:
            message = f"root {root} is not in 0..{size - 1}: roots are indices in the living group"
            raise UsageError(message)
        rank = self._native.group_rank if among is None else among.rank
        return self._work(
            self._native.broadcast(buffer, root=root, among=_native_subgroup(among)),
            None if rank == root else buffer,
        )

    def all_gather(self, source: Any, destination: Any, *, among: Subgroup | None = None) -> Work:
        """Concatenate every member's `source` in `destination`, `group_size` times as long.

        Collective over the group.
        """
        return self._work(
            self._native.all_gather(source, destination, among=_native_subgroup(among)),
            destination,
        )

    def barrier(self, *, among: Subgroup | None = None) -> Work:
        """Done when every group member has come here. Collective over the group."""
        return self._work(self._native.barrier(among=_native_subgroup(among)))

    def subgroup(self, ranks: Sequence[int]) -> Subgroup:
        """Make a subgroup of these initial ranks, with indices in the order given. Local.

        This rank must be one of them.
        Its members must all make it, and call its collectives in the same order as all others that
        they share.

        Raises:
            UsageError: a rank does not exist or is named twice, or this rank is not among them.
        """
        ranks = [int(rank) for rank in ranks]
        unknown = [rank for rank in ranks if not 0 <= rank < self._native.initial_size]
        if unknown:
            raise UsageError(
                f"rank {unknown[0]} is not in 0..{self._native.initial_size - 1}: subgroups are"
                " made of initial ranks"
            )
        if len(set(ranks)) != len(ranks):
            message = f"subgroup {ranks} names a rank twice"
            raise UsageError(message)
        if self._native.rank not in ranks:
            message = (
                f"rank {self._native.rank} is not in {ranks}: only its members make a subgroup"
            )
            raise UsageError(message)
        from ulfm_core import _core

        return Subgroup(_core.Subgroup(ranks), self._native)

    @property
    def device_transport(self) -> Transport:
        """How CUDA buffers reach the network.

        "cuda-aware MPI", "host staging", or "none" when there is no CUDA device here.
        Asking initialises the CUDA driver in this process, as the first CUDA buffer does.
        """
        from ulfm_core import _core

        names: dict[Any, Transport] = {
            _core.Transport.NONE: "none",
            _core.Transport.MPI: "cuda-aware MPI",
            _core.Transport.STAGING: "host staging",
        }
        return names[_core.device_transport()]

    def _work(self, native: _core.Work, destination: Any = None) -> Work:
        return Work(native, self, self._native.epoch, destination)


def _native_op(op: str) -> _core.Op:
    from ulfm_core import _core

    native: _core.Op | None = getattr(_core.Op, op.upper(), None)
    if native is None:
        message = f"operation {op!r} is unknown: use sum, min, max or prod"
        raise UsageError(message)
    return native


def _native_subgroup(among: Subgroup | None) -> _core.Subgroup | None:
    return None if among is None else among._native  # noqa: SLF001 - the wrapper is ours

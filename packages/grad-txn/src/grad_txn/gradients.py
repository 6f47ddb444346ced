"""Where a framework keeps finished gradients: the seam to DDP, FSDP, Nanotron."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Gradients", "local_part"]


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, sharing its memory; the tensor itself if it is none."""
    # A DTensor; its module need not be imported for those who have none.
    to_local: Any = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


class Gradients(Protocol):
    """The accumulated gradients of this rank, as flat buckets.

    An integration implements this one property and six methods; everything else is the same for
    all of them. A step calls, on each rank: `begin_microbatch` and `end_microbatch` around every
    backward (or around a whole pass of them), `mean_losses` and `norm` once the sums over the
    replicas are there, `expose` when they are in the buckets, and `zero` after the optimizer.
    """

    @property
    def buckets(self) -> Sequence[Tensor]:
        """One flat, contiguous tensor a bucket; the same sizes and order on every replica.

        The list is fixed for the whole run. A bucket is the storage that the framework accumulates
        into: what backward adds to it over the microbatches of a step is this replica's sum, and
        what a transaction leaves in it is what the optimizer sees.
        """
        ...

    def begin_microbatch(self, *, last: bool, ready: Callable[[int], None]) -> None:
        """Prepare the next forward and backward. Local.

        Args:
            last: Whether the sums are final after it.
            ready: With `last`, to be called as ``ready(index)`` once for each bucket, in the order
                of `buckets`, as its sum becomes final: during that backward where the framework
                can tell, else from `end_microbatch`. Without `last`, never.
        """
        ...

    def end_microbatch(self) -> None:
        """The backward has returned: call ``ready`` for what could not be told earlier.

        Collective over the replica where the framework completes gradients inside it.
        """
        ...

    def zero(self) -> None:
        """Forget the gradients: the next microbatch accumulates on zero. Local.

        What the buckets hold until then is of no interest.
        """
        ...

    def norm(self, sums: Sequence[Tensor]) -> float:
        """Return the global norm of the replica's gradients, were `sums` in its `buckets`.

        Collective over the replica where its gradients are sharded. The same number, to the last
        bit, on every rank of the job: gradients are scaled by it.
        """
        ...

    def mean_losses(self, losses: Sequence[float]) -> list[float]:
        """Return the replica's losses, given this rank's own parts of them.

        Collective over the replica where its ranks share a microbatch among them.
        """
        ...

    def expose(self) -> None:
        """Have the optimizer see what the buckets hold. Called right before it steps.

        Also where this replica had no backward in the step. Collective over the replica where its
        ranks have to exchange something for that.
        """
        ...

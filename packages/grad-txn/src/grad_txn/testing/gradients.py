"""The gradients of a plain module, for tests of jobs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["PlainGradients"]


class PlainGradients:
    """The gradients of a module, one bucket a parameter; a `grad_txn.gradients.Gradients`."""

    def __init__(self, module: nn.Module) -> None:
        self._buckets = []
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
            self._buckets.append(parameter.grad.view(-1))
        self._ready: Callable[[int], None] | None = None

    @property
    def buckets(self) -> Sequence[Tensor]:
        """One flat tensor a parameter."""
        return self._buckets

    def begin_microbatch(self, *, last: bool, ready: Callable[[int], None]) -> None:
        """Remember whether the buckets are final after this one."""
        self._ready = ready if last else None

    def end_microbatch(self) -> None:
        """Tell that they are."""
        if self._ready is not None:
            for index in range(len(self._buckets)):
                self._ready(index)

    def zero(self) -> None:
        """Set all buckets to zero."""
        for bucket in self._buckets:
            bucket.zero_()

    def norm(self, sums: Sequence[Tensor]) -> float:
        """Return the norm of all `sums` together."""
        return float(torch.linalg.vector_norm(torch.cat(list(sums))))

    def mean_losses(self, losses: Sequence[float]) -> list[float]:
        """Return them: a rank computes whole microbatches."""
        return list(losses)

    def expose(self) -> None:
        """Do nothing: each bucket is a parameter's gradient."""

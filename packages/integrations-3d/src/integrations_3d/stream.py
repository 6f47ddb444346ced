"""Microbatches as Nanotron's pipeline takes them, and their losses as a step wants them."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from grad_txn.passes import Pass

__all__ = ["Microbatch", "Stream", "Times", "loss_of"]

Microbatch = Mapping[str, Any]
"""The model's arguments: tensors, and Nanotron's TensorPointers to those of other stages."""


class Stream:
    """The microbatches that are due, as the iterator that Nanotron takes for a data loader."""

    def __init__(self, microbatch: Callable[[int], Microbatch]) -> None:
        self.dataset = _Uncounted()
        self._microbatch = microbatch
        self._due: deque[int] = deque()

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Microbatch:
        return self._microbatch(self._due.popleft())

    def drawn(self, work: Pass, dataloader: Iterator[Microbatch]) -> Iterator[Microbatch]:
        """Yield the microbatches of a pass from the data loader that Nanotron made of this."""
        for number in work:
            self._due.append(number)
            yield next(dataloader)


class _Uncounted:
    """A data set of which newer versions of Nanotron ask how much was read. The log has it."""

    def update_consumption_metrics(self, **_what: int) -> None:
        """Count nothing."""

    def get_consumption_stats(self) -> dict[str, Any]:
        return {}


class Times:
    """A forward hook that multiplies the model's loss."""

    def __init__(self) -> None:
        self.by = 1

    def __call__(self, _model: object, _arguments: object, output: Any) -> Any:
        """Return the model's output with its loss multiplied: a forward hook's part."""
        if isinstance(output, Mapping):
            return {**output, "loss": self(_model, _arguments, output["loss"])}
        return output * self.by if isinstance(output, Tensor) else output


def loss_of(output: Mapping[str, Any]) -> Tensor:
    """Return the loss of a microbatch, detached; zero where another stage computes it."""
    loss = output["loss"]
    return loss.detach() if isinstance(loss, Tensor) else torch.zeros(())

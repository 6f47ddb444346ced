"""All microbatches of a pass at once, for frameworks that run them in a schedule of their own."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from grad_txn.errors import UsageError

__all__ = ["Pass"]


class Pass:
    """Microbatches to be computed before the gradients are reduced; `Step.passes` yields it.

    A pipeline runs the forwards and backwards of several microbatches interleaved. It takes them
    from here: iterate over it to get their ids, each when its forward is about to begin, and call
    `finish` once all backwards have returned.

    Attributes:
        ids: The microbatches, in the order in which they are computed; at least one.
    """

    def __init__(
        self,
        ids: Sequence[int],
        *,
        begin: Callable[[int], None],
        finish: Callable[[Sequence[Tensor]], None],
    ) -> None:
        self.ids = tuple(ids)
        self.finished = False
        self._begin = begin
        self._finish = finish
        self._begun = 0

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        for microbatch in self.ids[self._begun :]:
            self._begin(self._begun)
            self._begun += 1
            yield microbatch

    def finish(self, losses: Sequence[Tensor]) -> None:
        """Tell that the gradients of all microbatches are accumulated. Collective over the replica.

        Args:
            losses: The mean loss of every microbatch, undivided, in the order of `ids`: scalars. A
                rank that does not know them gives zeros, see `Gradients.mean_losses`.

        Raises:
            UsageError: The microbatches were not all taken, or not each has its loss, or this was
                called already.
        """
        if self.finished or self._begun < len(self.ids) or len(losses) != len(self.ids):
            raise UsageError(
                f"finish() ends a pass once, with a loss for each of its {len(self.ids)} "
                f"microbatches: {self._begun} were taken, {len(losses)} losses given"
                + (", and it had ended" if self.finished else "")
            )
        self.finished = True
        self._finish(losses)

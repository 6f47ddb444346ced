"""What a transaction needs of the world below it: the seam to `ulfm_core`.

Two seams, because they may be two things. `Control` knows who is there and makes all ranks agree;
its messages are a few numbers. `Reducer` sums buckets of gradients across replicas. A world of
`ulfm_core` is both. Another data plane takes the place of the reducer alone. Tests of this package
put a world of threads in the place of both (`grad_txn.testing.world`).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ulfm_core import Agreement, Membership, Outcome, Repair
from ulfm_core.collectives import Operation

__all__ = ["Communicator", "Control", "Reducer", "Work"]


class Work(Protocol):
    """A collective on its way."""

    @property
    def epoch(self) -> int:
        """The world epoch it was submitted in."""
        ...

    def wait(self) -> Outcome:
        """Block until it has ended; return how it ended on this rank.

        Other ranks may see another outcome: only an agreement makes one common.
        """
        ...


class Reducer(Protocol):
    """Sums buckets over this rank's cross-replica group."""

    def all_reduce(self, source: Any, destination: Any = None, *, contribute: bool = True) -> Work:
        """Sum `source` of all living replicas into `destination`, the same bits on each of them.

        Collective over the cross-replica group, in the same order on all. Returns at once; both
        buffers belong to the operation until it has ended.

        Args:
            source: A flat, contiguous tensor; left untouched unless it is the destination.
            destination: Likewise, of the same type and size; by default the source, in place.
                Garbage unless the outcome is OK.
            contribute: False adds nothing to the sum (a spare).
        """
        ...


class Control(Protocol):
    """Who is there, and what all of them agree on. See `ulfm_core.World` for each method."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def replica(self) -> int: ...  # noqa: D102
    @property
    def position(self) -> int: ...  # noqa: D102
    @property
    def membership(self) -> Membership: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102

    def agree(self, flag: bool) -> Agreement: ...  # noqa: D102, FBT001
    def repair(self, record: Sequence[int] = ()) -> Repair: ...  # noqa: D102
    def on_repair_phase(self, call: Callable[[str, int], None] | None) -> None: ...  # noqa: D102

    # A few numbers, over the cross-replica group or among some ranks.
    def all_reduce(  # noqa: D102
        self, source: Any, *, op: Operation = "sum", among: Any = None
    ) -> Work: ...
    def all_gather(self, source: Any, destination: Any, *, among: Any = None) -> Work: ...  # noqa: D102
    def broadcast(self, buffer: Any, *, root: int, among: Any = None) -> Work: ...  # noqa: D102
    def subgroup(self, ranks: Sequence[int]) -> Any: ...  # noqa: D102

    def beat(self, where: str) -> None: ...  # noqa: D102
    def set_last_words(self, file: int | None, line: str = "") -> None: ...  # noqa: D102
    def waiting(self) -> AbstractContextManager[None]: ...  # noqa: D102


class Communicator(Reducer, Control, Protocol):
    """Both in one, as `ulfm_core.World` is."""

    def all_reduce(  # noqa: D102 - see both
        self,
        source: Any,
        destination: Any = None,
        *,
        op: Operation = "sum",
        contribute: bool = True,
        among: Any = None,
    ) -> Work: ...

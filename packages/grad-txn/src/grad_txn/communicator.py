"""What a transaction needs of the world below it: the seam to `ulfm_core`.

`ulfm_core.World` fits. Tests of this package put a world of threads in its place.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["Agreement", "Communicator", "Repair", "Work"]


class Work(Protocol):
    """A collective on its way."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def wait(self) -> Any:
        """Block until it has ended; return its outcome, ``OK`` by name if it succeeded here."""
        ...


class Agreement(Protocol):
    """What everyone agreed on."""

    @property
    def all_alive(self) -> bool: ...  # noqa: D102 - see ulfm_core.Agreement
    @property
    def flag(self) -> bool: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102


class Repair(Protocol):
    """What a repair left every survivor with."""

    @property
    def epoch(self) -> int: ...  # noqa: D102 - see ulfm_core.Repair
    @property
    def failed(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def records(self) -> tuple[tuple[int, ...], ...]: ...  # noqa: D102
    @property
    def rounds(self) -> int: ...  # noqa: D102
    @property
    def repair_seconds(self) -> float: ...  # noqa: D102
    @property
    def record_seconds(self) -> float: ...  # noqa: D102


class Communicator(Protocol):
    """The world and this rank's cross-replica group, as `ulfm_core.World` offers them."""

    @property
    def rank(self) -> int: ...  # noqa: D102 - see ulfm_core.World
    @property
    def initial_size(self) -> int: ...  # noqa: D102
    @property
    def replica_size(self) -> int: ...  # noqa: D102
    @property
    def replica(self) -> int: ...  # noqa: D102
    @property
    def position(self) -> int: ...  # noqa: D102
    @property
    def members(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def group_size(self) -> int: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102

    def all_reduce(  # noqa: D102
        self, source: Any, destination: Any = None, *, contribute: bool = True
    ) -> Work: ...
    def all_gather(self, source: Any, destination: Any) -> Work: ...  # noqa: D102
    def broadcast(self, buffer: Any, *, root: int, among: Any = None) -> Work: ...  # noqa: D102
    def subgroup(self, ranks: Sequence[int]) -> Any: ...  # noqa: D102
    def agree(self, flag: bool) -> Agreement: ...  # noqa: D102, FBT001
    def repair(self, record: Sequence[int] = ()) -> Repair: ...  # noqa: D102
    def beat(self, where: str) -> None: ...  # noqa: D102
    def set_last_words(self, file: int | None, line: str = "") -> None: ...  # noqa: D102
    def waiting(self) -> AbstractContextManager[None]: ...  # noqa: D102
    def on_repair_phase(self, call: Callable[[str, int], None] | None) -> None: ...  # noqa: D102

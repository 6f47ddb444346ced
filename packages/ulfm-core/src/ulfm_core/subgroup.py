"""Some of the job's ranks, reducing among themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ulfm_core import _core

__all__ = ["Subgroup"]


class Subgroup:
    """Ranks that a collective runs among, instead of this rank's cross-replica group.

    Made by `World.subgroup` and passed as `among`. It is no communicator of its own: its messages
    travel in the world's, so making one costs nothing, and after the world's repair it goes on with
    those of its ranks that live. A failure seen in one of its operations interrupts the operations
    of all subgroups, since the whole world has to repair. Its operations never look for failures
    first, whatever the detection mode.
    """

    def __init__(self, native: _core.Subgroup, world: _core.World) -> None:
        self._native = native
        self._world = world

    def __repr__(self) -> str:
        return f"<Subgroup of ranks {list(self.ranks)}, {self.size} alive>"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Initial ranks, dead ones too, in the order of their indices."""
        return tuple(self._native.ranks)

    @property
    def members(self) -> tuple[int, ...]:
        """Initial ranks of the living, as last agreed, in the order of their indices."""
        alive = set(self._world.members)
        return tuple(rank for rank in self.ranks if rank in alive)

    @property
    def rank(self) -> int:
        """This process's index among the living."""
        return self.members.index(self._world.rank)

    @property
    def size(self) -> int:
        """How many live."""
        return len(self.members)

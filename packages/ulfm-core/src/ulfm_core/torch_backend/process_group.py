"""A torch process group over ranks of the job, living on across failures."""

# torch's stubs describe the collectives in all the ways they may be called; torch itself uses one.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ulfm_core.torch_backend.collectives import TorchCollectives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ulfm_core.results import Consensus, Repair
    from ulfm_core.subgroup import Subgroup
    from ulfm_core.world import World

__all__ = ["NAME", "ProcessGroupUlfm"]

NAME = "ulfm"


class ProcessGroupUlfm(TorchCollectives):
    """A torch process group over ranks of the job, living on across failures.

    Made by `init_process_group("ulfm")` and `new_group(backend="ulfm")`.

    Attributes:
        world: the world it is part of.
    """

    # Looked up by torch where it has native backends to offer.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        """Join the given initial ranks of `world`, as the others of them do. Sends no messages."""
        ranks = tuple(ranks)
        super().__init__(ranks.index(world.rank), len(ranks))  # type: ignore[call-arg]
        self.world = world
        self._name = ""
        self._description = ""
        # The world's own group is the one that can agree before each reduction, and that a
        # CUDA-aware MPI can reduce.
        whole = world.replica_size == 1 and ranks == world.members
        self._among: Subgroup | None = None if whole else world.subgroup(ranks)

    def __repr__(self) -> str:
        return f"<ProcessGroupUlfm of ranks {list(self.members)}, epoch {self.world.epoch}>"

    # -------------------------------------------------------------------------------- who is there

    @property
    def members(self) -> tuple[int, ...]:
        """Initial ranks of the living, as last agreed."""
        return self.world.members if self._among is None else self._among.members

    def rank(self) -> int:
        """Return this process's index among the living."""
        return self.members.index(self.world.rank)

    def size(self) -> int:
        """Return how many live."""
        return len(self.members)

    def name(self) -> str:
        """Return the name of the backend."""
        return NAME

    # By these names C++ asks for the same.
    getRank = rank  # noqa: N815
    getSize = size  # noqa: N815
    getBackendName = name  # noqa: N815

    # torch looks for a group's name in its native backend, and a Python subclass has none.
    @property
    def group_name(self) -> str:
        """The name that torch gave it."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """The description that torch gave it."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        cuda = [torch.device("cuda")] if torch.cuda.is_available() else []
        return [torch.device("cpu"), *cuda]

    def _get_backend(self, device: torch.device) -> ProcessGroupUlfm:  # noqa: ARG002
        return self

    def shutdown(self) -> None:
        """Do nothing: the world outlives its groups, and `ulfm_core.leave` ends it."""

    abort = shutdown

    # ------------------------------------------------------------------------------ detect, repair

    def consensus(  # as World.consensus
        self,
        flag: bool = True,  # noqa: FBT001, FBT002
        *,
        record: Sequence[int] = (),
    ) -> Consensus:
        """Agree whether all are alive and all flags true; if not, repair (ReCoVer, Algorithm 3).

        Collective over all living ranks of the job, not only over this group. When it has not
        passed, this and all other groups of the backend go on with their survivors, renumbered.

        Raises:
            ReplicaCondemnedError: a peer of this rank's own replica died (`replica_size` over 1).
        """
        outcome = self.world.consensus(flag, record=record)
        if outcome.repair is not None:
            _renumber()
        return outcome

    def repair(self, record: Sequence[int] = ()) -> Repair:
        """Repair without agreeing first, when all survivors know that they must.

        Otherwise as `consensus`.
        """
        outcome = self.world.repair(record)
        _renumber()
        return outcome


def _renumber() -> None:
    """Tell torch the new numbers: for every group it keeps a table of global to group ranks."""
    default = dist.group.WORLD
    if not isinstance(default, ProcessGroupUlfm):
        return  # global ranks are another backend's, and stay
    number = {member: rank for rank, member in enumerate(default.members)}
    for group, table in c10d._world.pg_group_ranks.items():  # noqa: SLF001 - torch offers no other way
        if isinstance(group, ProcessGroupUlfm):
            table.clear()
            table.update({number[member]: rank for rank, member in enumerate(group.members)})

"""The world of a job, and the four phases that keep it alive.

A *collective* here runs in the order of the processes' calls on one communication thread, and
returns a `Work`. It never raises because a peer died: its outcome says so. What a step of an
application looks like (deferred detection):

    works = [world.all_reduce(bucket, out) for bucket, out in buckets]  # reduce
    outcomes = [work.wait() for work in works]  # of all, also when one has failed
    reduced = all(outcome is Outcome.OK for outcome in outcomes)
    consensus = world.consensus(reduced, record=[...])  # detect; repair and record if need be
    if consensus.passed: commit, else: adapt to consensus.repair and go round again

A local success means nothing until the consensus has passed: one rank's all-reduce may succeed
while another's fails. In the `guarded` mode every collective of the group first makes sure that all
are there (the paper's order, ReCoVer, Algorithm 2): it fails if this rank knows that one of the
living has died, and begins with a barrier of the group otherwise. That is no agreement, which a
failure seen elsewhere could not interrupt; ranks may come to different answers, and the consensus
decides. Collectives of subgroups do neither. The results are the same.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from ulfm_core.collectives import Collectives
from ulfm_core.errors import ReplicaCondemnedError, UsageError
from ulfm_core.rank.report import report
from ulfm_core.results import Agreement, Consensus, Repair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpi4py.MPI import Comm

    from ulfm_core import _core
    from ulfm_core.membership import Membership

__all__ = ["Detection", "World"]

Detection = Literal["deferred", "guarded"]


class World(Collectives):
    """All ranks of the job, and this rank's cross-replica group, across failures.

    Ranks form *replicas*, the units that live or die: `membership` says who sits where. With one
    rank a replica every rank is one. Collectives run over the *group*: the ranks at this rank's
    position in all living replicas. Agreements and repairs are over all living ranks.

    Made by `init()`; one a process.

    Attributes:
        replica: The replica this rank belongs to.
        position: This rank's index inside its replica.
    """

    def __init__(self, native: _core.World, membership: Membership) -> None:
        """Take over a native world that has just been set up.

        Args:
            native: The world.
            membership: Of all its ranks.
        """
        super().__init__(native)
        self._membership = membership
        self._condemned = False
        self.replica = membership.replica_of(native.rank)
        self.position = membership.position_of(native.rank)

    def __repr__(self) -> str:
        alive = f"{len(self.members)} of {self.initial_size} alive"
        return f"<World rank {self.rank}, epoch {self.epoch}, {alive}>"

    # -------------------------------------------------------------------------------------------
    # who is there

    @property
    def rank(self) -> int:
        """This process's initial rank. It never changes."""
        return self._native.rank

    @property
    def initial_size(self) -> int:
        """How many ranks the job started with."""
        return self._native.initial_size

    @property
    def membership(self) -> Membership:
        """The living, each with its replica and position, as last agreed."""
        return self._membership

    @property
    def replica_size(self) -> int:
        """Ranks in a replica."""
        return self._membership.replica_size

    @property
    def living(self) -> tuple[int, ...]:
        """The living replicas, in order, as last agreed."""
        return self._membership.living

    @property
    def members(self) -> tuple[int, ...]:
        """Initial ranks of the living, in order, as last agreed."""
        return self._membership.ranks

    @property
    def epoch(self) -> int:
        """How many times the world has been repaired."""
        return self._native.epoch

    @property
    def group_rank(self) -> int:
        """This rank's index in its group."""
        return self._native.group_rank

    @property
    def group_size(self) -> int:
        """How many replicas are alive."""
        return self._native.group_size

    def known_failed(self) -> tuple[int, ...]:
        """Initial ranks this process knows to be dead. Local: other ranks may know more or less."""
        return tuple(self._native.known_failed())

    def comm(self) -> Comm:
        """The living world as an mpi4py communicator for the application's own messages.

        Valid until the next repair; do not free it. What waits in it when a failure becomes known
        raises `mpi4py.MPI.Exception`; whoever catches that calls `quiesce` before the consensus.

        Raises:
            UsageError: `init` was not asked for communicators.
        """
        return _comm_of(self._native.application_world)

    def group_comm(self) -> Comm:
        """This rank's group as an mpi4py communicator, with the same conditions as `comm`."""
        return _comm_of(self._native.application_group)

    def quiesce(self) -> None:
        """Skip what is queued or submitted until the next repair: a failure is known. Local."""
        self._native.quiesce()

    # -------------------------------------------------------------------------------------------
    # detect, repair, record

    def agree(self, flag: bool = True) -> Agreement:  # noqa: FBT001, FBT002 - as in MPI
        """Learn, with everyone, whether all are alive and all flags are true.

        Collective over the world.
        """
        begun = time.perf_counter()
        work, result = self._native.agree(flag, leaving=False)
        self._work(work).wait()
        return Agreement(
            all_alive=result.all_alive, flag=result.flag, seconds=time.perf_counter() - begun
        )

    def repair(self, record: Sequence[int] = ()) -> Repair:
        """Make the world whole again after an agreement that did not pass.

        Revoke, shrink, and agree on the result, again and again until nobody dies in between; close
        the failed set over replicas; split the groups anew; exchange `record` (up to a few dozen
        integers, as many on every rank). The epoch goes up by one. Collective over the survivors.

        Raises:
            ReplicaCondemnedError: A peer of this rank's own replica is gone. Leave at once.
        """
        before = self._membership
        work, result = self._native.repair([int(value) for value in record])
        self._work(work).wait()
        after = before.of(result.members)
        failed = tuple(rank for rank in before.ranks if rank not in after)
        if result.condemned:
            self._condemned = True
            raise ReplicaCondemnedError(
                f"replica {self.replica} lost a rank: it is no longer part of the job",
                failed=failed,
                epoch=result.epoch,
            )
        self._membership = after
        if failed and self.rank == after.leader:
            # ulfmrun ends what is left of them: a stopped process, say.
            report("lost", ranks=list(failed))
        return Repair(
            epoch=result.epoch,
            membership=after,
            failed=failed,
            records=tuple(result.records),
            rounds=result.rounds,
            repair_seconds=result.repair_seconds,
            record_seconds=result.record_seconds,
        )

    def consensus(
        self,
        flag: bool = True,  # noqa: FBT001, FBT002 - as in MPI
        *,
        record: Sequence[int] = (),
    ) -> Consensus:
        """Agree; and unless everyone is alive and every flag true, repair and record.

        ReCoVer, Algorithm 3. Collective over the world.

        Raises:
            ReplicaCondemnedError: As `repair` does.
        """
        agreement = self.agree(flag)
        repair = None if agreement.all_alive and agreement.flag else self.repair(record)
        return Consensus(agreement=agreement, repair=repair)

    def on_repair_phase(self, call: Callable[[str, int], None] | None) -> None:
        """Call `call(phase, round)` on the communication thread at each phase of a repair.

        Phases: revoke, shrink, fence, split, record. For progress displays and failure injection.
        """
        self._native.on_phase(call)

    def _leave(self, seconds: float) -> tuple[bool, bool]:
        """Part from the others.

        Returns whether the threads have ended, and whether all others leave as well.
        """
        # From here on a peer of the own replica may end before this process does, and that is no
        # failure.
        self._native.guard.watch([])
        self._native.guard.set_step_limit(0)
        if self._condemned:  # nobody would answer
            return False, False
        # The flag is false: should another rank still be inside a step (it returned from fewer
        # steps, say), its agreement must not pass because this rank is leaving.
        work, result = self._native.agree(False, leaving=True)
        if not work.wait_for(seconds):
            return False, False
        self._native.stop()
        return True, result.all_leave


def _comm_of(handle: int | None) -> Comm:
    if handle is None:
        raise UsageError("this world has no communicators: use init(communicators=True)")
    from mpi4py import MPI

    return MPI.Comm.fromhandle(handle)

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
while another's fails. In the `guarded` mode every collective first makes sure that all of its group
are there (the paper's order), with the same results.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ulfm_core._channel import report
from ulfm_core.errors import ReplicaCondemnedError, UsageError
from ulfm_core.subgroup import Subgroup
from ulfm_core.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mpi4py.MPI import Comm

    from ulfm_core import _core

__all__ = ["Agreement", "Consensus", "Detection", "Operation", "Repair", "Transport", "World"]

Detection = Literal["deferred", "guarded"]
Operation = Literal["sum", "min", "max", "prod"]
Transport = Literal["cuda-aware MPI", "host staging", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What one agreement over the world said: equal on every rank that returned from it."""

    all_alive: bool
    """Nobody has died since the world was last repaired."""
    flag: bool
    """The AND of the flags of everyone who took part."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """What a repair left: equal on every survivor, but for the times."""

    epoch: int
    members: tuple[int, ...]
    """Initial ranks of the survivors, in order."""
    failed: tuple[int, ...]
    """Initial ranks lost with this repair: the dead, and the condemned peers of their replicas."""
    records: tuple[tuple[int, ...], ...]
    """One row a member, in the order of `members`: what each passed as its record."""
    rounds: int
    """1, or more when ranks died during the repair."""
    repair_seconds: float
    """Revoke, shrink, fence and split."""
    record_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Consensus:
    """The outcome of `World.consensus`."""

    agreement: Agreement
    repair: Repair | None
    """None when nobody was lost and every flag was true."""
    passed: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "passed", self.repair is None)


class World:
    """All ranks of the job, and this rank's cross-replica group, across failures.

    The job's ranks `[k * replica_size, (k + 1) * replica_size)` form *replica* k, the unit that
    lives or dies; with `replica_size` 1 every rank is a replica. Collectives run over the *group*:
    the ranks at this rank's position in all living replicas. Agreements and repairs are over all
    living ranks.

    Made by `init()`; one a process.
    """

    def __init__(self, native: _core.World) -> None:
        self._native = native
        self._condemned = False

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
    def replica_size(self) -> int:
        """Ranks in a replica."""
        return self._native.replica_size

    @property
    def replica(self) -> int:
        """The replica this rank belongs to."""
        return self.rank // self.replica_size

    @property
    def position(self) -> int:
        """This rank's index inside its replica."""
        return self.rank % self.replica_size

    @property
    def replicas(self) -> tuple[int, ...]:
        """The living replicas, in order."""
        return tuple(
            rank // self.replica_size for rank in self.members if rank % self.replica_size == 0
        )

    @property
    def members(self) -> tuple[int, ...]:
        """Initial ranks of the living, as last agreed."""
        return tuple(self._native.members)

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
        """Living replicas."""
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

    # -------------------------------------------------------------------------------------------
    # reduce

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
        return Work(
            self._native.all_reduce(
                source,
                target,
                op=_native_op(op),
                contribute=contribute,
                among=_native_subgroup(among),
            ),
            self,
        )

    def broadcast(self, buffer: Any, *, root: int, among: Subgroup | None = None) -> Work:
        """Copy `buffer` of the group member with index `root` into everyone's.

        Collective over the group.
        """
        size = self.group_size if among is None else among.size
        if not 0 <= root < size:
            message = f"root {root} is not in 0..{size - 1}: roots are indices in the living group"
            raise UsageError(message)
        return Work(self._native.broadcast(buffer, root=root, among=_native_subgroup(among)), self)

    def all_gather(self, source: Any, destination: Any, *, among: Subgroup | None = None) -> Work:
        """Concatenate every member's `source` in `destination`, `group_size` times as long.

        Collective over the group.
        """
        return Work(
            self._native.all_gather(source, destination, among=_native_subgroup(among)), self
        )

    def barrier(self, *, among: Subgroup | None = None) -> Work:
        """Done when every group member has come here. Collective over the group."""
        return Work(self._native.barrier(among=_native_subgroup(among)), self)

    def subgroup(self, ranks: Sequence[int]) -> Subgroup:
        """Make a subgroup of these initial ranks, with indices in the order given. Local.

        This rank must be one of them.
        Its members must all make it, and call its collectives in the same order as all others that
        they share.

        Raises:
            UsageError: a rank does not exist or is named twice, or this rank is not among them.
        """
        ranks = [int(rank) for rank in ranks]
        unknown = [rank for rank in ranks if not 0 <= rank < self.initial_size]
        if unknown:
            raise UsageError(
                f"rank {unknown[0]} is not in 0..{self.initial_size - 1}: subgroups are made of"
                " initial ranks"
            )
        if len(set(ranks)) != len(ranks):
            message = f"subgroup {ranks} names a rank twice"
            raise UsageError(message)
        if self.rank not in ranks:
            message = f"rank {self.rank} is not in {ranks}: only its members make a subgroup"
            raise UsageError(message)
        from ulfm_core import _core

        return Subgroup(_core.Subgroup(ranks), self)

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
        Work(work, self).wait()
        return Agreement(
            all_alive=result.all_alive, flag=result.flag, seconds=time.perf_counter() - begun
        )

    def repair(self, record: Sequence[int] = ()) -> Repair:
        """Make the world whole again after an agreement that did not pass.

        Revoke, shrink, and agree on the result, again and again until nobody dies in between; close
        the failed set over replicas; split the groups anew; exchange `record` (up to a few dozen
        integers, as many on every rank). The epoch goes up by one. Collective over the survivors.

        Raises:
            ReplicaCondemnedError: a peer of this rank's own replica is gone. Leave at once.
        """
        before = self.members
        work, result = self._native.repair([int(value) for value in record])
        Work(work, self).wait()
        members = tuple(result.members)
        failed = tuple(sorted(set(before) - set(members)))
        if result.condemned:
            self._condemned = True
            message = f"replica {self.replica} lost a rank: it is no longer part of the job"
            raise ReplicaCondemnedError(message, failed=failed, epoch=result.epoch)
        if failed and self.rank == members[0]:
            report(
                "lost", ranks=list(failed)
            )  # ulfmrun ends what is left of them: a stopped process, say
        return Repair(
            epoch=result.epoch,
            members=members,
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
            ReplicaCondemnedError: as `repair` does.
        """
        agreement = self.agree(flag)
        repair = None if agreement.all_alive and agreement.flag else self.repair(record)
        return Consensus(agreement=agreement, repair=repair)

    def on_repair_phase(self, call: Callable[[str, int], None] | None) -> None:
        """Call `call(phase, round)` on the communication thread at each phase of a repair.

        Phases: revoke, shrink, fence, split, record. For progress displays and failure injection.
        """
        self._native.on_phase(call)

    # -------------------------------------------------------------------------------------------
    # bounds

    def beat(self, where: str) -> None:
        """Tell the guard that the application is alive, and where; this restarts its step limit.

        Local, cheap.
        """
        self._native.guard.beat(where)

    def set_step_limit(self, seconds: float) -> None:
        """End this process when `seconds` pass without a `beat` while it waits for nobody.

        Under `ulfmrun` the same bound holds for a process that is stopped as a whole (SIGSTOP),
        waiting or not. 0 means no limit. Local.
        """
        if seconds < 0:
            message = f"a step limit of {seconds} s is negative: give seconds, or 0 for none"
            raise UsageError(message)
        self._native.guard.set_step_limit(seconds)

    def set_last_words(self, file: int | None, line: str = "") -> None:
        """Have the guard write `line` to a file descriptor before it ends this process.

        In it `{time}` becomes the seconds since the epoch and `{reason}` why, as within a JSON
        string; both once at most. None: nothing is written. Local.
        """
        self._native.guard.set_last_words(-1 if file is None else file, line)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Suspend the step limit: this process waits for others, and the wait limit bounds that."""
        guard = self._native.guard
        guard.begin_wait()
        try:
            yield
        finally:
            guard.end_wait()

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


def _native_op(op: str) -> _core.Op:
    from ulfm_core import _core

    native: _core.Op | None = getattr(_core.Op, op.upper(), None)
    if native is None:
        message = f"operation {op!r} is unknown: use sum, min, max or prod"
        raise UsageError(message)
    return native


def _native_subgroup(among: Subgroup | None) -> _core.Subgroup | None:
    return None if among is None else among._native  # noqa: SLF001 - the wrapper is ours


def _comm_of(handle: int | None) -> Comm:
    if handle is None:
        raise UsageError("this world has no communicators: use init(communicators=True)")
    from mpi4py import MPI

    return MPI.Comm.fromhandle(handle)

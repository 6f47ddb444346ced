"""`ulfmrun`: start a program on N ranks so that the job outlives ranks that die.

It is to a fault-tolerant MPI job what `torchrun` is to torch: it builds the `mpirun` line, gives
each rank the variables that torchrun would set, watches the job (`supervise`), and returns 0 when
the survivors finish. Inside a Slurm allocation mpirun itself takes the nodes from Slurm; `srun`
does not support fault tolerance.
"""

import argparse
import contextlib
import importlib.util
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from ulfm_core._channel import ENVIRONMENT
from ulfm_core.errors import UsageError
from ulfm_core.mpirun import Mpirun, find_mpirun, mpirun_options
from ulfm_core.supervise import Outcome, Patience, supervise

__all__ = ["Host", "Job", "main"]

_FIRST_PORT, _LAST_PORT = 15_000, 32_768  # from the latter on Linux gives ports away by itself
# Passed on to other hosts where they are set: what finds Python's modules and libraries.
_PATHS = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A host and how many ranks it takes."""

    name: str
    slots: int


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
        return next((host.name for host in self.placed() if not _is_here(host.name)), "")

    def variables(self) -> dict[str, str]:
        """Return the variables that every rank needs to find its place."""
        replicas = self.ranks // self.replica_size if self.replica_size else 1
        widest = max((host.slots for host in self.placed()), default=self.ranks)
        variables = {
            "ULFM_INITIAL_WORLD_SIZE": str(self.initial_ranks or self.ranks),
            "ULFM_MASTER_PORT": str(_free_ports(replicas)),
            "ULFM_RESTART": str(self.restart),
        }
        if "OMP_NUM_THREADS" not in os.environ:  # else mpirun's ranks take every core each
            variables["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // widest))
        if self.replica_size:
            variables["ULFM_REPLICA_SIZE"] = str(self.replica_size)
        if self.remote:
            variables["ULFM_HOSTS"] = ",".join(f"{h.name}:{h.slots}" for h in self.placed())
        if os.geteuid() == 0:
            variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return variables

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
        paths = [name for name in _PATHS if self.remote and name in os.environ]
        for name in (*variables, *paths):
            words += ["-x", name]
        words += self.mpi_args
        return [*words, sys.executable, "-m", "ulfm_core._bootstrap", *self.program]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ulfmrun` and return its exit code: 0 if the ranks that were not lost finished with 0."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        job = _job(options, os.environ)
        mpirun = find_mpirun(options.mpirun)
        if mpirun.problem:
            raise UsageError(mpirun.problem)
    except UsageError as error:
        parser.error(str(error))
    if mpirun.warning:
        print(f"ulfmrun: WARNING: {mpirun.warning}", file=sys.stderr)
    if options.dry_run:
        variables = job.variables()
        assignments = [f"{name}={value}" for name, value in variables.items()]
        print(shlex.join(["env", *assignments, *job.command(mpirun, variables)]))
        return 0
    patience = Patience(leftover=options.grace, straggler=options.straggler_grace)
    try:
        return _run(job, mpirun, patience, restarts=options.max_restarts)
    except KeyboardInterrupt:  # between two starts; during one it goes to the job
        return 128 + signal.SIGINT


def _run(job: Job, mpirun: Mpirun, patience: Patience, *, restarts: int) -> int:
    """Run the job, and start it again for as long as nobody finishes and `restarts` allows."""
    while True:
        variables = job.variables()
        outcome = supervise(
            job.command(mpirun, [*variables, ENVIRONMENT]),
            size=job.ranks,
            environment={**os.environ, **variables},
            remote=job.remote,
            patience=patience,
        )
        again = _next_start(job, outcome) if job.restart < restarts else None
        if again is None:
            for line in outcome.said:
                print(line, file=sys.stderr)
            return outcome.code
        print(
            f"ulfmrun: {outcome.failure}; restart {again.restart} of {restarts} with {again.ranks}"
            f" of {again.initial_ranks} ranks",
            file=sys.stderr,
        )
        job = again


def _next_start(job: Job, outcome: Outcome) -> Job | None:
    """Return the job to start after this outcome, or None if that would not help."""
    if outcome.finished or outcome.interrupted:
        return None
    hosts = _answering(job.hosts, job.rsh)
    ranks = min(job.ranks, sum(host.slots for host in hosts)) if job.hosts else job.ranks
    if job.replica_size:
        ranks -= ranks % job.replica_size
    if ranks == 0 or (outcome.started == 0 and hosts == job.hosts):
        return None
    return replace(
        job,
        ranks=ranks,
        hosts=hosts,
        initial_ranks=job.initial_ranks or job.ranks,
        restart=job.restart + 1,
    )


def _answering(hosts: Sequence[Host], rsh: str) -> tuple[Host, ...]:
    """Return the hosts that still run a command within ten seconds."""

    def answers(host: Host) -> bool:
        if _is_here(host.name):
            return True
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [*shlex.split(rsh), host.name, "true"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
            )
            if done.returncode == 0:
                return True
        print(f"ulfmrun: {host.name} does not answer; going on without it", file=sys.stderr)
        return False

    if not hosts:
        return ()
    with ThreadPoolExecutor(max_workers=32) as pool:
        answered = pool.map(answers, hosts)
    return tuple(host for host, up in zip(hosts, answered, strict=True) if up)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # One line: the whole usage above a message hides the message.
        self.exit(2, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ulfmrun",
        usage="ulfmrun -n N [options] [-m MODULE | SCRIPT] ARGS...",
        description="Start a program on N ranks so that the job outlives ranks that die.",
        epilog="Inside sbatch, N is the allocation's number of tasks and mpirun takes the nodes "
        "from Slurm; do not start ranks with srun, which does not support fault tolerance. "
        "Exit code: 0 if every rank that was not lost finished with 0, else theirs; 2 for bad "
        "input; 1 if no rank finished.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", type=int, metavar="N", help="number of ranks")
    add(
        "--replica-size",
        type=int,
        default=0,
        metavar="P",
        help="give each block of P ranks a torch world of its own (RANK, WORLD_SIZE, MASTER_*)",
    )
    add("--hosts", metavar="A:2,B:2", help="hosts and how many ranks each takes, in rank order")
    add("--rsh", default="ssh", metavar="COMMAND", help="how to reach them (%(default)s)")
    add(
        "--transport",
        choices=("tcp", "sm"),
        default="tcp",
        help="tcp survives everything; sm (shared memory) moves large buffers faster inside a "
        "host and can hang when a second rank dies during a repair (default: %(default)s)",
    )
    add(
        "--detector",
        action="store_true",
        help="watch heartbeats: finds a rank that is stopped or cut off, after 2 s",
    )
    add("--dry-run", action="store_true", help="print the command as a shell line and end")
    add(
        "--max-restarts",
        type=int,
        default=0,
        metavar="K",
        help="when no rank finishes, start again up to K times, on the --hosts that still answer; "
        "the program sees ULFM_RESTART and resumes from its checkpoint",
    )
    add(
        "--grace",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds until a stopped or stuck rank is killed once no other runs (%(default)g)",
    )
    add(
        "--straggler-grace",
        type=float,
        default=600.0,
        metavar="S",
        help="the same for a rank that still runs when another has finished (%(default)g)",
    )
    add("--mpirun", metavar="PATH", help="the mpirun to use (else: beside python, then on PATH)")
    add(
        "--mpi-arg",
        action="append",
        default=[],
        metavar="WORDS",
        help="more for mpirun, for example --mpi-arg='--mca btl_tcp_if_include eth0'",
    )
    add("-m", dest="module", action="store_true", help="PROGRAM is a module, as in python -m")
    add("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def _job(options: argparse.Namespace, environment: Mapping[str, str]) -> Job:
    """Check the options against each other and the machine.

    Raises:
        UsageError: Something cannot be started.
    """
    hosts = _parse_hosts(options.hosts) if options.hosts else ()
    nodes = _slurm_nodes(environment) if not hosts else ()
    slots = sum(host.slots for host in hosts or nodes)
    ranks = options.n if options.n is not None else slots
    if options.n is None and not slots:
        raise UsageError("how many ranks? Say -n N (inside sbatch: the number of its tasks)")
    if ranks < 1:
        raise UsageError(f"-n {ranks}: give at least 1 rank")
    if slots and ranks > slots:
        where = f"--hosts {options.hosts}" if hosts else "the Slurm allocation"
        raise UsageError(
            f"-n {ranks}: {where} has room for {slots} ranks; give it more or ask less"
        )
    size = options.replica_size
    if size < 0 or (size and ranks % size):
        raise UsageError(f"--replica-size {size}: {ranks} ranks are no whole number of replicas")
    if options.max_restarts < 0:
        raise UsageError(f"--max-restarts {options.max_restarts}: give 0 or more")
    return Job(
        ranks=ranks,
        program=_program(options),
        replica_size=size,
        hosts=hosts,
        nodes=nodes,
        transport=options.transport,
        detector=options.detector,
        rsh=options.rsh,
        mpi_args=tuple(word for words in options.mpi_arg for word in shlex.split(words)),
    )


def _program(options: argparse.Namespace) -> tuple[str, ...]:
    if not options.program:
        raise UsageError("no program: ulfmrun -n N [-m MODULE | SCRIPT] ARGS...")
    name = options.program[0]
    if options.module:
        sys.path.insert(0, "")  # as the ranks will see it
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            raise UsageError(f"-m {name}: there is no such module in {sys.executable}")
        return ("-m", *options.program)
    if not Path(name).is_file():
        raise UsageError(f"no such script: {name!r} (a module needs -m before it)")
    return tuple(options.program)


def _parse_hosts(text: str) -> tuple[Host, ...]:
    hosts = []
    for part in text.split(","):
        name, colon, slots = part.strip().partition(":")
        if not name or (colon and not slots.isdecimal()) or slots == "0":
            raise UsageError(f"--hosts {text!r}: {part!r} is not NAME or NAME:RANKS")
        hosts.append(Host(name=name, slots=int(slots or 1)))
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--hosts {text!r}: {name} is there twice; add its ranks up")
    return tuple(hosts)


def _slurm_nodes(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the nodes of the Slurm allocation that this process is in, if it is in one."""
    listed = environment.get("SLURM_JOB_NODELIST")
    if not listed:
        return ()
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        raise UsageError("SLURM_JOB_NODELIST is set but there is no scontrol; name --hosts instead")
    names = subprocess.run(
        [scontrol, "show", "hostnames", listed],
        capture_output=True, text=True, timeout=30, check=False,
    ).stdout.split()  # fmt: skip
    # Slurm writes tasks per node as 4(x2),3: two nodes with 4 tasks, one with 3.
    counts = [
        int(tasks)
        for tasks, times in re.findall(
            r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_TASKS_PER_NODE", "")
        )
        for _ in range(int(times or 1))
    ]
    if not names or len(names) != len(counts):
        raise UsageError(
            f"SLURM_JOB_NODELIST={listed} and SLURM_TASKS_PER_NODE="
            f"{environment.get('SLURM_TASKS_PER_NODE', '')} do not match; name --hosts instead"
        )
    return tuple(Host(name=n, slots=c) for n, c in zip(names, counts, strict=True))


def _is_here(host: str) -> bool:
    own = socket.gethostname()
    return host in {"localhost", "127.0.0.1", own, own.partition(".")[0]}


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


if __name__ == "__main__":
    sys.exit(main())

"""`ulfmrun`: start a program on N ranks so that the job outlives ranks that die.

It is to a fault-tolerant MPI job what `torchrun` is to torch: it builds the `mpirun` line, gives
each rank the variables that torchrun would set, watches the job (`supervise`), and returns 0 when
the survivors finish. Inside a Slurm allocation mpirun itself takes the nodes from Slurm; `srun`
does not support fault tolerance.
"""

import argparse
import importlib.util
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ulfm_core import environment
from ulfm_core.codes import BAD_INPUT, FINISHED, ended_by
from ulfm_core.errors import UsageError
from ulfm_core.launch.hosts import answering, parse_hosts, slurm_hosts
from ulfm_core.launch.job import Job
from ulfm_core.launch.mpirun import Mpirun, find_mpirun
from ulfm_core.launch.roster import Patience, Verdict
from ulfm_core.launch.supervise import supervise
from ulfm_core.membership import whole_replicas

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `ulfmrun` and return its exit code: 0 if the ranks that were not lost finished with 0."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        job = _job(options)
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
        return FINISHED
    patience = Patience(leftover=options.grace, straggler=options.straggler_grace)
    try:
        return _run(job, mpirun, patience, restarts=options.max_restarts)
    except KeyboardInterrupt:  # between two starts; during one it goes to the job
        return ended_by(signal.SIGINT)


def _run(job: Job, mpirun: Mpirun, patience: Patience, *, restarts: int) -> int:
    """Run the job, and start it again for as long as nobody finishes and `restarts` allows."""
    while True:
        variables = job.variables()
        verdict = supervise(
            job.command(mpirun, [*variables, environment.ULFMRUN_CHANNEL]),
            size=job.ranks,
            environment={**os.environ, **variables},
            remote=job.remote,
            patience=patience,
        )
        again = _next_start(job, verdict) if job.restart < restarts else None
        if again is None:
            for line in verdict.said:
                print(line, file=sys.stderr)
            return verdict.code
        print(
            f"ulfmrun: {verdict.failure}; restart {again.restart} of {restarts} with {again.ranks}"
            f" of {again.initial_ranks} ranks",
            file=sys.stderr,
        )
        job = again


def _next_start(job: Job, verdict: Verdict) -> Job | None:
    """Return the job to start after this verdict, or None if that would not help."""
    if verdict.finished or verdict.interrupted:
        return None
    hosts = answering(job.hosts, job.rsh)
    ranks = min(job.ranks, sum(host.slots for host in hosts)) if job.hosts else job.ranks
    if job.replica_size:
        ranks = job.replica_size * whole_replicas(ranks, job.replica_size)
    if ranks == 0 or (verdict.started == 0 and hosts == job.hosts):
        return None
    return replace(
        job,
        ranks=ranks,
        hosts=hosts,
        initial_ranks=job.initial_ranks or job.ranks,
        restart=job.restart + 1,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # One line: the whole usage above a message hides the message.
        self.exit(BAD_INPUT, f"{self.prog}: {message}\n")


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
        help="give each block of P ranks a torch world of its own, by the variables that torchrun"
        " would set",
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
        f"the program sees {environment.ULFM_RESTART} and resumes from its checkpoint",
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


def _job(options: argparse.Namespace) -> Job:
    """Check the options against each other and the machine.

    Raises:
        UsageError: Something cannot be started.
    """
    hosts = parse_hosts(options.hosts) if options.hosts else ()
    nodes = slurm_hosts() if not hosts else ()
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

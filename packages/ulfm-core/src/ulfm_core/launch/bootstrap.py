"""What every rank of `ulfmrun` runs first: its environment, then the program, then the way out.

`python -m ulfm_core.launch.bootstrap [-m] PROGRAM ARGS` sets the variables that torchrun would set,
runs the program as `__main__`, tells `ulfmrun` with which code it ended, and leaves. It also gives
the rank its keeper, as only a process without threads can.
"""

import atexit
import contextlib
import faulthandler
import importlib.util
import io
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from ulfm_core import environment, leaving
from ulfm_core.codes import BAD_INPUT, FAILED, FINISHED, ended_by
from ulfm_core.errors import ReplicaCondemnedError
from ulfm_core.membership import Membership
from ulfm_core.rank import keeper
from ulfm_core.rank.farewell import hold_stderr, keep_refusal, say_farewell
from ulfm_core.rank.process import die_with_parent
from ulfm_core.rank.report import report

__all__ = ["main"]

_CONDEMNED_WITHIN = 1.0  # seconds from a peer's death until this rank knows of it


def main() -> NoReturn:
    """Run the program that the command line names, as one rank of a job."""
    if not environment.is_rank():
        sys.exit("ulfm_core.launch.bootstrap is started by ulfmrun: ulfmrun -n N [-m] PROGRAM ARGS")
    # A rank must not outlive its mpirun, or nobody would ever end it.
    die_with_parent(signal.SIGKILL)
    keeper.start()
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Whole lines, at once: what a killed rank said is still seen, and under PYTHONUNBUFFERED,
        # which writes every argument of print() by itself, the lines of two ranks would mix.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    _set_environment()
    report("start")
    hold_stderr()
    code = _run(sys.argv[1:])
    keep_refusal(code)
    _run_exit_functions()
    say_farewell(code)
    _leave(code)


def _set_environment() -> None:
    """Tell the program its place: in its replica's world to torch, and on its host."""
    rank, world = environment.rank(), environment.size()
    given = environment.replica_size()
    membership = Membership.initial(world, given or world)
    replica, position = membership.replica_of(rank), membership.position_of(rank)
    hosts = environment.hosts()
    environment.set_torch_world(
        rank=position,
        world_size=membership.replica_size,
        address=hosts[membership.ranks_of(replica)[0]] if hosts else "127.0.0.1",
        port=environment.master_port() + replica,
    )
    # Of the host and not of the replica: they choose the device.
    environment.set_local(rank=environment.local_rank(), size=environment.local_size())
    if hosts:
        environment.set_host(hosts[rank])
    if given is not None:
        environment.set_seat(replica=replica, position=position)


def _run(command: list[str]) -> int:
    """Run `[-m] program args` as `__main__` and return its exit code."""
    try:
        if command[0] == "-m":
            name = command[1]
            if _missing(name):
                print(f"ulfmrun: no such module: {name!r}", file=sys.stderr)
                return BAD_INPUT
            sys.argv = command[1:]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            sys.path[0] = str(Path(command[0]).resolve().parent)
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as wanted:
        if wanted.code not in (None, FINISHED, BAD_INPUT):
            _end_if_condemned()
        return _code(wanted)
    except KeyboardInterrupt:
        return ended_by(signal.SIGINT)
    except ReplicaCondemnedError as condemned:  # no mistake of the program
        report("lost", ranks=[environment.rank()])
        print(f"rank {environment.rank()}: {condemned}", file=sys.stderr)
        return FAILED
    except BaseException as error:  # noqa: BLE001 - as the interpreter itself would
        _end_if_condemned()
        _print_traceback(error)
        return FAILED
    return FINISHED


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        return True


def _end_if_condemned() -> None:
    """Do not return if this rank failed because its replica has lost another one.

    Whoever waits in a collective of the replica (gloo, NCCL) may hear of a death before MPI does.
    What it raises then is no mistake of the program. The guard ends this process once it knows, and
    says why.
    """
    if leaving.in_replica_of_several():
        time.sleep(_CONDEMNED_WITHIN)


def _code(wanted: SystemExit) -> int:
    if wanted.code is None:
        return FINISHED
    if isinstance(wanted.code, int):
        return wanted.code & 0xFF
    print(wanted.code, file=sys.stderr)
    return FAILED


def _print_traceback(error: BaseException) -> None:
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename in {__file__, "<frozen runpy>"}:
        frames = frames.tb_next
    # In one write, or the tracebacks of several ranks run into each other.
    text = "".join(traceback.format_exception(type(error), error, frames))
    sys.stderr.write(f"rank {environment.rank()}: {text}")


def _run_exit_functions() -> None:
    """Do what Python does at its end, before the job hears that this rank has finished."""
    atexit.unregister(leaving.leave_at_exit)  # the program's own come first
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - waits for threads
    with contextlib.suppress(Exception):  # each has printed its traceback; the rest were run
        atexit._run_exitfuncs()  # noqa: SLF001


def _leave(code: int) -> NoReturn:
    """End the process: by the way out that survives failures, if it is in the world.

    Another user of MPI that has failed leaves at once as well: in MPI_Finalize it would neither
    answer its peers nor be dead to them.
    """
    if leaving.in_world() or (code and "mpi4py.MPI" in sys.modules):
        leaving.leave(code)
    keeper.end()
    sys.exit(code)


if __name__ == "__main__":
    main()

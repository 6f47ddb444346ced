"""What every rank of `ulfmrun` runs first: its environment, then the program, then the way out.

`python -m ulfm_core._bootstrap [-m] PROGRAM ARGS` sets the variables that torchrun would set, runs
the program as `__main__`, tells `ulfmrun` with which code it ended, and leaves. It also gives the
rank its keeper, as only a process without threads can.
"""

import atexit
import contextlib
import faulthandler
import importlib.util
import io
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

from ulfm_core import _keeper, leaving
from ulfm_core._channel import report
from ulfm_core._farewell import BAD_INPUT, hold_stderr, keep_refusal, say_farewell
from ulfm_core._parent import die_with_parent
from ulfm_core.errors import ReplicaCondemnedError

__all__ = ["main"]

_CONDEMNED_WITHIN = 1.0  # seconds from a peer's death until this rank knows of it


def main() -> NoReturn:
    """Run the program that the command line names, as one rank of a job."""
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        sys.exit("ulfm_core._bootstrap is started by ulfmrun: ulfmrun -n N [-m] PROGRAM ARGS")
    # A rank must not outlive its mpirun, or nobody would ever end it.
    die_with_parent(signal.SIGKILL)
    _keeper.start()
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
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    world = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    size = int(os.environ.get("ULFM_REPLICA_SIZE", "0")) or world
    replica, position = divmod(rank, size)
    hosts = [  # the host of every rank, where there are several
        name
        for part in filter(None, os.environ.get("ULFM_HOSTS", "").split(","))
        for name, _, slots in [part.rpartition(":")]
        for _ in range(int(slots))
    ]
    os.environ |= {
        "RANK": str(position),
        "WORLD_SIZE": str(size),
        # Of the host and not of the replica: they choose the device.
        "LOCAL_RANK": os.environ["OMPI_COMM_WORLD_LOCAL_RANK"],
        "LOCAL_WORLD_SIZE": os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"],
        "MASTER_ADDR": hosts[replica * size] if hosts else "127.0.0.1",
        "MASTER_PORT": str(int(os.environ["ULFM_MASTER_PORT"]) + replica),
    }
    if hosts:
        os.environ["ULFM_HOST"] = hosts[rank]  # as the other ranks can name it
    if "ULFM_REPLICA_SIZE" in os.environ:
        os.environ |= {"ULFM_REPLICA": str(replica), "ULFM_POSITION": str(position)}


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
        if wanted.code not in (None, 0, BAD_INPUT):
            _end_if_condemned()
        return _code(wanted)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except ReplicaCondemnedError as condemned:  # no mistake of the program
        report("lost", ranks=[int(os.environ["OMPI_COMM_WORLD_RANK"])])
        print(f"rank {os.environ['OMPI_COMM_WORLD_RANK']}: {condemned}", file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter itself would
        _end_if_condemned()
        _print_traceback(error)
        return 1
    return 0


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
        return 0
    if isinstance(wanted.code, int):
        return wanted.code & 0xFF
    print(wanted.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException) -> None:
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename in {__file__, "<frozen runpy>"}:
        frames = frames.tb_next
    # In one write, or the tracebacks of several ranks run into each other.
    text = "".join(traceback.format_exception(type(error), error, frames))
    sys.stderr.write(f"rank {os.environ['OMPI_COMM_WORLD_RANK']}: {text}")


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
    _keeper.end()
    sys.exit(code)


if __name__ == "__main__":
    main()

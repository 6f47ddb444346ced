"""Cheap real jobs: torch and all packages are imported once, and every rank is a fork.

A rank of a plain job spends two seconds on imports. Here a fork server has them behind it, without
MPI: that is initialised in the fork. All else is as in a plain job. `ulfmrun`, mpirun and its PMIx
environment are the real ones; the program that mpirun starts for each rank is a stub that gives the
server its environment, arguments, folder and standard streams, and dies as the fork dies.

    with Preloaded() as preloaded:
        job = preloaded.start(["-n", "4", "-m", "integrations_hsdp.pretrain", ...])
        assert job.wait(60) == 0
"""

import contextlib
import importlib
import io
import marshal
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

PRELOADED = (
    "numpy.random",
    "torch._dynamo",  # what torch imports when it is first used
    "torch._inductor",
    "torch.onnx.ops",
    "torch.distributed.tensor",
    "torch.nn.utils._expanded_weights",
    "integrations_hsdp.training",
    "grad_txn.verify",
    "ulfm_core.launch.bootstrap",
    "ulfm_core.launch.command_line",
    "pydoc_data.topics",
)
LAUNCH = "launch"
RANK = ["-m", "ulfm_core.launch.bootstrap"]
STUB = Path(__file__).with_name("rank_stub.py")


class Launched:
    """An `ulfmrun` that was started by a `Preloaded`."""

    def __init__(self, connection: socket.socket, out: Path) -> None:
        self._connection = connection
        self._out = out
        self.returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Return the exit code of `ulfmrun`; negative if a signal ended it.

        Raises:
            TimeoutError: It has not ended in time. Everything was killed; says what it printed.
        """
        self._connection.settimeout(timeout)
        try:
            self.returncode = int(self._connection.recv(64) or -signal.SIGKILL)
        except TimeoutError:
            self.end()
            raise TimeoutError(
                f"no end after {timeout:g} s; printed:\n{self.stdout}\n{self.stderr}"
            ) from None
        finally:
            self._connection.close()
        return self.returncode

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not selectable(self._connection)

    def end(self) -> None:
        """Kill it; mpirun and the ranks go with it."""
        self._connection.close()

    @property
    def stdout(self) -> str:
        return self._out.with_suffix(".stdout").read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self._out.with_suffix(".stderr").read_text(errors="replace")


def selectable(connection: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(0))


class Preloaded:
    """The fork server, for as long as the `with` block lasts.

    Args:
        *more: Further modules to import.
    """

    def __init__(self, *more: str) -> None:
        self._more = more

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="preload-")
        folder = Path(self._folder.name)
        self._address = str(folder / "socket")
        python = folder / "python"  # what `ulfmrun` takes for the interpreter
        python.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -I -S "{STUB}" "{folder}/socket" "$@"\n'
        )
        python.chmod(0o755)
        self._server = subprocess.Popen(
            [sys.executable, __file__, self._address, str(python), *self._more],
            stdin=subprocess.PIPE,  # its end tells the server that we are gone
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            self._server.kill()
            raise RuntimeError("the fork server did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._folder.cleanup()

    def start(
        self, arguments: Sequence[str], *, out: Path, env: Mapping[str, str] | None = None
    ) -> Launched:
        """Start `ulfmrun` with these arguments.

        Args:
            arguments: Its command line.
            out: Its output goes to `out.stdout` and `out.stderr`; it runs in `out`'s folder.
            env: Variables on top of this process's.
        """
        out.parent.mkdir(parents=True, exist_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.settimeout(10)
        server.connect(self._address)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        request = marshal.dumps(([LAUNCH, *arguments], str(out.parent), environment))
        with contextlib.ExitStack() as files:
            streams = [
                files.enter_context(file)
                for file in (
                    Path(os.devnull).open("rb"),  # noqa: SIM115
                    out.with_suffix(".stdout").open("wb"),
                    out.with_suffix(".stderr").open("wb"),
                )
            ]
            socket.send_fds(server, [request], [stream.fileno() for stream in streams])
        return Launched(server, out)


def serve(address: str, python: str, *more: str) -> NoReturn:
    """Fork a process for everyone who connects, until standard input ends."""
    import torch

    torch.set_num_threads(1)
    for name in (*PRELOADED, *more):
        importlib.import_module(name)
    assert "mpi4py.MPI" not in sys.modules
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    clients: dict[int, tuple[socket.socket, int]] = {}  # by pidfd: who asked, and the child
    os.write(1, b"ready\n")
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                child = _fork(connection, [listener, *(c for c, _ in clients.values())], python)
                pidfd = os.pidfd_open(child)
                clients[pidfd] = (connection, child)
                selector.register(pidfd, selectors.EVENT_READ)
                selector.register(connection, selectors.EVENT_READ, data=pidfd)
            elif key.fd == 0:
                for pidfd in clients:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os._exit(0)
            elif key.data is not None:  # whoever asked is gone
                if key.data in clients:
                    signal.pidfd_send_signal(key.data, signal.SIGKILL)
                selector.unregister(key.fileobj)
            elif key.fd in clients:
                connection, child = clients.pop(key.fd)
                _, status = os.waitpid(child, 0)
                with contextlib.suppress(OSError):
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
                with contextlib.suppress(KeyError):
                    selector.unregister(connection)
                connection.close()
                selector.unregister(key.fd)
                os.close(key.fd)


def _fork(connection: socket.socket, others: Sequence[socket.socket], python: str) -> int:
    """Fork the process that is asked for on this connection; return its number."""
    request, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    if child:
        for fd in fds:
            os.close(fd)
        return child
    code = 1
    try:
        for one in (connection, *others):
            one.close()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)
        arguments, folder, environment = marshal.loads(request)
        code = _become(arguments, folder, environment, python)
    except SystemExit as wanted:
        code = wanted.code if isinstance(wanted.code, int) else int(wanted.code is not None)
    except BaseException:  # noqa: BLE001 - a fork must not go on in the server's code
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _become(arguments: list[str], folder: str, environment: dict[str, str], python: str) -> int:
    """Be the process that the stub, or `Preloaded.start`, would have been."""
    from ulfm_core.launch import bootstrap, command_line
    from ulfm_core.launch.mpirun import find_mpirun
    from ulfm_core.rank.process import die_with_parent

    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False))  # noqa: SIM115
    errors = open(2, "wb", buffering=0, closefd=False)  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(errors, write_through=True)
    if arguments[0] == LAUNCH:
        os.setsid()
        mpirun = find_mpirun().path  # beside the real interpreter
        sys.executable = python
        sys.argv = ["ulfmrun", *arguments[1:]]
        return command_line.main(["--mpirun", str(mpirun), *arguments[1:]])
    assert arguments[:2] == RANK, arguments
    sys.argv = [bootstrap.__file__, *arguments[2:]]
    sys.path[0] = folder
    return bootstrap.main()


if __name__ == "__main__":
    serve(*sys.argv[1:])

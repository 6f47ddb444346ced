"""Real jobs whose processes need not import torch: a Python that has done so already.

```python
with preloaded_python("torch", "my_program.training") as python:
    run_ranks("my_program.main", 4, python=python)
```

`python` is a program that does what `sys.executable` does for ``-m MODULE ARGS``, except that the
modules named are imported. A server imports them once and forks; `python` is a small stub that
hands over its arguments, environment, working directory and standard streams, and ends in the way
the forked process ended. Everything else is the real thing: mpirun starts the stubs, each forked
process initialises MPI by itself, and where one is killed its connections close at that moment.

What differs: the forked processes are not children of mpirun, /proc shows another environment for
them, and all of them hash strings alike. A few jobs should be started without it as well.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ulfm_core import _preload_stub
from ulfm_core._parent import die_with_parent

__all__ = ["preloaded_python"]


@contextlib.contextmanager
def preloaded_python(*modules: str, seconds: float = 120.0) -> Iterator[Path]:
    """Yield the path of a Python program that has imported `modules`.

    What was started with it and still runs is killed at the end.

    Args:
        modules: Their names. They must start no threads, and must not initialise MPI.
        seconds: How long importing them may take.

    Raises:
        RuntimeError: A module cannot be imported, starts a thread, or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="ulfm-") as name:
        folder = Path(name)
        python = folder / "python"
        stub = [sys.executable, "-IS", _preload_stub.__file__, str(folder / "socket")]
        python.write_text(f'#!/bin/sh\nexec {shlex.join(stub)} "$@"\n')
        python.chmod(0o755)
        mpirun = Path(sys.executable).with_name("mpirun")
        if mpirun.exists():  # it is looked for beside the interpreter
            (folder / "mpirun").symlink_to(mpirun)
        server = subprocess.Popen(
            [sys.executable, "-m", "ulfm_core.testing_preload", str(folder), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                # Read when the libraries are loaded. A pool of threads would not survive the fork.
                **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            },
        )
        try:
            assert server.stdin is not None
            assert server.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(server.stdout, selectors.EVENT_READ)
                ready = selector.select(seconds) and server.stdout.readline() == b"ready\n"
            if not ready:
                raise RuntimeError(f"{', '.join(modules)} could not be preloaded, see above")
            yield python
        finally:
            assert server.stdin is not None
            with server.stdin:  # the server ends at its end, and everything it has forked
                pass
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            assert server.stdout is not None
            server.stdout.close()


def main() -> None:
    """Serve; in a forked process, be the program that was asked for."""
    folder, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        sys.exit(f"after importing {', '.join(modules)} there are {threads} threads, and a fork "
                 "would lose them")
    gc.collect()
    gc.freeze()  # or the first collection in every process would copy all pages
    request = _Server(Path(folder)).serve()
    if request is not None:
        _become(request, str(Path(folder, "python")))


class _Server:
    """Forks a process for every stub that connects, and tells the stub how it ended."""

    def __init__(self, folder: Path) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "socket"))
        self._listener.listen(128)
        self._processes: dict[int, socket.socket] = {}  # by process id: the stub
        self._handles: dict[int, int] = {}  # by process id: its pidfd

    def serve(self) -> dict[str, Any] | None:
        """Return None when the owner is done, and in a forked process what it shall be."""
        self._selector.register(sys.stdin, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        print("ready", flush=True)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._end_all()
                    return None
                if key.fileobj is self._listener:
                    request = self._accept()
                    if request is not None:
                        return request
                elif isinstance(key.fileobj, socket.socket):
                    self._pass_on(key.data, key.fileobj)
                elif key.data in self._processes:
                    self._reap(key.data)

    def _accept(self) -> dict[str, Any] | None:
        """Fork for one stub; return its request in the forked process."""
        stub, _ = self._listener.accept()
        stub.settimeout(10)
        streams: list[int] = []
        try:
            head, streams, _, _ = socket.recv_fds(stub, 8, 3)
            with stub.makefile("rb") as reader:
                request: dict[str, Any] = json.loads(reader.read(int.from_bytes(head, "big")))
        except (OSError, ValueError):  # the stub was killed meanwhile
            stub.close()
            for stream in streams:
                os.close(stream)
            return None
        stub.settimeout(None)
        process = os.fork()
        if process == 0:
            # It must hold nothing of the others: their ends would go unseen.
            for key in list(self._selector.get_map().values()):
                if key.fileobj is not sys.stdin:
                    _close(key.fileobj)
            self._selector.close()
            stub.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return request
        for stream in streams:
            os.close(stream)
        handle = os.pidfd_open(process)
        self._processes[process], self._handles[process] = stub, handle
        self._selector.register(handle, selectors.EVENT_READ, process)
        self._selector.register(stub, selectors.EVENT_READ, process)
        return None

    def _pass_on(self, process: int, stub: socket.socket) -> None:
        """A stub has had a signal, or has ended."""
        try:
            numbers = stub.recv(64)
        except OSError:
            numbers = b""
        if not numbers:
            self._selector.unregister(stub)
        for number in numbers or [signal.SIGKILL]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def _reap(self, process: int) -> None:
        """Tell the stub how its process has ended."""
        _, status = os.waitpid(process, 0)
        code = os.waitstatus_to_exitcode(status)
        stub, handle = self._processes.pop(process), self._handles.pop(process)
        self._selector.unregister(handle)
        os.close(handle)
        with contextlib.suppress(KeyError):
            self._selector.unregister(stub)
        with contextlib.suppress(OSError):
            stub.send(code.to_bytes(8, "big", signed=True))
        stub.close()

    def _end_all(self) -> None:
        for process in list(self._processes):
            os.kill(process, signal.SIGKILL)
            self._reap(process)


def _close(opened: Any) -> None:
    if isinstance(opened, int):
        os.close(opened)
    else:
        opened.close()


def _become(request: dict[str, Any], python: str) -> None:
    """Run the module that a stub was started for, as Python would."""
    die_with_parent(signal.SIGKILL)
    with contextlib.suppress(PermissionError):
        os.setsid()
    for number in _preload_stub.PASSED_ON:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    flag, module, *arguments = request["arguments"]
    if flag != "-m":
        sys.exit(f"a preloaded Python only runs -m MODULE, not {flag}")
    sys.executable = python
    sys.path[0] = request["directory"]
    sys.path[1:1] = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p not in sys.path]
    sys.argv = [module, *arguments]
    importlib.invalidate_caches()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

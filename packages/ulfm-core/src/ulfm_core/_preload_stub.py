"""What stands in for a Python process that a `testing_preload` server has forked.

`python -IS _preload_stub.py SOCKET ARGS` hands its arguments, environment, working directory and
standard streams to the server, passes signals on to the process it gets for them, and ends the way
that one ends. It is kept tiny: how fast it starts is all it is good for.
"""

import json
import os
import resource
import signal
import socket
import sys

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def main() -> None:
    """Be the process."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(sys.argv[1])
    request = json.dumps(
        {"arguments": sys.argv[2:], "environment": dict(os.environ), "directory": os.getcwd()}
    ).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _frame: server.send(bytes([number])))
    # A negative number is a signal's. If the server itself is gone, so is the process.
    answer = server.recv(8)
    code = int.from_bytes(answer, "big", signed=True) if answer else -signal.SIGKILL
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the process has left one if it should
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()

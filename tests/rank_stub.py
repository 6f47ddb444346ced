"""Stands where mpirun expects a rank's process: `python -I -S rank_stub.py SOCKET ARGUMENTS`.

It hands everything it was started with to the fork server (see preload.py), waits, and ends as the
forked process did. If it is killed the server sees its connection close, and kills that process.
Started for every rank of every run, so it imports as little as it can.
"""

import _socket
import marshal
import os
import sys
from array import array


def main() -> None:
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect(sys.argv[1])
    request = marshal.dumps((sys.argv[2:], os.getcwd(), dict(os.environ)))  # noqa: PTH109 - pathlib costs 10 ms
    fds = array("i", (0, 1, 2))
    server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    code = int(server.recv(64) or -9)  # nothing: the server is gone, and its children with it
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)


main()

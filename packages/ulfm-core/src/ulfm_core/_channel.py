"""How ranks tell `ulfmrun` what becomes of them, since mpirun's exit code does not.

A rank connects to the address in ULFMRUN_CHANNEL (`host:port:token`) and sends JSON objects, one a
line. The connection stays open for as long as the process lives, so that its end is news as well:
`ulfmrun` sees a rank that died without a word as `gone`.
"""

import hmac
import json
import os
import secrets
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue import SimpleQueue

__all__ = ["ENVIRONMENT", "Channel", "report"]

ENVIRONMENT = "ULFMRUN_CHANNEL"
_BOUND = 2.0  # seconds that a rank may lose to a report
_LONGEST = 1 << 16  # bytes in a line

_lock = threading.Lock()
_connection: socket.socket | None = None
_owner = 0  # the process that _connection belongs to: a forked child needs its own


def report(kind: str, **fields: Any) -> bool:
    """Tell `ulfmrun` something about this rank. Never raises, and takes two seconds at most.

    Kinds that `ulfmrun` knows: `start`; `joined` (`replica_size`: this rank is in a world);
    `exit` (`code`, and `said`, what a refused input was answered with); `lost` (`ranks`, world
    ranks that are out of the job, this one perhaps among them); `progress` (`step`). Others are
    kept for the reader.

    Args:
        kind: What happened.
        fields: More about it, anything that JSON takes.

    Returns:
        Whether it was sent. False without `ulfmrun`, and for good once it did not answer.
    """
    address = os.environ.get(ENVIRONMENT)
    if not address:
        return False
    message: dict[str, Any] = {
        "kind": kind,
        "rank": int(os.environ.get("OMPI_COMM_WORLD_RANK", "-1")),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **fields,
    }
    try:
        line = json.dumps(message, default=str).encode() + b"\n"
    except (TypeError, ValueError):
        return False
    if len(line) > _LONGEST:
        return False
    try:
        with _lock:
            _send(address, line)
    except (OSError, ValueError):
        os.environ.pop(ENVIRONMENT, None)
        return False
    return True


def _send(address: str, line: bytes) -> None:
    global _connection, _owner  # noqa: PLW0603 - one connection a process is the point
    if _connection is None or _owner != os.getpid():
        host, port, token = address.rsplit(":", 2)
        _connection = socket.create_connection((host, int(port)), timeout=_BOUND / 2)
        _owner = os.getpid()
        line = token.encode() + b"\n" + line
    _connection.sendall(line)


class Channel:
    """The end of `ulfmrun`: puts every message, and the end of every connection, into a queue.

    Args:
        reachable_from: A host that ranks run on, when not all are here. Without it the channel
            listens on the loopback interface only.
    """

    def __init__(self, inbox: "SimpleQueue[dict[str, Any]]", reachable_from: str = "") -> None:
        self._token = secrets.token_hex(16)
        here = _address_towards(reachable_from) if reachable_from else "127.0.0.1"
        self._server = _Server((here, 0), _Reader)
        self._server.inbox = inbox
        self._server.token = self._token.encode()
        self.address = f"{here}:{self._server.server_address[1]}:{self._token}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024
    inbox: "SimpleQueue[dict[str, Any]]"
    token: bytes


class _Reader(socketserver.StreamRequestHandler):
    server: _Server
    timeout = None

    def handle(self) -> None:
        if not hmac.compare_digest(self.rfile.readline(256).strip(), self.server.token):
            return
        rank = pid = None
        try:
            while line := self.rfile.readline(_LONGEST):
                message = json.loads(line)
                rank, pid = message["rank"], message["pid"]
                self.server.inbox.put(message)
        except (OSError, ValueError, KeyError, TypeError):
            pass  # a rank killed in the middle of a line: its end says enough
        if rank is not None:
            self.server.inbox.put({"kind": "gone", "rank": rank, "pid": pid})


def _address_towards(host: str) -> str:
    # Connecting a datagram socket sends nothing; it only asks which of our addresses faces host.
    family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])

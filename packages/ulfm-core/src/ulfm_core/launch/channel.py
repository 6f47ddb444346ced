"""Where `ulfmrun` hears its ranks: every report, and the end of every connection, in one queue.

The other end is `rank.report`.
"""

import hmac
import json
import secrets
import socket
import socketserver
import threading
from queue import SimpleQueue
from typing import Any, TypeAlias

from ulfm_core.rank.report import LONGEST

__all__ = ["Channel", "Inbox", "Message"]

Message: TypeAlias = dict[str, Any]
Inbox: TypeAlias = SimpleQueue[Message]


class Channel:
    """Puts every message, and the end of every connection, into a queue.

    Args:
        inbox: The queue.
        reachable_from: A host that ranks run on, when not all are here. Without it the channel
            listens on the loopback interface only.
    """

    def __init__(self, inbox: Inbox, reachable_from: str = "") -> None:
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
    inbox: Inbox
    token: bytes


class _Reader(socketserver.StreamRequestHandler):
    server: _Server
    timeout = None

    def handle(self) -> None:
        if not hmac.compare_digest(self.rfile.readline(256).strip(), self.server.token):
            return
        rank = pid = None
        try:
            while line := self.rfile.readline(LONGEST):
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

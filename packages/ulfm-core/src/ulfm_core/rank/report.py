"""How a rank tells `ulfmrun` what becomes of it, since mpirun's exit code does not.

A rank connects to the address that `ulfmrun` gives it (`host:port:token`) and sends JSON objects,
one a line. The connection stays open for as long as the process lives, so that its end is news as
well: `ulfmrun`, whose end is `launch.channel`, sees a rank that died without a word as `gone`.
"""

import json
import os
import socket
import threading
from typing import Any

from ulfm_core import environment

__all__ = ["LONGEST", "report"]

LONGEST = 1 << 16  # bytes in a line
_BOUND = 2.0  # seconds that a rank may lose to a report

_lock = threading.Lock()
_connection: socket.socket | None = None
_owner = 0  # the process that _connection belongs to: a forked child needs its own


def report(kind: str, **fields: Any) -> bool:
    """Tell `ulfmrun` something about this rank. Never raises, and takes two seconds at most.

    Kinds that `ulfmrun` knows: `start`; `joined` (this rank is in a world, in replica `replica` of
    `replica_size` ranks); `exit` (`code`, and `said`, what a refused input was answered with);
    `lost` (`ranks`, world ranks that are out of the job, this one perhaps among them); `progress`
    (`step`). Others are kept for the reader.

    Args:
        kind: What happened.
        fields: More about it, anything that JSON takes.

    Returns:
        Whether it was sent. False without `ulfmrun`, and for good once it did not answer.
    """
    address = environment.channel()
    if address is None:
        return False
    message: dict[str, Any] = {
        "kind": kind,
        "rank": environment.rank() if environment.is_rank() else -1,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        **fields,
    }
    try:
        line = json.dumps(message, default=str).encode() + b"\n"
    except (TypeError, ValueError):
        return False
    if len(line) > LONGEST:
        return False
    try:
        with _lock:
            _send(address, line)
    except (OSError, ValueError):
        environment.forget_channel()
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

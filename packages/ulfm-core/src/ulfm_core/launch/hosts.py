"""The hosts that ranks run on: named, given by Slurm, and asked whether they still answer."""

import contextlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ulfm_core import environment
from ulfm_core.errors import UsageError

__all__ = ["Host", "answering", "is_here", "parse_hosts", "slurm_hosts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A host and how many ranks it takes."""

    name: str
    slots: int


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Return the hosts of a flag such as `a:2,b:2`, in the order given.

    Raises:
        UsageError: It names no hosts, or one twice.
    """
    hosts = []
    for part in text.split(","):
        name, colon, slots = part.strip().partition(":")
        if not name or (colon and not slots.isdecimal()) or slots == "0":
            raise UsageError(f"--hosts {text!r}: {part!r} is not NAME or NAME:RANKS")
        hosts.append(Host(name=name, slots=int(slots or 1)))
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--hosts {text!r}: {name} is there twice; add its ranks up")
    return tuple(hosts)


def slurm_hosts() -> tuple[Host, ...]:
    """Return the nodes of the Slurm allocation that this process is in, if it is in one.

    Raises:
        UsageError: Slurm's variables do not fit each other, or its `scontrol` is missing.
    """
    allocation = environment.slurm_nodes()
    if allocation is None:
        return ()
    listed, tasks_per_node = allocation
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        raise UsageError(
            f"{environment.SLURM_JOB_NODELIST} is set but there is no scontrol; name --hosts"
            " instead"
        )
    names = subprocess.run(
        [scontrol, "show", "hostnames", listed],
        capture_output=True, text=True, timeout=30, check=False,
    ).stdout.split()  # fmt: skip
    # Slurm writes tasks per node as 4(x2),3: two nodes with 4 tasks, one with 3.
    counts = [
        int(tasks)
        for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node)
        for _ in range(int(times or 1))
    ]
    if not names or len(names) != len(counts):
        raise UsageError(
            f"{environment.SLURM_JOB_NODELIST}={listed} and"
            f" {environment.SLURM_TASKS_PER_NODE}={tasks_per_node} do not match; name --hosts"
            " instead"
        )
    return tuple(Host(name=n, slots=c) for n, c in zip(names, counts, strict=True))


def is_here(host: str) -> bool:
    """Return whether this is a name of this host."""
    own = socket.gethostname()
    return host in {"localhost", "127.0.0.1", own, own.partition(".")[0]}


def answering(hosts: Sequence[Host], rsh: str) -> tuple[Host, ...]:
    """Return the hosts that still run a command within ten seconds."""

    def answers(host: Host) -> bool:
        if is_here(host.name):
            return True
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = [*shlex.split(rsh), host.name, "true"]
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
            )
            if done.returncode == 0:
                return True
        print(f"ulfmrun: {host.name} does not answer; going on without it", file=sys.stderr)
        return False

    if not hosts:
        return ()
    with ThreadPoolExecutor(max_workers=32) as pool:
        answered = pool.map(answers, hosts)
    return tuple(host for host, up in zip(hosts, answered, strict=True) if up)

"""One `mpirun`, watched: who finished, who was lost, who is left over, and what to call it all.

mpirun's own exit code says little: it is 0 although ranks were killed, and mpirun waits for ever
for a rank that is stopped. So the ranks report (see `_channel`), and the verdict counts reports.
Every wait here is bounded, and no process is left on this host when `supervise` returns.
"""

import contextlib
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from ulfm_core._channel import ENVIRONMENT, Channel
from ulfm_core._farewell import BAD_INPUT
from ulfm_core._parent import die_with_parent

__all__ = ["Outcome", "Patience", "supervise"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Message = dict[str, Any]
State = Literal["running", "leaving", "stopped", "lost", "dead"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long, in seconds, `ulfmrun` waits for what may never come.

    Attributes:
        leftover: A rank that is stopped, was declared lost, or does not get out of MPI, once no
            other rank is running.
        straggler: A rank that still runs its program once another has finished.
        condemned: A rank whose replica has lost another one. Its guard ends it within milliseconds,
            unless it is stopped, and then the other replicas wait for it.
        ending: mpirun, after it was asked to end.
    """

    leftover: float = 10.0
    straggler: float = 600.0
    condemned: float = 1.0
    ending: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a job ended.

    Attributes:
        code: The exit code to hand on.
        finished: The ranks that ended their program by themselves, whatever the code.
        lost: The others.
        started: How many ranks had started.
        interrupted: A signal to `ulfmrun` ended the job.
        failure: Why nobody finished, in words; empty if somebody did.
        said: Closing lines for the reader.
    """

    code: int
    finished: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    started: int = 0
    interrupted: bool = False
    failure: str = ""
    said: tuple[str, ...] = ()


def supervise(
    command: Sequence[str],
    *,
    size: int,
    environment: Mapping[str, str],
    remote: str = "",
    patience: Patience | None = None,
) -> Outcome:
    """Run mpirun to its end and say how the job ended. Call from the main thread.

    Args:
        command: The mpirun command line, each rank of which runs `ulfm_core._bootstrap`.
        size: The number of ranks it starts.
        environment: The environment of mpirun; the report channel's variable is added.
        remote: A host other than this one that ranks run on, or "" if there is none.
        patience: How long to wait for what may never come.
    """
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    channel = Channel(inbox, reachable_from=remote)
    try:
        with _signals_into(inbox):
            watch = _Watch(command, size, {**environment, ENVIRONMENT: channel.address}, inbox)
            try:
                return watch.run(patience or Patience())
            finally:
                watch.end_everything()
    finally:
        channel.close()


@dataclass(kw_only=True, slots=True)
class _Rank:
    """What is known of one rank that has started."""

    number: int
    host: str
    pid: int
    since: float  # when it was first seen in its state
    state: State = "running"
    code: int | None = None
    said: str = ""
    replica_size: int = 1
    gone: bool = False
    killed: bool = False

    @property
    def local(self) -> bool:
        return self.host == socket.gethostname()

    def look(self, now: float, *, lost: bool) -> None:
        """Bring the state up to date: from reports, and from /proc if the rank is on this host."""
        letter = _process_state(self.pid) if self.local else "?"
        state: State
        if self.gone or letter in {"", "Z"}:
            state = "dead"
        elif lost:
            state = "lost"
        elif letter in {"T", "t"}:
            state = "stopped"
        else:
            state = "running" if self.code is None else "leaving"
        if state != self.state:
            self.state, self.since = state, now


@dataclass(kw_only=True, slots=True)
class _Roster:
    """All ranks of one job, by what they reported."""

    size: int
    ranks: dict[int, _Rank] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)  # by what ranks say; may name one not heard of yet
    step: Any = None
    joined: bool = False  # some rank was in a world

    def take(self, message: Message) -> None:
        """Note what a rank said."""
        number = message["rank"]
        rank = self.ranks.get(number)
        match message["kind"]:
            case "start":
                self.ranks[number] = _Rank(
                    number=number, host=message["host"], pid=message["pid"], since=time.monotonic()
                )
            case "joined" if rank and rank.pid == message["pid"]:
                rank.replica_size = message.get("replica_size", 1)
                self.joined = True
            case "exit" if rank and rank.pid == message["pid"]:
                rank.code = message["code"]
                rank.said = message.get("said", "")
            case "gone" if rank and rank.pid == message["pid"]:
                rank.gone = True
            case "lost":
                self.lost.update(message.get("ranks", [number]))
            case "progress":
                self.step = message.get("step", self.step)

    def look(self, now: float) -> list[_Rank]:
        """Bring every rank's state up to date and return those that are alive."""
        for rank in self.ranks.values():
            rank.look(now, lost=rank.number in self.lost)
        return [rank for rank in self.ranks.values() if rank.state != "dead"]

    def quiet(self, now: float) -> float:
        """Return for how many seconds no rank has changed its state."""
        return now - max((rank.since for rank in self.ranks.values()), default=now)

    def overdue(self, now: float, living: Sequence[_Rank], patience: Patience) -> list[_Rank]:
        """Return those of the living that nobody waits for any more, except mpirun."""
        ranks = self.ranks.values()
        finished = any(rank.code is not None for rank in ranks)
        limit = math.inf
        if any(rank.state == "running" for rank in living):
            limit = patience.straggler if finished else math.inf
        elif finished or len(living) < len(ranks):
            limit = patience.leftover if len(ranks) == self.size else patience.straggler
        if self.quiet(now) > limit:
            return list(living)
        return [r for r in living if r.state == "lost" and now - r.since > patience.leftover]

    def condemned(self, now: float, living: Sequence[_Rank], patience: Patience) -> list[_Rank]:
        """Return those of the living that are in the world, but whose replica is long lost."""
        broken = {
            rank.number // rank.replica_size
            for rank in self.ranks.values()
            if rank.replica_size > 1 and rank.code != 0
            if rank.state == "dead" and now - rank.since > patience.condemned
        }
        return [
            rank
            for rank in living
            if rank.replica_size > 1 and rank.code is None
            if rank.number // rank.replica_size in broken
        ]

    def verdict(self) -> Outcome:
        """Say how the job ended, once it has."""
        heard = [self.ranks[number] for number in sorted(self.ranks.keys() - self.lost)]
        finishers = [rank for rank in heard if rank.code is not None]
        finished = tuple(rank.number for rank in finishers)
        lost = tuple(number for number in range(self.size) if number not in finished)
        failed = [rank for rank in finishers if rank.code]
        code = next((rank.code for rank in failed if rank.code), 0)
        # Every rank refuses a bad input in the same words; once is enough.
        said = list(dict.fromkeys(rank.said.rstrip() for rank in failed if rank.said))
        failure = ""
        if not finished:
            code = 1
            failure = f"no rank finished: {_names(lost)} lost{self._reached()}"
            said.append(
                f"ulfmrun: {failure}; start again from the newest checkpoint, or have it done by"
                " --max-restarts"
            )
        elif any(rank.code != BAD_INPUT for rank in failed):
            said.append(f"ulfmrun: {_names(r.number for r in failed)} failed, exit code {code}")
        if finished and lost:
            said.append(
                f"ulfmrun: {len(finished)} of {self.size} ranks finished; lost: {_names(lost)}"
            )
        return Outcome(
            code=code,
            finished=finished,
            lost=lost,
            started=len(self.ranks),
            failure=failure,
            said=tuple(said),
        )

    def _reached(self) -> str:
        if self.step is not None:
            return f" after step {self.step}"
        return "" if self.joined else " before any of them was in a world"


class _Watch:
    """One running mpirun and the messages about it."""

    def __init__(
        self,
        command: Sequence[str],
        size: int,
        environment: Mapping[str, str],
        inbox: "queue.SimpleQueue[Message]",
    ) -> None:
        self.roster = _Roster(size=size)
        self.inbox = inbox
        self.mark = f"{ENVIRONMENT}={environment[ENVIRONMENT]}".encode()
        self.signal: int | None = None
        self.asked_to_end: float | None = None
        # Its own session: a Ctrl-C at the terminal is ours to pass on, once. And if we are killed
        # it ends by itself, and its ranks with it.
        self.mpirun = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
        )
        threading.Thread(target=self._wait_for_mpirun, daemon=True).start()

    def run(self, patience: Patience) -> Outcome:
        """Follow the job until mpirun has ended, however that has to be brought about."""
        message: Message = {}
        look_at = 0.0
        while message.get("kind") != "ended":
            message = self._next(0.25)
            if message.get("kind") == "signal":
                self._interrupt(message["number"])
            elif "rank" in message:
                self.roster.take(message)
            now = time.monotonic()
            if now > look_at:  # not for every message of a job that reports a lot
                self._end_leftovers(now, patience)
                look_at = now + 0.2
        self._hear_the_last_words()
        if self.signal is not None:
            said = f"ulfmrun: ended by {signal.Signals(self.signal).name}"
            return Outcome(code=128 + self.signal, interrupted=True, said=(said,))
        if not self.roster.ranks:
            failure = f"no rank started; mpirun ended with exit code {message['code']}"
            said = f"ulfmrun: {failure}"
            return Outcome(code=max(message["code"], 1), failure=failure, said=(said,))
        return self.roster.verdict()

    def end_everything(self) -> None:
        """Leave no process of this job behind on this host."""
        self._kill_mpirun()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.mpirun.wait(timeout=5)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # not ours to read, or gone already
                if self.mark in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    def _wait_for_mpirun(self) -> None:
        self.inbox.put({"kind": "ended", "code": self.mpirun.wait()})

    def _next(self, timeout: float) -> Message:
        with contextlib.suppress(queue.Empty):
            return self.inbox.get(timeout=timeout)
        return {}

    def _hear_the_last_words(self) -> None:
        # What dead ranks had sent may still be on its way; the end of each connection closes it.
        until = time.monotonic() + 1.0
        while time.monotonic() < until and not all(r.gone for r in self.roster.ranks.values()):
            message = self._next(0.05)
            if "rank" in message:
                self.roster.take(message)

    def _interrupt(self, number: int) -> None:
        if self.signal is not None:  # somebody insists
            self._kill_mpirun()
        self.signal = number
        self._ask_to_end()

    def _ask_to_end(self) -> None:
        if self.asked_to_end is None:
            self.asked_to_end = time.monotonic()
            self.mpirun.terminate()

    def _kill_mpirun(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.mpirun.pid, signal.SIGKILL)

    def _end_leftovers(self, now: float, patience: Patience) -> None:
        if self.asked_to_end is not None:
            if now - self.asked_to_end > patience.ending:
                self._kill_mpirun()
            return
        living = self.roster.look(now)
        overdue = self.roster.overdue(now, living, patience)
        out_of_reach = any(rank.killed or not rank.local for rank in overdue)
        for rank in overdue:
            self._kill(rank, _WORDS[rank.state], now - rank.since)
        for rank in self.roster.condemned(now, living, patience):
            self._kill(rank, _CONDEMNED[rank.state == "stopped"], patience.condemned)
        none_left = self.roster.ranks and not living and self.roster.quiet(now) > patience.leftover
        if none_left or (out_of_reach and overdue == living):
            self._ask_to_end()

    def _kill(self, rank: _Rank, what: str, seconds: float) -> None:
        if rank.killed or not rank.local:
            return
        rank.killed = True
        print(
            f"ulfmrun: killed rank {rank.number} (pid {rank.pid} on {rank.host}), which was"
            f" {what}, after {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGKILL)


_WORDS: dict[State, str] = {
    "stopped": "stopped while the others had ended",
    "lost": "declared lost and still there",
    "leaving": "done but did not end",
    "running": "still running although others had finished",
}
_CONDEMNED = ("still there although its replica was lost", "stopped while its replica was lost")


@contextlib.contextmanager
def _signals_into(inbox: "queue.SimpleQueue[Message]") -> Iterator[None]:
    """Turn the signals that end a program into messages."""

    def put(number: int, _frame: FrameType | None) -> None:
        inbox.put({"kind": "signal", "number": number})

    before = {number: signal.signal(number, put) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _process_state(pid: int) -> str:
    """The state letter of a process of this host in /proc, or "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _names(ranks: Iterable[int]) -> str:
    """Return `rank 2`, or `ranks 0, 1 and 3`."""
    *most, last = [str(rank) for rank in ranks]
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"

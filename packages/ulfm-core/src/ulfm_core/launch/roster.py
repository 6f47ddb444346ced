"""The ranks of one job by what they reported, and what their reports make of the job."""

import math
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ulfm_core.codes import BAD_INPUT, FAILED, FINISHED
from ulfm_core.launch.channel import Message

__all__ = ["Patience", "Rank", "Roster", "State", "Verdict"]

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
class Verdict:
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


@dataclass(kw_only=True, slots=True)
class Rank:
    """What is known of one rank that has started."""

    number: int
    host: str
    pid: int
    since: float  # when it was first seen in its state
    state: State = "running"
    code: int | None = None
    said: str = ""
    replica: int | None = None  # of those in one with others
    gone: bool = False
    killed: bool = False

    @property
    def local(self) -> bool:
        """Whether it is on this host."""
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
class Roster:
    """All ranks of one job, by what they reported."""

    size: int
    ranks: dict[int, Rank] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)  # by what ranks say; may name one not heard of yet
    step: Any = None
    joined: bool = False  # some rank was in a world

    def take(self, message: Message) -> None:
        """Note what a rank said."""
        number = message["rank"]
        rank = self.ranks.get(number)
        match message["kind"]:
            case "start":
                self.ranks[number] = Rank(
                    number=number, host=message["host"], pid=message["pid"], since=time.monotonic()
                )
            case "joined" if rank and rank.pid == message["pid"]:
                if message["replica_size"] > 1:
                    rank.replica = message["replica"]
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

    def look(self, now: float) -> list[Rank]:
        """Bring every rank's state up to date and return those that are alive."""
        for rank in self.ranks.values():
            rank.look(now, lost=rank.number in self.lost)
        return [rank for rank in self.ranks.values() if rank.state != "dead"]

    def quiet(self, now: float) -> float:
        """Return for how many seconds no rank has changed its state."""
        return now - max((rank.since for rank in self.ranks.values()), default=now)

    def overdue(self, now: float, living: Sequence[Rank], patience: Patience) -> list[Rank]:
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

    def condemned(self, now: float, living: Sequence[Rank], patience: Patience) -> list[Rank]:
        """Return those of the living that are in the world, but whose replica is long lost."""
        broken = {
            rank.replica
            for rank in self.ranks.values()
            if rank.replica is not None and rank.code != FINISHED
            if rank.state == "dead" and now - rank.since > patience.condemned
        }
        return [
            rank
            for rank in living
            if rank.replica is not None and rank.replica in broken and rank.code is None
        ]

    def verdict(self) -> Verdict:
        """Say how the job ended, once it has."""
        heard = [self.ranks[number] for number in sorted(self.ranks.keys() - self.lost)]
        finishers = [rank for rank in heard if rank.code is not None]
        finished = tuple(rank.number for rank in finishers)
        lost = tuple(number for number in range(self.size) if number not in finished)
        failed = [rank for rank in finishers if rank.code]
        code = next((rank.code for rank in failed if rank.code), FINISHED)
        # Every rank refuses a bad input in the same words; once is enough.
        said = list(dict.fromkeys(rank.said.rstrip() for rank in failed if rank.said))
        failure = ""
        if not finished:
            code = FAILED
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
        return Verdict(
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

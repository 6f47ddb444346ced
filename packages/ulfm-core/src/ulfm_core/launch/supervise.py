"""One `mpirun`, watched: who finished, who was lost, who is left over, and what to call it all.

mpirun's own exit code says little: it is 0 although ranks were killed, and mpirun waits for ever
for a rank that is stopped. So the ranks report (see `rank.report`), and the verdict counts reports.
Every wait here is bounded, and no process is left on this host when `supervise` returns.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from ulfm_core.codes import FAILED, ended_by
from ulfm_core.environment import ULFMRUN_CHANNEL
from ulfm_core.launch.channel import Channel, Inbox, Message
from ulfm_core.launch.roster import Patience, Rank, Roster, State, Verdict
from ulfm_core.rank.process import die_with_parent

__all__ = ["supervise"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def supervise(
    command: Sequence[str],
    *,
    size: int,
    environment: Mapping[str, str],
    remote: str = "",
    patience: Patience | None = None,
) -> Verdict:
    """Run mpirun to its end and say how the job ended. Call from the main thread.

    Args:
        command: The mpirun command line, each rank of which runs `ulfm_core.launch.bootstrap`.
        size: The number of ranks it starts.
        environment: The environment of mpirun; the report channel's variable is added.
        remote: A host other than this one that ranks run on, or "" if there is none.
        patience: How long to wait for what may never come.
    """
    inbox: Inbox = queue.SimpleQueue()
    channel = Channel(inbox, reachable_from=remote)
    try:
        with _signals_into(inbox):
            watch = _Watch(command, size, {**environment, ULFMRUN_CHANNEL: channel.address}, inbox)
            try:
                return watch.run(patience or Patience())
            finally:
                watch.end_everything()
    finally:
        channel.close()


class _Watch:
    """One running mpirun and the messages about it."""

    def __init__(
        self,
        command: Sequence[str],
        size: int,
        environment: Mapping[str, str],
        inbox: Inbox,
    ) -> None:
        self.roster = Roster(size=size)
        self.inbox = inbox
        self.mark = f"{ULFMRUN_CHANNEL}={environment[ULFMRUN_CHANNEL]}".encode()
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

    def run(self, patience: Patience) -> Verdict:
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
            return Verdict(code=ended_by(self.signal), interrupted=True, said=(said,))
        if not self.roster.ranks:
            failure = f"no rank started; mpirun ended with exit code {message['code']}"
            said = f"ulfmrun: {failure}"
            return Verdict(code=max(message["code"], FAILED), failure=failure, said=(said,))
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

    def _kill(self, rank: Rank, what: str, seconds: float) -> None:
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
def _signals_into(inbox: Inbox) -> Iterator[None]:
    """Turn the signals that end a program into messages."""

    def put(number: int, _frame: FrameType | None) -> None:
        inbox.put({"kind": "signal", "number": number})

    before = {number: signal.signal(number, put) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The event log: one JSON object a line, in ``<out>/events/<rank>.jsonl``.

Each rank has a file of its own and appends to it. The log is the evidence that a run kept its
promise, so a rank that is killed must leave whole lines behind:

- one line is one ``os.write`` to an ``O_APPEND`` descriptor, with no buffer in between: what was
  written is in the file, whatever happens to the process next;
- Linux copies a write page by page and lets SIGKILL in between two pages. So a line that would
  straddle a page border starts behind it, after leading blanks, which are legal JSON. A line
  longer than a page (a step with thousands of microbatches) keeps a window of microseconds;
- whoever kills the process from inside takes the log out of use first (`EventLog.last_words`), so
  no other thread can be in the middle of a line.

A tail torn all the same (the machine lost power, or the window above) is cut off when a resumed
run opens the file again: a line that was never whole was never recorded.
"""

import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from grad_txn.errors import LogError
from grad_txn.log.lines import Line, from_json, to_json

__all__ = ["Entry", "EventLog", "event_files", "of_kind", "read_events"]

Kind = TypeVar("Kind", bound=Line)
Kind_co = TypeVar("Kind_co", bound=Line, covariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry(Generic[Kind_co]):
    """A line as it was found in a log.

    Attributes:
        time: When it was written, in seconds since the epoch.
        rank: The rank that wrote it, by the name of the file.
        line: What it says.
    """

    time: float
    rank: int
    line: Kind_co


class EventLog:
    """Appends the lines of one rank to ``<out>/events/<rank>.jsonl``.

    `write` may be called from any thread. It adds the ``time`` and does no formatting beyond JSON:
    keys that are numbers become strings, sets become sorted lists, and numbers JSON has no word for
    become the strings ``"nan"``, ``"inf"`` and ``"-inf"``, which ``float()`` reads back.

    Args:
        out: Directory of the run. It and ``events/`` in it are created when missing.
        rank: Initial world rank of this process, which names the file.
        clock: Source of the ``time`` field, in seconds since the epoch.

    Raises:
        LogError: The directory or the file cannot be created or opened for writing.
    """

    def __init__(
        self, out: str | os.PathLike[str], rank: int, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(out) / "events" / f"{rank}.jsonl"
        self._clock = clock
        self._lock = threading.RLock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
            self._end = _cut_torn_tail(self._descriptor)
        except OSError as error:
            raise _write_error(self.path, error) from error

    def write(self, line: Line) -> None:
        """Append one line: ``event``, ``time``, then its fields in their order.

        Raises:
            LogError: A field has no JSON form, the log is closed, or the file cannot be written.
        """
        with self._lock:
            self._append(line)

    def last_words(self, line: Line) -> None:
        """Append one line, then let no thread write again: the caller kills this process next.

        A later `write` or `close` from another thread blocks until the process ends.
        """
        self._lock.acquire()
        self._append(line)

    def close(self) -> None:
        """Close the file. Nothing is flushed, because nothing is buffered. Safe to repeat."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor; lines may be appended to it in one write each."""
        return self._descriptor

    def _append(self, line: Line) -> None:
        if self._descriptor < 0:
            raise LogError(f"{self.path}: closed; event {line.EVENT!r} came too late")
        record = {"event": line.EVENT, "time": self._clock()} | to_json(line)
        try:
            text = json.dumps(record, allow_nan=False, default=_json_form).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise LogError(
                f"{self.path}: event {line.EVENT!r} has no JSON form: {error}"
            ) from error
        left_in_page = -self._end % mmap.PAGESIZE
        if left_in_page < len(text) <= mmap.PAGESIZE:
            text = b" " * left_in_page + text
        try:
            written = os.write(self._descriptor, text)
            if written < len(text):
                os.ftruncate(self._descriptor, self._end)
        except OSError as error:
            raise _write_error(self.path, error) from error
        if written < len(text):
            raise LogError(
                f"{self.path}: only {written} of {len(text)} bytes of event {line.EVENT!r} fitted; "
                "free some space on that file system"
            )
        self._end += written


def event_files(directory: str | os.PathLike[str]) -> list[Path]:
    """Return the logs of a run in rank order.

    Args:
        directory: Directory of the run, the one that holds ``events/``.

    Raises:
        LogError: There is no such directory, or no ``<rank>.jsonl`` in its ``events/``.
    """
    events = Path(directory) / "events"
    if not events.is_dir():
        raise LogError(f"{directory}: no events/ in it; give the directory passed to --out")
    files = sorted(
        (path for path in events.glob("*.jsonl") if path.stem.isdecimal()),
        key=lambda path: int(path.stem),
    )
    if not files:
        raise LogError(f"{events}: no <rank>.jsonl in it, so nothing was recorded")
    return files


def read_events(directory: str | os.PathLike[str]) -> dict[int, list[Entry[Line]]]:
    """Read the whole log of a run: rank -> its lines in the order in which it wrote them.

    Lines of a kind that is not known here are skipped. Meant for pictures and metrics: the proof of
    a run (`grad_txn.log.verify`) reads the raw lines by itself and trusts nothing in here.

    Args:
        directory: Directory of the run, the one that holds ``events/``.

    Raises:
        LogError: There is no log, or it has a line that is torn, is no event, or lacks a field of
            its kind; names file and line.
    """
    return {int(path.stem): list(_read_file(path)) for path in event_files(directory)}


def of_kind(entries: Iterable[Entry[Line]], kind: type[Kind]) -> list[Entry[Kind]]:
    """Return the entries whose line is of that kind, in their order."""
    return [
        Entry(time=entry.time, rank=entry.rank, line=entry.line)
        for entry in entries
        if isinstance(entry.line, kind)
    ]


def _read_file(path: Path) -> Iterator[Entry[Line]]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path}: cannot be read: {error}") from error
    for number, text in enumerate(content.split("\n"), start=1):
        if not text.strip():
            continue
        try:
            event = json.loads(text)
        except ValueError as error:
            raise LogError(f"{path}:{number}: torn or invalid line: {error}") from error
        if not (
            isinstance(event, dict)
            and isinstance(event.get("event"), str)
            and isinstance(event.get("time"), int | float)
        ):
            raise LogError(f"{path}:{number}: not an event: it needs 'event' and 'time'")
        try:
            line = from_json(event)
        except LogError as error:
            raise LogError(f"{path}:{number}: {error}") from error
        if line is not None:
            yield Entry(time=float(event["time"]), rank=int(path.stem), line=line)


def _cut_torn_tail(descriptor: int) -> int:
    """Cut off what follows the last newline; return the length of the file."""
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        start = max(0, end - mmap.PAGESIZE)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _json_form(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} {value!r}")


def _write_error(path: Path, error: OSError) -> LogError:
    return LogError(
        f"{path}: cannot be written: {error.strerror}; choose an output directory you may write to"
    )

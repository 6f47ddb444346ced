"""The raw reader of `grad_txn.log.verify`: bytes to checked lines, and lines to runs.

It belongs to the judge alone, and shares no code with the writer of the log or with the reader
behind the pictures, not even the types of the lines. Logs are read as streams: what is kept of them
is the few lines that are no steps.
"""

import graphlib
import heapq
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Line", "Run", "UnreadableError", "log_files", "split_into_runs"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log."""

    where: str
    value: dict[str, Any]

    @property
    def event(self) -> str:
        return str(self.value["event"])


class UnreadableError(Exception):
    """The log, or lines of it, cannot be read at all; one argument a problem."""


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float) or value in ("nan", "inf", "-inf")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_ints(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_int, value))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(
        key.isdecimal() and key == str(int(key)) and _is_int(count) for key, count in value.items()
    )


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_ranges(value: object) -> bool:
    return isinstance(value, list) and all(
        _is_ints(one) and len(one) == 2 and 0 <= one[0] <= one[1] for one in value
    )


_ANY = {"event": _is_text, "time": _is_number}
_FIELDS: dict[str, dict[str, Any]] = {
    "start": {
        "run": lambda value: _is_text(value) or _is_int(value),
        **dict.fromkeys(("rank", "replica", "position"), _is_int),
        **dict.fromkeys(("replicas", "living", "replica_size"), _is_int),
        **dict.fromkeys(("grad_accum", "global_batch", "first_step", "cursor", "steps"), _is_int),
        **dict.fromkeys(("policy", "promise"), _is_text),
        "queue": _is_ranges,
    },
    "inject": {"step": _is_int, "at": _is_text, "replica": _is_int, "position": _is_int},
    "failure": {
        **dict.fromkeys(("step", "epoch"), _is_int),
        **dict.fromkeys(("failed", "failed_ranks", "queued"), _is_ints),
        "contributions": _is_counts,
    },
    "step": {
        **dict.fromkeys(("step", "epoch", "replica", "life"), _is_int),
        **dict.fromkeys(("loss_sum", "weight_sum"), _is_number),
        **dict.fromkeys(("plan", "role"), _is_text),
        "ids": _is_ranges,
    },
    "commit": {
        **dict.fromkeys(("step", "epoch", "generation", "total"), _is_int),
        **dict.fromkeys(("living", "extra", "tokens"), _is_int),
        **dict.fromkeys(("loss", "grad_norm", "seconds"), _is_number),
        "boundary": _is_flag,
        "plan": _is_text,
    },
    "exit": {"code": _is_int},
}
_OPTIONAL: dict[str, dict[str, Any]] = {
    "step": {"losses": _is_numbers, "weights": _is_numbers, "stacks": _is_int},
    "commit": {"skipped": _is_flag},
}
_STREAMED = ("step", "commit")
_KEPT = ("start", "inject", "failure", "exit")
_CHUNK = 1 << 16


def log_files(directory: Path) -> dict[int, Path]:
    """Return rank -> its log."""
    if not directory.is_dir():
        raise UnreadableError(f"{directory}: no such directory; give the directory passed to --out")
    events = directory / "events"
    paths = [path for path in events.glob("*.jsonl") if path.stem.isdecimal()]
    if not paths:
        raise UnreadableError(f"{events}: no <rank>.jsonl in it, nothing was recorded")
    return {int(path.stem): path for path in sorted(paths, key=lambda path: int(path.stem))}


def _pieces(path: Path, begin: int, end: float) -> Iterator[tuple[int, bytes]]:
    """Yield the lines from one offset to another, each with that of its end; the torn tail last.

    Holds no descriptor and little memory while others are read.
    """
    rest, offset = b"", begin
    while offset < end:
        with path.open("rb") as file:
            file.seek(offset)
            chunk = file.read(min(_CHUNK, int(min(end - offset, _CHUNK))))
        if not chunk:
            break
        offset += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        at = offset - len(rest) - sum(len(piece) + 1 for piece in whole)
        for piece in whole:
            at += len(piece) + 1
            yield at, piece + b"\n"
    if rest:
        yield offset, rest


def _parsed(piece: bytes, where: str) -> Line:
    """Return a line, checked.

    Raises:
        UnreadableError: It is none.
    """
    try:
        value = json.loads(piece, parse_constant=lambda word: str(float(word)))
    except ValueError as error:
        raise UnreadableError(f"{where}: torn or invalid line: {error}") from None
    problem = _malformed(value)
    if problem:
        raise UnreadableError(f"{where}: {problem}")
    return Line(where, value)


def _malformed(value: object) -> str:
    """Say what is wrong with the form of an event, or nothing."""
    if not isinstance(value, dict):
        return f"not an event but a {type(value).__name__}"
    kind = str(value.get("event"))
    for name, fits in (_ANY | _FIELDS.get(kind, {})).items():
        if name not in value:
            return f"{value.get('event', 'an')} event without {name!r}"
        if not fits(value[name]):
            return f"{value['event']} event with {name} = {str(value[name])[:60]!r}"
    for name, fits in _OPTIONAL.get(kind, {}).items():
        if name in value and not fits(value[name]):
            return f"{kind} event with {name} = {str(value[name])[:60]!r}"
    return ""


@dataclass(kw_only=True, slots=True)
class Span:
    """Where one rank's part of a run lies in its log, and how far it came.

    Attributes:
        path: The log.
        begin: Offset of its first byte.
        number: Number of the line there.
        end: Offset behind it.
        last_step: The last step that the rank has a step line of; -1 for none.
        torn: Where a line is torn at the end, if one is.
        after_kill: The first line behind the one by which the rank killed itself.
    """

    path: Path
    begin: int
    number: int
    end: int
    last_step: int = -1
    torn: str = ""
    after_kill: Line | None = None


@dataclass(kw_only=True, slots=True)
class Run:
    """One start of the job: the few lines of each rank that are no steps, and where those are.

    The first line of each rank is its start line. Steps from `limit` on are replaced by a later
    run.
    """

    name: str
    lines: dict[int, list[Line]] = field(default_factory=dict)
    spans: dict[int, Span] = field(default_factory=dict)
    limit: float = math.inf
    last: int = -1

    @property
    def shape(self) -> dict[str, Any]:
        """The values that all start lines share."""
        return next(iter(self.lines.values()))[0].value

    @property
    def replicas(self) -> set[int]:
        """The replicas at its start, as the start lines name them."""
        return {lines[0].value["replica"] for lines in self.lines.values()}

    def of(self, event: str) -> Iterator[tuple[int, Line]]:
        """Yield all lines of one kind with the rank that wrote them; no steps or commits."""
        for rank, lines in self.lines.items():
            for line in lines:
                if line.event == event:
                    yield rank, line

    def told(self, rank: int, event: str) -> list[Line]:
        """Return the lines of one kind of one rank."""
        return [line for line in self.lines[rank] if line.event == event]

    def replica(self, rank: int) -> int:
        """Return the replica of a rank, by its start line."""
        return int(self.lines[rank][0].value["replica"])

    def position(self, rank: int) -> int:
        """Return the index of a rank inside its replica, by its start line."""
        return int(self.lines[rank][0].value["position"])

    def finished(self, rank: int) -> bool:
        """Whether a rank says that it ended well."""
        return any(line.value["code"] == 0 for line in self.told(rank, "exit"))

    def authority(self) -> int:
        """Return the rank that came furthest: its story of the failures is the run's."""
        killed = self.killed()
        return max(
            self.lines,
            key=lambda rank: (
                self.finished(rank) and self.replica(rank) not in killed,
                self.spans[rank].last_step,
                len(self.told(rank, "failure")),
                -rank,
            ),
        )

    def failures(self) -> list[Line]:
        """Return the story of its failures."""
        return self.told(self.authority(), "failure")

    def kept_failures(self) -> list[Line]:
        """Return those in steps that no later run replaced."""
        return [line for line in self.failures() if line.value["step"] < self.limit]

    def gone(self) -> dict[int, int]:
        """Replica -> the step whose agreement reported it dead."""
        gone: dict[int, int] = {}
        for line in self.failures():
            for replica in line.value["failed"]:
                gone.setdefault(replica, line.value["step"])
        return gone

    def killed(self) -> dict[int, int]:
        """Replica -> step, for the deaths that were injected."""
        return {line.value["replica"]: line.value["step"] for _, line in self.of("inject")}

    def died_last(self) -> set[int]:
        """Replicas that died behind the last commit, which nobody need have noticed."""
        return {replica for replica, step in self.killed().items() if step >= self.last}

    def survivors(self) -> set[int]:
        """Replicas that nobody reported dead and that did not die behind the last commit."""
        return self.replicas - set(self.gone()) - self.died_last()

    def steps(self) -> Iterator[tuple[int, list[tuple[int, Line]]]]:
        """Yield each step that no later run replaced with the lines about it, as rank and line."""
        streams = [self._stream(rank) for rank in self.spans if self.spans[rank].last_step >= 0]
        merged = heapq.merge(*streams, key=lambda one: one[0])
        for step, lines in itertools.groupby(merged, key=lambda one: one[0]):
            if step >= self.limit:
                return
            yield step, [(rank, line) for _, rank, line in lines]

    def _stream(self, rank: int) -> Iterator[tuple[int, int, Line]]:
        span = self.spans[rank]
        for number, (_, piece) in enumerate(
            _pieces(span.path, span.begin, span.end), start=span.number
        ):
            if not piece.endswith(b"\n") or not piece.strip():
                continue
            line = _parsed(piece, f"{span.path}:{number}")
            if line.event in _STREAMED:
                yield line.value["step"], rank, line


def split_into_runs(files: Mapping[int, Path]) -> list[Run]:
    """Return the runs in the order in which they were started.

    Reads every log once, line by line; steps are only counted.
    """
    runs: dict[str, Run] = {}
    orders: list[list[str]] = []
    problems: list[str] = []
    for rank, path in files.items():
        try:
            orders.append(_split_file(rank, path, runs))
        except UnreadableError as error:
            problems += error.args
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
    if problems:
        raise UnreadableError(*problems)
    if not runs:
        raise UnreadableError("no start line in any log, nothing was recorded")
    # Not by their times: a clock may step back. Each file has its runs in their order.
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter(dict.fromkeys(runs, ()))
    for names in orders:
        for before, after in itertools.pairwise(names):
            sorter.add(after, before)
    try:
        ordered = [runs[name] for name in sorter.static_order()]
    except graphlib.CycleError:
        raise UnreadableError("the logs have their runs in different orders") from None
    limit = math.inf
    for run in reversed(ordered):
        run.limit = limit
        limit = min(limit, run.shape["first_step"])
    return ordered


def _split_file(rank: int, path: Path, runs: dict[str, Run]) -> list[str]:
    names: list[str] = []
    run: Run | None = None
    begin, number, killed = 0, 0, False
    for end, piece in _pieces(path, 0, math.inf):
        number += 1
        where = f"{path}:{number}"
        if not piece.endswith(b"\n"):
            if run is None:
                raise UnreadableError(f"{where}: torn line, the file ends in the middle of it")
            run.spans[rank].torn = where
            break
        if not piece.strip():
            begin = end
            continue
        line = _parsed(piece, where)
        if line.event == "start":
            name = str(line.value["run"])
            run = runs.setdefault(name, Run(name=name))
            if rank in run.lines:
                raise UnreadableError(f"{where}: second start line of run {name}")
            run.lines[rank] = []
            run.spans[rank] = Span(path=path, begin=begin, number=number, end=end)
            names.append(name)
            killed = False
        if run is None:
            raise UnreadableError(f"{where}: {line.event} event before any start line")
        span = run.spans[rank]
        span.end = begin = end
        if killed and span.after_kill is None:
            span.after_kill = line
        if line.event in _KEPT:
            run.lines[rank].append(line)
            killed = killed or line.event == "inject"
        elif line.event == "step":
            span.last_step = max(span.last_step, line.value["step"])
            run.last = max(run.last, line.value["step"])
    if number == 0:
        raise UnreadableError(f"{path}: empty, it needs at least a start line")
    return names

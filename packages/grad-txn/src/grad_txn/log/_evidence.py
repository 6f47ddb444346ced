"""The raw reader of `grad_txn.log.verify`: bytes to checked lines, and lines to runs.

It belongs to the judge alone. It shares no code with the writer of the log or with the reader
behind the pictures, not even the types of the lines, and it refuses a log with a single torn line.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Line", "Run", "UnreadableError", "read_logs", "split_into_runs"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log, with the replica numbers that JSON made strings as integers again."""

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


def _is_counts(value: object) -> bool:
    return _is_by_replica(value) and all(map(_is_int, value.values()))  # type: ignore[attr-defined]


def _is_ids(value: object) -> bool:
    return _is_by_replica(value) and all(map(_is_ints, value.values()))  # type: ignore[attr-defined]


def _is_by_replica(value: object) -> bool:
    return isinstance(value, dict) and all(
        key.isdecimal() and key == str(int(key)) for key in value
    )


_ANY = {"event": _is_text, "time": _is_number}
_FIELDS: dict[str, dict[str, Any]] = {
    "start": {
        "run": lambda value: _is_text(value) or _is_int(value),
        **dict.fromkeys(("rank", "replica", "position"), _is_int),
        **dict.fromkeys(("replicas", "living", "replica_size"), _is_int),
        **dict.fromkeys(("grad_accum", "global_batch", "first_step", "steps"), _is_int),
        **dict.fromkeys(("policy", "promise"), _is_text),
    },
    "inject": {"step": _is_int, "at": _is_text, "replica": _is_int, "position": _is_int},
    "failure": {"step": _is_int, "epoch": _is_int, "failed": _is_ints, "failed_ranks": _is_ints},
    "step": {
        **dict.fromkeys(("step", "epoch", "replica", "living", "total"), _is_int),
        **dict.fromkeys(("loss", "grad_norm"), _is_number),
        "contributions": _is_counts,
        "ids": _is_ids,
    },
    "exit": {"code": _is_int},
}


def read_logs(directory: Path) -> dict[int, list[Line]]:
    """Return rank -> lines."""
    if not directory.is_dir():
        raise UnreadableError(f"{directory}: no such directory; give the directory passed to --out")
    events = directory / "events"
    paths = [path for path in events.glob("*.jsonl") if path.stem.isdecimal()]
    if not paths:
        raise UnreadableError(f"{events}: no <rank>.jsonl in it, nothing was recorded")
    problems: list[str] = []
    logs: dict[int, list[Line]] = {}
    for path in sorted(paths, key=lambda path: int(path.stem)):
        try:
            logs[int(path.stem)] = list(_read_file(path, problems))
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
    if problems:
        raise UnreadableError(*problems)
    return logs


def _read_file(path: Path, problems: list[str]) -> Iterator[Line]:
    raw = path.read_bytes()
    if not raw:
        problems.append(f"{path}: empty, it needs at least a start line")
    pieces = raw.split(b"\n")
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            continue
        where = f"{path}:{number}"
        if number == len(pieces):
            problems.append(f"{where}: torn line, the file ends in the middle of it")
            continue
        try:
            value = json.loads(piece, parse_constant=lambda word: str(float(word)))
        except ValueError as error:
            problems.append(f"{where}: torn or invalid line: {error}")
            continue
        problem = _malformed(value)
        if problem:
            problems.append(f"{where}: {problem}")
        else:
            yield Line(where, _with_replica_numbers(value))


def _malformed(value: object) -> str:
    """Say what is wrong with the form of an event, or nothing."""
    if not isinstance(value, dict):
        return f"not an event but a {type(value).__name__}"
    for name, fits in (_ANY | _FIELDS.get(str(value.get("event")), {})).items():
        if name not in value:
            return f"{value.get('event', 'an')} event without {name!r}"
        if not fits(value[name]):
            return f"{value['event']} event with {name} = {str(value[name])[:60]!r}"
    return ""


def _with_replica_numbers(value: dict[str, Any]) -> dict[str, Any]:
    numbered = {
        name: {int(key): entry for key, entry in value[name].items()}
        for name in ("contributions", "ids")
        if value["event"] == "step"
    }
    return value | numbered


@dataclass(kw_only=True, slots=True)
class Run:
    """One start of the job: the lines of each rank, and the first step that is replaced later."""

    name: str
    time: float
    lines: dict[int, list[Line]] = field(default_factory=dict)
    limit: float = math.inf

    @property
    def shape(self) -> dict[str, Any]:
        """The values that all start lines share."""
        return next(iter(self.lines.values()))[0].value

    @property
    def replicas(self) -> set[int]:
        """The replicas at its start, as the start lines name them."""
        return {lines[0].value["replica"] for lines in self.lines.values()}

    def of(self, event: str) -> Iterator[tuple[int, Line]]:
        """Yield all lines of one kind with the rank that wrote them."""
        for rank, lines in self.lines.items():
            for line in lines:
                if line.event == event:
                    yield rank, line

    def replica(self, rank: int) -> int:
        """Return the replica of a rank, by its start line."""
        return int(self.lines[rank][0].value["replica"])

    def position(self, rank: int) -> int:
        """Return the index of a rank inside its replica, by its start line."""
        return int(self.lines[rank][0].value["position"])

    def failures(self) -> list[Line]:
        """Return one line for each epoch, in the order of epochs."""
        by_epoch: dict[int, Line] = {}
        for _, line in self.of("failure"):
            by_epoch.setdefault(line.value["epoch"], line)
        return [by_epoch[epoch] for epoch in sorted(by_epoch)]

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

    def step_lines(self) -> dict[int, list[Line]]:
        """Step -> what the leaders recorded, without the steps that a later run replaced."""
        steps: dict[int, list[Line]] = {}
        for _, line in self.of("step"):
            if line.value["step"] < self.limit:
                steps.setdefault(line.value["step"], []).append(line)
        return dict(sorted(steps.items()))

    def survivors(self) -> set[int]:
        """Replicas that nobody reported dead and that did not die behind the last commit."""
        last = max(self.step_lines(), default=-1)
        died_last = {replica for replica, step in self.killed().items() if step >= last}
        return self.replicas - set(self.gone()) - died_last


def split_into_runs(logs: Mapping[int, list[Line]]) -> list[Run]:
    """Return the runs in the order in which they were started."""
    runs: dict[str, Run] = {}
    for rank, lines in logs.items():
        run: Run | None = None
        for line in lines:
            if line.event == "start":
                name, time = str(line.value["run"]), float(line.value["time"])
                run = runs.setdefault(name, Run(name=name, time=time))
                run.time = min(run.time, time)
                if rank in run.lines:
                    raise UnreadableError(f"{line.where}: second start line of run {name}")
                run.lines[rank] = []
            if run is None:
                raise UnreadableError(f"{line.where}: {line.event} event before any start line")
            run.lines[rank].append(line)
    if not runs:
        raise UnreadableError("no start line in any log, nothing was recorded")
    ordered = sorted(runs.values(), key=lambda run: run.time)
    limit = math.inf
    for run in reversed(ordered):
        run.limit = limit
        limit = min(limit, run.shape["first_step"])
    return ordered

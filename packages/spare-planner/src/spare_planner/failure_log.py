"""A cluster's record of what failed when, read from a file.

Two formats, told apart by their first character:

* CSV with a header. Columns ``unit`` and ``start`` are needed; ``end``, ``kind`` and ``domain`` are
  optional. One row is one fault: of which unit (a server, say), from when, until when (empty if not
  over), of what kind, in which rack or zone the unit stands. Times are numbers (seconds unless told
  otherwise) or ISO 8601, all of one sort.
* JSON: a list of events with ``node_id``, ``event_time`` (a number, days unless told otherwise),
  ``event_type`` (``fault_start`` or ``fault_end``) and, optionally, ``fault_type`` with ``Level``,
  ``Class`` and ``Desc``.
"""

import csv
import io
import itertools
import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from spare_planner.errors import PlannerError

__all__ = ["TIME_UNITS", "FailureLog", "Fault", "LogError", "read_log"]

TIME_UNITS = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86_400.0}
"""Seconds in what numbers of a log may count."""


class LogError(PlannerError, ValueError):
    """A failure log that cannot be read, or does not fit what is asked of it."""


class Fault(NamedTuple):
    """One fault of one unit.

    Attributes:
        unit: Which unit, as an index from 0.
        start: When it failed, in seconds since the log begins.
        end: When it was repaired; infinity if the log does not tell.
        kind: What failed, or "".
    """

    unit: int
    start: float
    end: float
    kind: str

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end - self.start


@dataclass(frozen=True, kw_only=True, eq=False)
class FailureLog:
    """What was observed.

    Attributes:
        name: Name of the file.
        units: How many units were watched, also those that never failed.
        seconds: How long.
        faults: All faults, by start.
        names: Names of the units that failed, by index.
        domains: Rack or zone of the units that failed, by index; empty if the log has none.
        resolution: Smallest step of time that the log tells apart, in seconds.
        excluded: Faults that were left out on demand.
        units_told: The number of units was given, not counted from those that failed.
    """

    name: str
    units: int
    seconds: float
    faults: tuple[Fault, ...]
    names: tuple[str, ...]
    domains: tuple[str, ...]
    resolution: float
    excluded: int
    units_told: bool

    def outages(self) -> list[list[tuple[float, float]]]:
        """Return each unit's times out of service, overlapping faults joined; by unit."""
        joined: list[list[tuple[float, float]]] = [[] for _ in range(self.units)]
        for fault in self.faults:
            mine = joined[fault.unit]
            if mine and fault.start <= mine[-1][1]:
                mine[-1] = (mine[-1][0], max(mine[-1][1], fault.end))
            else:
                mine.append((fault.start, fault.end))
        return joined


class _Row(NamedTuple):
    unit: str
    start: float
    end: float
    kind: str
    domain: str


def read_log(
    path: Path,
    *,
    units: int | None = None,
    time_unit: str | None = None,
    begin: float | None = None,
    end: float | None = None,
    exclude: Sequence[str] = (),
) -> FailureLog:
    """Read a failure log.

    Args:
        path: The file.
        units: How many units were watched. If None, only those that failed are known of.
        time_unit: What numbers count, one of `TIME_UNITS`; None for seconds in CSV, days in JSON.
        begin: When watching began, in the log's time; None for 0 in a log of numbers that starts
            after it, and for the first fault in one of dates.
        end: When it ended; None for the last thing that the log tells.
        exclude: Faults whose kind contains one of these, in any case of letters, do not count.

    Raises:
        LogError: The file cannot be read, is damaged, or contradicts the arguments.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise LogError(f"cannot read the log {path}: {reason}") from error
    is_json = text.lstrip().startswith(("[", "{"))
    try:
        scale = TIME_UNITS[time_unit or ("days" if is_json else "seconds")]
    except KeyError:
        raise LogError(
            f"no unit of time is named {time_unit!r}: choose from {', '.join(TIME_UNITS)}"
        ) from None
    dated = False
    if is_json:
        rows = _json_rows(text, path, scale)
    else:
        rows, dated = _csv_rows(text, path, scale)
    words = [word.casefold() for word in exclude]
    kept = [row for row in rows if not any(word in row.kind.casefold() for word in words)]
    if not rows:
        raise LogError(f"the log {path} has no faults in it")
    if not kept:
        raise LogError(f"all {len(rows)} faults of {path} are excluded")
    first = min(row.start for row in rows)
    last = max(row.end if math.isfinite(row.end) else row.start for row in rows)
    since = begin * scale if begin is not None else (first if dated or first < 0 else 0.0)
    until = end * scale if end is not None else last
    if first < since or until < max(row.start for row in rows):
        raise LogError(
            f"the log {path} has faults before it begins or after it ends: it tells of times from"
            f" {first / scale:g} to {last / scale:g}"
        )
    if until <= since:
        raise LogError(f"the log {path} spans no time: give --log-end")
    return _log(path, kept, units, since, until, excluded=len(rows) - len(kept))


def _log(
    path: Path, rows: list[_Row], units: int | None, since: float, until: float, *, excluded: int
) -> FailureLog:
    rows = sorted(rows, key=lambda row: (row.start, row.unit))
    index: dict[str, int] = {}
    domains: list[str] = []
    for row in rows:
        if row.unit not in index:
            index[row.unit] = len(index)
            domains.append(row.domain)
    if units is not None and units < len(index):
        raise LogError(f"{len(index)} different units failed in {path}, which is more than {units}")
    faults = tuple(
        Fault(index[row.unit], row.start - since, row.end - since, row.kind) for row in rows
    )
    return FailureLog(
        name=path.name,
        units=len(index) if units is None else units,
        seconds=until - since,
        faults=faults,
        names=tuple(index),
        domains=tuple(domains) if any(domains) else (),
        resolution=_resolution(time for f in faults for time in (f.start, f.end)),
        excluded=excluded,
        units_told=units is not None,
    )


def _resolution(times: Iterable[float]) -> float:
    """Return the smallest difference between two different times."""
    known = sorted({round(time, 6) for time in times if math.isfinite(time)})
    gaps = [b - a for a, b in itertools.pairwise(known) if b - a > 1e-3]
    return min(gaps, default=1.0)


def _csv_rows(text: str, path: Path, scale: float) -> tuple[list[_Row], bool]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    columns = [name.strip().casefold() for name in reader.fieldnames or []]
    reader.fieldnames = columns
    if missing := [name for name in ("unit", "start") if name not in columns]:
        raise LogError(
            f"the log {path} has no column {' and no column '.join(missing)}: its first line must"
            " name the columns unit, start and, optionally, end, kind, domain"
        )
    rows, sorts = [], set()
    for cells in reader:
        line = reader.line_num
        unit = (cells["unit"] or "").strip()
        if not unit:
            raise LogError(f"line {line} of {path} names no unit")
        start, dated = _time(cells["start"], scale, path, line)
        sorts.add(dated)
        end = math.inf
        if (cells.get("end") or "").strip():
            end, dated = _time(cells["end"], scale, path, line)
            sorts.add(dated)
        if end < start:
            raise LogError(f"line {line} of {path}: a fault ends before it starts")
        kind, domain = ((cells.get(name) or "").strip() for name in ("kind", "domain"))
        rows.append(_Row(unit, start, end, kind, domain))
    if len(sorts) > 1:
        raise LogError(f"the log {path} mixes numbers and dates")
    return rows, True in sorts


def _time(cell: str | None, scale: float, path: Path, line: int) -> tuple[float, bool]:
    """Return a time in seconds, and whether it was a date."""
    text = (cell or "").strip()
    try:
        value = float(text) * scale
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise LogError(
                f"line {line} of {path}: {text!r} is neither a number nor a date such as"
                " 2026-01-31T12:00:00"
            ) from None
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), True
    if not math.isfinite(value):
        raise LogError(f"line {line} of {path}: {text!r} is no time")
    return value, False


def _json_rows(text: str, path: Path, scale: float) -> list[_Row]:
    """Pair the events of each unit: an end closes the oldest open fault of the same type."""
    try:
        events = json.loads(text)
    except ValueError as error:
        raise LogError(f"the log {path} is not JSON: {error}") from error
    if not isinstance(events, list):
        raise LogError(f"the log {path} must be a JSON list of events")
    rows = []
    opened: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)
    parsed = [_event(event, number, path) for number, event in enumerate(events)]
    # Starts come before ends where both have the same time: a fault may be over at once.
    for unit, time, ends, kind in sorted(parsed, key=lambda event: (event[1], event[2])):
        key = (unit, kind)
        if not ends:
            opened[key].append(time * scale)
        elif opened[key]:
            rows.append(_Row(unit, opened[key].popleft(), time * scale, kind, ""))
        else:
            # Broken before watching began: no failure that was seen.
            continue
    for (unit, kind), starts in opened.items():
        rows += [_Row(unit, start, math.inf, kind, "") for start in starts]
    return rows


def _event(event: Any, number: int, path: Path) -> tuple[str, float, bool, str]:
    try:
        unit, when, what = str(event["node_id"]), float(event["event_time"]), event["event_type"]
        fault = event.get("fault_type") or {}
        kind = fault if isinstance(fault, str) else " / ".join(map(str, fault.values()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LogError(
            f"event {number} of {path} must have node_id, event_time (a number), event_type and,"
            " optionally, fault_type"
        ) from error
    if what not in {"fault_start", "fault_end"} or not math.isfinite(when):
        raise LogError(
            f"event {number} of {path}: event_type must be fault_start or fault_end and event_time"
            f" finite, got {what!r} at {when}"
        )
    return unit, when, what == "fault_end", kind

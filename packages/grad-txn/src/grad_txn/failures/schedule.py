"""Failure schedules: who is killed, at which step, and where in the step.

A schedule is a YAML list. Each entry kills one rank once:

.. code-block:: yaml

    - {step: 3, replica: 0, rank: 0, at: during_sync, bucket: 1}
    - {step: 3, replica: 2, rank: 0, at: during_repair}
    - {step: 7, replica: 1, rank: 0, at: forward, microbatch: 2}

``step`` counts from 0, ``rank`` is the victim's position inside its replica (0 when left out),
``at`` is one of `grad_txn.failures.places.At`. The optional ``bucket`` says after how many reduced
buckets, the optional ``microbatch`` after how many microbatches of the step; without them the first
chance is taken.

Three places exist only while another death is being recovered from: ``during_repair``,
``during_restore`` and ``during_extension``. An entry there needs another replica to die first, in
the same step or at the very end of the step before. The repair always comes. Whether there is a
restore or an extension is for the policy to decide; where there is none, that rank lives on.
A death at ``before_commit`` comes after the sums are complete: mostly the step still stands, and
the repair opens the next one.

Nothing is simulated: the victim sends itself SIGKILL (`grad_txn.failures.injector`).

A schedule can also be drawn from a seed, see `grad_txn.failures.drawn`.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grad_txn.errors import ScheduleError
from grad_txn.failures.places import At

__all__ = [
    "Kill",
    "Schedule",
    "Shape",
    "dump_schedule",
    "load_schedule",
    "parse_schedule",
    "place_named",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What a schedule has to fit.

    Attributes:
        replicas: Replicas at the start (W_init).
        replica_size: Ranks in one replica.
        steps: Optimizer steps of the run; a schedule may name 0 to ``steps - 1``.
    """

    replicas: int
    replica_size: int = 1
    steps: int

    def __post_init__(self) -> None:
        for name in ("replicas", "replica_size", "steps"):
            value = getattr(self, name)
            if value < 1:
                raise ScheduleError(f"{name} is {value}; it must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """One entry of a schedule: who dies, and where.

    Attributes:
        step: Optimizer step, from 0.
        replica: Replica of the victim.
        position: Index of the victim inside its replica; the ``rank`` of the YAML entry.
        at: Place in the step.
        bucket: With ``during_sync``: dies once this many buckets, counted from 0, are behind it.
        microbatch: With ``forward`` and ``during_extension``: index of the microbatch in the
            victim's list for the step.
    """

    step: int
    replica: int
    position: int = 0
    at: At
    bucket: int | None = None
    microbatch: int | None = None


Schedule = tuple[Kill, ...]

_REQUIRED = ("step", "replica", "at")
_ATTRIBUTES = {
    "step": "step",
    "replica": "replica",
    "rank": "position",
    "at": "at",
    "bucket": "bucket",
    "microbatch": "microbatch",
}
"""Key of an entry -> attribute of `Kill`."""
_ONLY_AT = {"bucket": (At.DURING_SYNC,), "microbatch": (At.FORWARD, At.DURING_EXTENSION)}


def load_schedule(path: str | os.PathLike[str], shape: Shape) -> Schedule:
    """Read a schedule from a YAML file and check that it fits the job.

    Raises:
        ScheduleError: The file cannot be read, or see `parse_schedule`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ScheduleError(
            f"{path}: cannot be read: {error.strerror}; give the path of a YAML schedule"
        ) from error
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{path}: is not UTF-8 text; give a YAML schedule") from error
    return parse_schedule(text, shape, source=os.fspath(path))


def parse_schedule(text: str, shape: Shape, *, source: str = "schedule") -> Schedule:
    """Parse a YAML schedule and check that it fits the job.

    Args:
        text: YAML, a list of entries.
        shape: Replicas, ranks and steps of the job.
        source: Name for the messages, usually the file.

    Raises:
        ScheduleError: The first mistake, in one line: source, entry (from 1), value, and the fix.
    """
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScheduleError(
            f"{source}: is not valid YAML: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(entries, list):
        found = "empty" if entries is None else f"a {type(entries).__name__}"
        raise ScheduleError(
            f"{source}: is {found}; write a list, one '- {{step: 3, replica: 0, at: forward}}' "
            "a line, or [] for no failures"
        )
    kills: list[Kill] = []
    for number, entry in enumerate(entries, start=1):
        try:
            kills.append(_kill(entry))
        except ScheduleError as error:
            raise ScheduleError(f"{source}: entry {number}: {error}") from None
    _check(kills, shape, source)
    return tuple(kills)


def dump_schedule(schedule: Iterable[Kill]) -> str:
    """Write a schedule as YAML, one entry a line; `parse_schedule` reads it back."""
    lines = [
        "- {" + ", ".join(f"{key}: {value}" for key, value in _entry(kill).items()) + "}\n"
        for kill in schedule
    ]
    return "".join(lines) or "[]\n"


def place_named(name: object) -> At:
    """Return the place of that name.

    Raises:
        ScheduleError: There is none.
    """
    try:
        return At(name)  # type: ignore[arg-type]
    except ValueError:
        raise ScheduleError(f"at is {name!r}; use one of {', '.join(At)}") from None


def _kill(entry: object) -> Kill:
    """Check one entry by itself."""
    if not isinstance(entry, dict):
        raise ScheduleError(
            f"{entry!r} is not a mapping; write {{step: 3, replica: 0, at: forward}}"
        )
    for key in entry:
        if key not in _ATTRIBUTES:
            raise ScheduleError(f"unknown key {key!r}; the keys are {', '.join(_ATTRIBUTES)}")
    for key in _REQUIRED:
        if key not in entry:
            raise ScheduleError(f"{key!r} is missing; an entry needs {', '.join(_REQUIRED)}")
    numbers: dict[str, Any] = {key: value for key, value in entry.items() if key != "at"}
    for key, value in numbers.items():
        if type(value) is not int or value < 0:
            raise ScheduleError(f"{key} is {value!r}; it must be a whole number from 0")
    at = place_named(entry["at"])
    for key, places in _ONLY_AT.items():
        if key in entry and at not in places:
            raise ScheduleError(f"{key} has no meaning at {at}; it goes with {' or '.join(places)}")
    return Kill(at=at, **{_ATTRIBUTES[key]: value for key, value in numbers.items()})


def _check(kills: Sequence[Kill], shape: Shape, source: str) -> None:
    """Check the entries against the job and against each other."""
    entries: dict[tuple[int, int], int] = {}
    for number, kill in enumerate(kills, start=1):
        where = f"{source}: entry {number}"
        limits = {
            "replica": (kill.replica, shape.replicas, "replicas in the job"),
            "rank": (kill.position, shape.replica_size, "ranks in a replica"),
            "step": (kill.step, shape.steps, "steps in the run"),
        }
        for name, (value, limit, unit) in limits.items():
            if value >= limit:
                raise ScheduleError(
                    f"{where}: {name} {value} does not exist, there are {limit} {unit}; "
                    f"use 0 to {limit - 1}"
                )
        victim = (kill.replica, kill.position)
        if victim in entries:
            raise ScheduleError(
                f"{where}: rank {kill.position} of replica {kill.replica} dies in entry "
                f"{entries[victim]} already; remove one of the two"
            )
        entries[victim] = number
        gone = min(other.step for other in kills if other.replica == kill.replica)
        if gone < kill.step:
            raise ScheduleError(
                f"{where}: replica {kill.replica} is gone since step {gone}; "
                "choose a living replica or that step"
            )
        if kill.at.in_recovery and not any(_sets_off(other, kill) for other in kills):
            raise ScheduleError(
                f"{where}: {kill.at} is never reached in step {kill.step}, nothing else fails "
                "there; let another replica die in that step, for instance at during_sync"
            )
    if len({kill.replica for kill in kills}) >= shape.replicas:
        raise ScheduleError(
            f"{source}: all {shape.replicas} replicas die; leave at least one alive"
        )


def _sets_off(first: Kill, second: Kill) -> bool:
    """Whether the first death starts a recovery that the second can happen in."""
    if first.replica == second.replica or first.at.in_recovery:
        return False
    later = second.step - first.step
    # A step that has all sums stands, though a rank dies before its commit: the next one repairs.
    return later == first.at.committed or (first.at is At.BEFORE_COMMIT and later == 1)


def _entry(kill: Kill) -> dict[str, object]:
    values = {key: getattr(kill, attribute) for key, attribute in _ATTRIBUTES.items()}
    return {key: value for key, value in values.items() if value is not None}

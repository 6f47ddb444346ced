"""Failure schedules: who is killed, at which step, and where in the step.

A schedule is a YAML list. Each entry kills one rank once:

.. code-block:: yaml

    - {step: 3, replica: 0, rank: 0, at: during_sync, bucket: 1}
    - {step: 3, replica: 2, rank: 0, at: during_repair}
    - {step: 7, replica: 1, rank: 0, at: forward, microbatch: 2}

``step`` counts from 0, ``rank`` is the position inside the replica (0 when left out), ``at`` is one
of `At`. The optional ``bucket`` says after how many reduced buckets, the optional ``microbatch``
after how many microbatches of the step; without them the first chance is taken.

Three places exist only while another death is being recovered from: ``during_repair``,
``during_restore`` and ``during_extension``. An entry there needs another replica to die first, in
the same step or at the very end of the step before. The repair always comes. Whether there is a
restore or an extension is for the policy to decide; where there is none, that rank lives on.
A death at ``before_commit`` comes after the sums are complete: mostly the step still stands, and
the repair opens the next one.

Nothing is simulated: the victim sends itself SIGKILL (`FailureInjector`).

``python -m grad_txn.schedule --replicas 4 --steps 20 --count 3 --seed 1`` prints a drawn one.
"""

import argparse
import os
import random
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from grad_txn.errors import ScheduleError
from grad_txn.events import EventLog

__all__ = [
    "At",
    "FailureInjector",
    "Kill",
    "Schedule",
    "Shape",
    "dump_schedule",
    "generate",
    "load_schedule",
    "main",
    "parse_schedule",
]


class At(StrEnum):
    """Where in a step a rank dies, in the order a step passes these places."""

    FORWARD = "forward"
    BEFORE_SYNC = "before_sync"
    DURING_SYNC = "during_sync"
    AFTER_SYNC = "after_sync"
    DURING_REPAIR = "during_repair"
    DURING_RESTORE = "during_restore"
    DURING_EXTENSION = "during_extension"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    OPTIMIZER = "optimizer"

    @property
    def in_recovery(self) -> bool:
        """Whether the place exists only while another death is being recovered from."""
        return self in (At.DURING_REPAIR, At.DURING_RESTORE, At.DURING_EXTENSION)

    @property
    def committed(self) -> bool:
        """Whether the step is committed by then, so that the next step sees the death."""
        return self in (At.AFTER_COMMIT, At.OPTIMIZER)


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
    """One entry of a schedule: this rank dies there.

    Attributes:
        step: Optimizer step, from 0.
        replica: Replica of the victim.
        rank: Position of the victim inside its replica.
        at: Place in the step.
        bucket: With ``during_sync``: dies once this many buckets, counted from 0, are behind it.
        microbatch: With ``forward`` and ``during_extension``: index of the microbatch in the
            victim's list for the step.
    """

    step: int
    replica: int
    rank: int = 0
    at: At
    bucket: int | None = None
    microbatch: int | None = None


Schedule = tuple[Kill, ...]

_REQUIRED = ("step", "replica", "at")
_KEYS = ("step", "replica", "rank", "at", "bucket", "microbatch")
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


def generate(
    shape: Shape,
    *,
    seed: int,
    count: int,
    first_step: int = 0,
    last_step: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> Schedule:
    """Draw a schedule: a pure function of its arguments, so every rank may draw its own copy.

    Each death takes another replica. A death drawn at a place inside a recovery brings the death
    it needs along: another replica in the same step, ``during_sync``; both count.

    Args:
        shape: Replicas, ranks and steps of the job.
        seed: Any integer; the same arguments and seed give the same schedule.
        count: Deaths to draw, 0 to ``shape.replicas - 1``: the last replica is never killed.
        first_step: First step that may be hit.
        last_step: Last step that may be hit; the last of the run by default.
        weights: Relative weight of each place; places left out are never drawn. All places
            weigh the same by default.

    Returns:
        ``count`` entries in the order in which they happen.

    Raises:
        ScheduleError: An argument is out of range; names it, its value and the range.
    """
    last_step = shape.steps - 1 if last_step is None else last_step
    if not 0 <= count < shape.replicas:
        raise ScheduleError(
            f"count is {count}; {shape.replicas} replicas can lose 0 to {shape.replicas - 1}, "
            "one has to survive"
        )
    if not 0 <= first_step <= last_step < shape.steps:
        raise ScheduleError(
            f"steps {first_step} to {last_step} are no range inside 0 to {shape.steps - 1}"
        )
    places = _places(weights)
    outside = {at: weight for at, weight in places.items() if not at.in_recovery}
    rng = random.Random(seed)
    living = list(range(shape.replicas))
    kills: list[Kill] = []

    def kill(step: int, at: At) -> None:
        replica = living.pop(int(rng.random() * len(living)))
        rank = int(rng.random() * shape.replica_size)
        kills.append(Kill(step=step, replica=replica, rank=rank, at=at))

    while len(kills) < count:
        step = first_step + int(rng.random() * (last_step - first_step + 1))
        if count - len(kills) >= 2:
            at = _draw(rng, places)
        else:
            at = _draw(rng, outside or {At.DURING_SYNC: 1.0})
        if at.in_recovery:
            kill(step, At.DURING_SYNC)
        kill(step, at)
    order = list(At)
    return tuple(sorted(kills, key=lambda kill: (kill.step, order.index(kill.at), kill.replica)))


class FailureInjector:
    """Kills this process where the schedule says so.

    Args:
        schedule: The whole schedule of the job.
        replica: Replica of this process.
        position: Position of this process inside its replica.
        log: Event log of this process; it gets the ``inject`` line before the end.
    """

    def __init__(
        self, schedule: Iterable[Kill], replica: int, position: int, log: EventLog
    ) -> None:
        self._mine = [k for k in schedule if (k.replica, k.rank) == (replica, position)]
        self._log = log

    def expects(self, at: str, step: int) -> bool:
        """Whether this process is to die at that place of that step."""
        return any(kill.at == at and kill.step == step for kill in self._mine)

    def reached(
        self, at: str, step: int, bucket: int | None = None, microbatch: int | None = None
    ) -> None:
        """Say that this process is at a place; it does not return if it is to die there.

        Args:
            at: The place, a value of `At`.
            step: The optimizer step in progress.
            bucket: At ``during_sync``: the bucket just reduced, from 0.
            microbatch: At ``forward`` and ``during_extension``: index of the microbatch in this
                replica's list for the step, from 0.
        """
        for kill in self._mine:
            if (
                kill.at == at
                and kill.step == step
                and kill.bucket in (None, bucket)
                and kill.microbatch in (None, microbatch)
            ):
                self._die(kill, bucket, microbatch)

    def _die(self, kill: Kill, bucket: int | None, microbatch: int | None) -> None:
        self._log.last_words(
            "inject",
            step=kill.step,
            at=kill.at,
            replica=kill.replica,
            position=kill.rank,
            bucket=bucket,
            microbatch=microbatch,
        )
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a drawn schedule as YAML; exit code 2 and one line for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m grad_txn.schedule", description="Draw a failure schedule as YAML."
    )
    parser.add_argument("--replicas", type=int, required=True, help="replicas of the job")
    parser.add_argument("--replica-size", type=int, default=1, help="ranks a replica (default 1)")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (default 20)")
    parser.add_argument("--count", type=int, required=True, help="deaths to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed (default 0)")
    parser.add_argument("--first-step", type=int, default=0, help="first step hit (default 0)")
    parser.add_argument("--last-step", type=int, help="last step hit (default: the last)")
    parser.add_argument(
        "--at",
        nargs="+",
        metavar="PLACE[=WEIGHT]",
        help="places to draw from (default: all alike): " + ", ".join(At),
    )
    options = parser.parse_args(arguments)
    try:
        shape = Shape(
            replicas=options.replicas, replica_size=options.replica_size, steps=options.steps
        )
        schedule = generate(
            shape,
            seed=options.seed,
            count=options.count,
            first_step=options.first_step,
            last_step=options.last_step,
            weights=None if options.at is None else _weights(options.at),
        )
    except ScheduleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(dump_schedule(schedule), end="")
    return 0


def _kill(entry: object) -> Kill:
    """Check one entry by itself."""
    if not isinstance(entry, dict):
        raise ScheduleError(
            f"{entry!r} is not a mapping; write {{step: 3, replica: 0, at: forward}}"
        )
    for key in entry:
        if key not in _KEYS:
            raise ScheduleError(f"unknown key {key!r}; the keys are {', '.join(_KEYS)}")
    for key in _REQUIRED:
        if key not in entry:
            raise ScheduleError(f"{key!r} is missing; an entry needs {', '.join(_REQUIRED)}")
    numbers: dict[str, Any] = {key: value for key, value in entry.items() if key != "at"}
    for key, value in numbers.items():
        if type(value) is not int or value < 0:
            raise ScheduleError(f"{key} is {value!r}; it must be a whole number from 0")
    at = _place(entry["at"])
    for key, places in _ONLY_AT.items():
        if key in entry and at not in places:
            raise ScheduleError(f"{key} has no meaning at {at}; it goes with {' or '.join(places)}")
    return Kill(at=at, **numbers)


def _check(kills: Sequence[Kill], shape: Shape, source: str) -> None:
    """Check the entries against the job and against each other."""
    entries: dict[tuple[int, int], int] = {}
    for number, kill in enumerate(kills, start=1):
        where = f"{source}: entry {number}"
        limits = {
            "replica": (kill.replica, shape.replicas, "replicas in the job"),
            "rank": (kill.rank, shape.replica_size, "ranks in a replica"),
            "step": (kill.step, shape.steps, "steps in the run"),
        }
        for name, (value, limit, unit) in limits.items():
            if value >= limit:
                raise ScheduleError(
                    f"{where}: {name} {value} does not exist, there are {limit} {unit}; "
                    f"use 0 to {limit - 1}"
                )
        victim = (kill.replica, kill.rank)
        if victim in entries:
            raise ScheduleError(
                f"{where}: rank {kill.rank} of replica {kill.replica} dies in entry "
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
    values = {key: getattr(kill, key) for key in _KEYS}
    return {key: value for key, value in values.items() if value is not None}


def _place(value: object) -> At:
    try:
        return At(value)  # type: ignore[arg-type]
    except ValueError:
        raise ScheduleError(f"at is {value!r}; use one of {', '.join(At)}") from None


def _places(weights: Mapping[str, float] | None) -> dict[At, float]:
    if weights is None:
        return dict.fromkeys(At, 1.0)
    places = {_place(name): float(weight) for name, weight in weights.items()}
    for at, weight in places.items():
        if not 0 <= weight < float("inf"):
            raise ScheduleError(f"the weight of {at} is {weight}; it must be a number from 0")
    places = {at: weight for at, weight in places.items() if weight > 0}
    if not places:
        raise ScheduleError("no place has a weight above 0; give at least one")
    return places


def _weights(words: Iterable[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for word in words:
        name, _, weight = word.partition("=")
        try:
            weights[name] = float(weight or 1)
        except ValueError:
            raise ScheduleError(f"the weight of {name} is {weight!r}; give a number") from None
    return weights


def _draw(rng: random.Random, weights: Mapping[At, float]) -> At:
    """Draw with ``random()`` alone: the one sequence Python promises never to change."""
    left = rng.random() * sum(weights.values())
    for at, weight in weights.items():
        left -= weight
        if left < 0:
            return at
    return at


if __name__ == "__main__":
    sys.exit(main())

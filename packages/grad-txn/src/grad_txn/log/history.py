"""What happened in a run, put together from the event log for pictures and metrics.

Every rank logs what it saw. A `History` has one entry for each committed step, one for each
recovery, and one for each death. A resumed run replaces the steps from its first one on.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from grad_txn.errors import LogError
from grad_txn.events import read_events

__all__ = ["Death", "History", "Recovery", "Step", "read_history"]

Event = Mapping[str, Any]
_Events = Mapping[str, Sequence[Event]]
_KINDS = ("start", "inject", "failure", "repair", "restore", "extend", "step", "exit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One committed step.

    Attributes:
        step: Its number.
        time: When the first replica recorded it, in seconds since the epoch.
        epoch: World epoch it was committed in.
        loss: Mean loss over its microbatches.
        grad_norm: Norm of its gradient.
        total: Microbatches committed.
        replicas: Replicas alive.
        ranks: Ranks alive.
        roles: Replica -> role, of those alive.
        boundary: Whether it crossed a policy boundary.
        seconds: How long it took.
        tokens: Tokens committed.
        stacks: The most stacks that a replica has computed; 0 under a policy without stacks.
    """

    step: int
    time: float
    epoch: int
    loss: float
    grad_norm: float
    total: int
    replicas: int
    ranks: int
    roles: Mapping[int, str]
    boundary: bool
    seconds: float
    tokens: int
    stacks: int = 0

    @property
    def throughput(self) -> float:
        """Effective throughput, in tokens per second and living rank (ReCoVer, section 5)."""
        work = self.seconds * self.ranks
        return self.tokens / work if work > 0 else math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """One replica that was lost.

    Attributes:
        replica: The replica.
        step: Step in which it died, as far as is known.
        at: Place in the step, or ``"outside"`` when no injector did it.
        time: When, in seconds since the epoch; None when it is not known.
        positions: Which of its ranks were killed, as far as is known.
        gone: Seconds from the first rank's death to the last exit of its peers; None when it had
            none, or when it is not known.
    """

    replica: int
    step: int
    at: str
    time: float | None
    positions: tuple[int, ...] = ()
    gone: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """One repair of the world. Durations are medians over the survivors, in seconds.

    Attributes:
        step: Step in which the failure was found.
        epoch: World epoch that the repair made.
        deaths: The replicas that were lost.
        boundary: Whether a policy boundary was crossed.
        mode: How buckets were restored.
        promoted: Dead replica -> spare that took its place.
        extra: Microbatches computed again or in addition, over all survivors.
        detect: From the first sign of the failure to the agreement on it.
        repair: To revoke, shrink and split the communicators.
        record: To exchange the survivors' records.
        restore: To put the gradients back to their state before the reduction.
        rereduce: To reduce again what was restored or extended.
        compute: Forward and backward of the extra microbatches, over those who had any.
        to_commit: From the first SIGKILL to the next commit; None when its time is not known.
        compute_to_commit: The part of `to_commit` that extra microbatches took, those of further
            failures in the same step included.
    """

    step: int
    epoch: int
    deaths: tuple[Death, ...]
    boundary: bool
    mode: str
    promoted: Mapping[int, int]
    extra: int
    detect: float
    repair: float
    record: float
    restore: float
    rereduce: float
    compute: float
    to_commit: float | None
    compute_to_commit: float

    @property
    def work(self) -> float:
        """What the recovery itself took, without extra microbatches, in seconds."""
        return self.detect + self.repair + self.record + self.restore + self.rereduce

    @property
    def overhead(self) -> float | None:
        """`to_commit` without the compute of extra microbatches, in seconds."""
        return None if self.to_commit is None else self.to_commit - self.compute_to_commit


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """A whole run, resumptions included.

    Attributes:
        start: The start event of the last run's lowest rank.
        replicas: Most replicas any of the runs had.
        resumed: First steps of the runs after the first.
        steps: Committed steps in order.
        recoveries: Recoveries in order, without those in steps that a later run replaced.
        deaths: Lost replicas in order, likewise.
    """

    start: Event
    replicas: int
    resumed: tuple[int, ...]
    steps: tuple[Step, ...]
    recoveries: tuple[Recovery, ...]
    deaths: tuple[Death, ...]

    @property
    def global_batch(self) -> int:
        """B, in microbatches."""
        return int(self.start["global_batch"])

    def differences(self, reference: "History") -> dict[int, float]:
        """Step -> relative difference of its loss from that of the same step of another run.

        Steps that only one of them has are left out, and those without a finite loss.
        """
        theirs = {step.step: step.loss for step in reference.steps if step.loss}
        found = {
            step.step: abs(step.loss - theirs[step.step]) / abs(theirs[step.step])
            for step in self.steps
            if step.step in theirs
        }
        return {step: value for step, value in found.items() if math.isfinite(value)}

    def median_gone(self) -> float | None:
        """Median over the deaths from a rank's death to the exit of its last peer, in seconds."""
        return _median(death.gone for death in self.deaths)

    def median_to_commit(self) -> float | None:
        """Median over the recoveries from SIGKILL to the next commit, in seconds."""
        return _median(r.to_commit for r in self.recoveries)

    def median_overhead(self) -> float | None:
        """The same without the compute of extra microbatches."""
        return _median(r.overhead for r in self.recoveries)


def read_history(directory: str | os.PathLike[str]) -> History:
    """Put the log of a run together.

    Args:
        directory: Directory of the run, the one that holds ``events/``.

    Raises:
        LogError: No readable log there, or none that a run could have written.
    """
    logs = read_events(directory)
    try:
        return _history(_runs(logs), str(directory))
    except LogError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LogError(
            f"{directory}: an event lacks {error}; python -m grad_txn.verify names the line"
        ) from error


def _runs(logs: Mapping[int, Sequence[Event]]) -> list[_Events]:
    """Split the logs at their start lines: for each run kind -> events, in the order of time."""
    runs: dict[str, list[Event]] = defaultdict(list)
    for rank in sorted(logs):
        name = None
        for event in logs[rank]:
            if event["event"] == "start":
                name = str(event["run"])
            if name is not None:
                runs[name].append({"rank": rank} | dict(event))
    for events in runs.values():
        events.sort(key=lambda event: float(event["time"]))
    ordered = sorted(runs.values(), key=lambda events: float(events[0]["time"]))
    return [
        {kind: [e for e in events if e["event"] == kind] for kind in _KINDS} for events in ordered
    ]


def _history(runs: Sequence[_Events], source: str) -> History:
    if not runs:
        raise LogError(f"{source}: no start line, no run was recorded")
    starts = [events["start"][0] for events in runs]
    steps: list[Step] = []
    recoveries: list[Recovery] = []
    deaths: list[Death] = []
    for number, (start, events) in enumerate(zip(starts, runs, strict=True)):
        limit = min((later["first_step"] for later in starts[number + 1 :]), default=math.inf)
        kept = {
            kind: [event for event in events[kind] if event["step"] < limit]
            for kind in _KINDS
            if kind not in {"start", "exit"}
        }
        steps += _steps(kept, replica_size=start["replica_size"])
        found = _deaths(kept, events["exit"], replica_size=start["replica_size"])
        deaths += found.values()
        recoveries += _recoveries(kept, found)
    if not steps:
        raise LogError(f"{source}: no step line, no step was committed")
    return History(
        start=starts[-1],
        replicas=1 + max(event["replica"] for events in runs for event in events["start"]),
        resumed=tuple(start["first_step"] for start in starts[1:]),
        steps=tuple(steps),
        recoveries=tuple(recoveries),
        deaths=tuple(deaths),
    )


def _steps(events: _Events, *, replica_size: int) -> list[Step]:
    lines: dict[int, list[Event]] = defaultdict(list)
    for event in events["step"]:
        lines[event["step"]].append(event)
    return [
        Step(
            step=step,
            time=lines[step][0]["time"],
            epoch=lines[step][0]["epoch"],
            loss=float(lines[step][0]["loss"]),
            grad_norm=float(lines[step][0]["grad_norm"]),
            total=lines[step][0]["total"],
            replicas=lines[step][0]["replicas"],
            ranks=lines[step][0]["replicas"] * replica_size,
            roles={int(replica): role for replica, role in lines[step][0]["roles"].items()},
            boundary=lines[step][0]["boundary"],
            seconds=median(line["seconds"] for line in lines[step]),
            tokens=lines[step][0]["tokens"],
            stacks=lines[step][0].get("stacks", 0),
        )
        for step in sorted(lines)
    ]


def _deaths(events: _Events, exits: Iterable[Event], *, replica_size: int) -> dict[int, Death]:
    """Replica -> its death, by its own word or else by that of the survivors."""
    deaths: dict[int, Death] = {}
    killed: dict[int, list[Event]] = defaultdict(list)
    for event in events["inject"]:
        killed[event["replica"]].append(event)
    left: dict[int, list[float]] = defaultdict(list)
    for event in exits:
        left[event["rank"] // replica_size].append(float(event["time"]))
    for replica, ends in killed.items():
        first = ends[0]
        peers = [time for time in left[replica] if time >= first["time"]]
        last = max([*peers, *(end["time"] for end in ends[1:])], default=None)
        whole = len(peers) + len(ends) == replica_size
        deaths[replica] = Death(
            replica=replica,
            step=first["step"],
            at=first["at"],
            time=first["time"],
            positions=tuple(sorted(end["position"] for end in ends)),
            gone=None if last is None or not whole else last - first["time"],
        )
    for event in events["failure"]:
        for replica in event["failed"]:
            if replica not in deaths:
                deaths[replica] = Death(
                    replica=replica, step=event["step"], at="outside", time=None
                )
    return deaths


def _recoveries(events: _Events, deaths: Mapping[int, Death]) -> list[Recovery]:
    by_epoch: dict[int, Event] = {}
    for event in events["failure"]:
        by_epoch.setdefault(event["epoch"], event)
    recoveries: list[Recovery] = []
    for epoch, failure in sorted(by_epoch.items()):
        repairs, restores, extends = (
            [event for event in events[kind] if event["epoch"] == epoch]
            for kind in ("repair", "restore", "extend")
        )
        lost = tuple(deaths[replica] for replica in sorted(failure["failed"]))
        killed = min((death.time for death in lost if death.time is not None), default=None)
        later = [event for event in events["step"] if event["step"] >= failure["step"]]
        following = min((event["step"] for event in later), default=None)
        commit = _typical([event for event in later if event["step"] == following], "time")
        computed: dict[int, list[Event]] = defaultdict(list)
        for event in events["extend"]:
            if killed and killed < event["time"] <= commit:
                computed[event["epoch"]].append(event)
        recoveries.append(
            Recovery(
                step=failure["step"],
                epoch=epoch,
                deaths=lost,
                boundary=failure["boundary"],
                mode=failure["restore"],
                promoted={int(dead): spare for dead, spare in failure["promoted"].items()},
                extra=sum(map(len, failure["extra"].values())),
                detect=_typical(repairs, "detect"),
                repair=_typical(repairs, "repair"),
                record=_typical(repairs, "record"),
                restore=_typical(restores, "seconds"),
                rereduce=_typical(restores, "rereduce") + _typical(extends, "rereduce"),
                compute=_typical(_working(extends), "seconds"),
                to_commit=commit - killed if killed and commit else None,
                compute_to_commit=sum(
                    _typical(_working(extends), "seconds") for extends in computed.values()
                ),
            )
        )
    return recoveries


def _working(extends: Iterable[Event]) -> list[Event]:
    """Of those who went through an extended pass, those who had microbatches in it.

    The others wait for them.
    """
    return [event for event in extends if event["microbatches"]]


def _typical(events: Iterable[Event], name: str) -> float:
    return float(median([event[name] for event in events] or [0.0]))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None

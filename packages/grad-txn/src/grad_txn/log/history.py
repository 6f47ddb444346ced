"""What happened in a run, put together from the event log for pictures and metrics.

Every rank logs what it saw. A `History` has one entry for each committed step, one for each
recovery, and one for each death. A resumed run replaces the steps from its first one on.
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from grad_txn.errors import LogError
from grad_txn.log.events import Entry, of_kind, read_events
from grad_txn.log.lines import (
    KINDS,
    CommitLine,
    ExitLine,
    ExtendLine,
    FailureLine,
    InjectLine,
    Line,
    RepairLine,
    RestoreLine,
    StartLine,
    StepLine,
)

__all__ = ["Death", "History", "Recovery", "Step", "read_history"]

Kind = TypeVar("Kind", bound=Line)
Thing = TypeVar("Thing")


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
        living: How many replicas are alive.
        ranks: How many ranks are alive.
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
    living: int
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
    def failed(self) -> tuple[int, ...]:
        """The replicas that were lost."""
        return tuple(death.replica for death in self.deaths)

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
        start: The start line of the last run's lowest rank.
        most_replicas: The most replicas that any of the runs had.
        resumed: First steps of the runs after the first.
        steps: Committed steps in order.
        recoveries: Recoveries in order, without those in steps that a later run replaced.
        deaths: Lost replicas in order, likewise.
    """

    start: StartLine
    most_replicas: int
    resumed: tuple[int, ...]
    steps: tuple[Step, ...]
    recoveries: tuple[Recovery, ...]
    deaths: tuple[Death, ...]

    @property
    def global_batch(self) -> int:
        """B, in microbatches."""
        return self.start.global_batch

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
    runs = _split(read_events(directory))
    if not runs:
        raise LogError(f"{directory}: no start line, no run was recorded")
    steps: list[Step] = []
    recoveries: list[Recovery] = []
    deaths: list[Death] = []
    for number, run in enumerate(runs):
        limit = min((later.start.first_step for later in runs[number + 1 :]), default=math.inf)
        steps += _steps(run, limit)
        found = _deaths(run, limit)
        deaths += found.values()
        recoveries += _recoveries(run, limit, found)
    if not steps:
        raise LogError(f"{directory}: no step line, no step was committed")
    return History(
        start=runs[-1].start,
        most_replicas=1 + max(line.replica for run in runs for line in run.starts.values()),
        resumed=tuple(run.start.first_step for run in runs[1:]),
        steps=tuple(steps),
        recoveries=tuple(recoveries),
        deaths=tuple(deaths),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """One start of the job.

    Attributes:
        starts: Rank -> its start line, which says who it is.
        entries: Kind -> the lines of all ranks in the order of time.
    """

    starts: Mapping[int, StartLine]
    entries: Mapping[type, Sequence[Entry[Any]]]

    @property
    def start(self) -> StartLine:
        """The start line of the lowest rank."""
        return self.starts[min(self.starts)]

    def of(self, kind: type[Kind]) -> Sequence[Entry[Kind]]:
        return self.entries[kind]

    def ranks(self, replica: int) -> int:
        """Return how many ranks that replica has."""
        return sum(start.replica == replica for start in self.starts.values())


def _split(logs: Mapping[int, Sequence[Entry[Line]]]) -> list[_Run]:
    """Split the logs at their start lines; the runs are in the order in which they began."""
    starts: dict[str, dict[int, StartLine]] = defaultdict(dict)
    entries: dict[str, list[Entry[Line]]] = defaultdict(list)
    for rank in sorted(logs):
        name = None
        for entry in logs[rank]:
            if isinstance(entry.line, StartLine):
                name = entry.line.run
                starts[name][rank] = entry.line
            if name is not None:
                entries[name].append(entry)
    for some in entries.values():
        some.sort(key=lambda entry: entry.time)
    ordered = sorted(entries, key=lambda name: entries[name][0].time)
    return [
        _Run(
            starts=starts[name],
            entries={kind: of_kind(entries[name], kind) for kind in KINDS.values()},
        )
        for name in ordered
    ]


def _steps(run: _Run, limit: float) -> list[Step]:
    """Put the steps together; those from `limit` on were replaced by a later run.

    A step without a commit line, whose leader died before it could write one, is left out.
    """
    own: dict[int, list[StepLine]] = defaultdict(list)
    times: dict[int, float] = {}
    for entry in run.of(StepLine):
        own[entry.line.step].append(entry.line)
        times.setdefault(entry.line.step, entry.time)
    commits: dict[int, CommitLine] = {}
    for commit in run.of(CommitLine):
        if commit.line.step < limit:
            commits[commit.line.step] = commit.line  # the last, where one alone knew of another
            times.setdefault(commit.line.step, commit.time)
    return [
        _step(commits[step], own[step], times[step], run.start.replica_size)
        for step in sorted(commits)
    ]


def _step(line: CommitLine, own: Sequence[StepLine], time: float, replica_size: int) -> Step:
    own = [one for one in own if one.plan == line.plan]  # not of one that alone knew of another
    return Step(
        step=line.step,
        time=time,
        epoch=line.epoch,
        loss=line.loss,
        grad_norm=line.grad_norm,
        total=line.total,
        living=line.living,
        ranks=line.living * replica_size,
        roles={one.replica: one.role for one in own},
        boundary=line.boundary,
        seconds=line.seconds,
        tokens=line.tokens,
        stacks=max((one.stacks for one in own), default=0),
    )


def _deaths(run: _Run, limit: float) -> dict[int, Death]:
    """Replica -> its death, by its own word or else by that of the survivors."""
    deaths: dict[int, Death] = {}
    killed: dict[int, list[Entry[InjectLine]]] = defaultdict(list)
    for entry in run.of(InjectLine):
        if entry.line.step < limit:
            killed[entry.line.replica].append(entry)
    left: dict[int, list[float]] = defaultdict(list)
    for end in run.of(ExitLine):
        left[run.starts[end.rank].replica].append(end.time)
    for replica, ends in killed.items():
        first = ends[0]
        peers = [time for time in left[replica] if time >= first.time]
        last = max([*peers, *(entry.time for entry in ends[1:])], default=None)
        whole = len(peers) + len(ends) == run.ranks(replica)
        deaths[replica] = Death(
            replica=replica,
            step=first.line.step,
            at=first.line.at,
            time=first.time,
            positions=tuple(sorted(entry.line.position for entry in ends)),
            gone=None if last is None or not whole else last - first.time,
        )
    for failure in run.of(FailureLine):
        for replica in failure.line.failed:
            if replica not in deaths and failure.line.step < limit:
                deaths[replica] = Death(
                    replica=replica, step=failure.line.step, at="outside", time=None
                )
    return deaths


def _recoveries(run: _Run, limit: float, deaths: Mapping[int, Death]) -> list[Recovery]:
    by_epoch: dict[int, FailureLine] = {}
    for entry in run.of(FailureLine):
        if entry.line.step < limit:
            by_epoch.setdefault(entry.line.epoch, entry.line)
    return [_recovery(run, limit, failure, deaths) for _, failure in sorted(by_epoch.items())]


def _recovery(
    run: _Run, limit: float, failure: FailureLine, deaths: Mapping[int, Death]
) -> Recovery:
    epoch = failure.epoch
    repairs = [entry.line for entry in run.of(RepairLine) if entry.line.epoch == epoch]
    restores = [entry.line for entry in run.of(RestoreLine) if entry.line.epoch == epoch]
    extends = [entry.line for entry in run.of(ExtendLine) if entry.line.epoch == epoch]
    lost = tuple(deaths[replica] for replica in sorted(failure.failed))
    killed = min((death.time for death in lost if death.time is not None), default=None)
    later = [entry for entry in run.of(StepLine) if failure.step <= entry.line.step < limit]
    following = min((entry.line.step for entry in later), default=None)
    commit = _typical(later, lambda entry: entry.time, only=lambda e: e.line.step == following)
    computed: dict[int, list[ExtendLine]] = defaultdict(list)
    for entry in run.of(ExtendLine):
        if killed and killed < entry.time <= commit:
            computed[entry.line.epoch].append(entry.line)
    return Recovery(
        step=failure.step,
        epoch=epoch,
        deaths=lost,
        boundary=failure.boundary,
        mode=failure.restore,
        promoted=failure.promoted,
        extra=sum(map(len, failure.extra_ids.values())),
        detect=_typical(repairs, lambda line: line.detect),
        repair=_typical(repairs, lambda line: line.repair),
        record=_typical(repairs, lambda line: line.record),
        restore=_typical(restores, lambda line: line.seconds),
        rereduce=_typical(restores, lambda line: line.rereduce)
        + _typical(extends, lambda line: line.rereduce),
        compute=_compute(extends),
        to_commit=commit - killed if killed and commit else None,
        compute_to_commit=sum(map(_compute, computed.values())),
    )


def _compute(extends: Iterable[ExtendLine]) -> float:
    """Typical compute of an extended pass, over those who had microbatches in it.

    The others wait for them.
    """
    return _typical(extends, lambda line: line.seconds, only=lambda line: line.microbatches > 0)


def _typical(
    things: Iterable[Thing],
    value: Callable[[Thing], float],
    *,
    only: Callable[[Thing], bool] = lambda _: True,
) -> float:
    """Return the median of a value over the things that count; 0 where there are none."""
    return median([value(thing) for thing in things if only(thing)] or [0.0])


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None

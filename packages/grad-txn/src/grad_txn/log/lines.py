"""The lines of the event log: one frozen value a kind.

Whoever writes a line, shows it or reads it back uses these; only the judge (`grad_txn.log.verify`)
has a reader of its own. A line is logged as one JSON object: ``event``, ``time``, and its fields in
the order in which they stand here. Mappings are keyed by replica; JSON makes the keys strings, and
`from_json` makes them numbers again.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar

from grad_txn.errors import LogError
from grad_txn.log._readers import READERS

__all__ = [
    "KINDS",
    "CheckpointLine",
    "CommitLine",
    "DifferLine",
    "ExitLine",
    "ExtendLine",
    "FailureLine",
    "InjectLine",
    "Line",
    "RepairLine",
    "RestoreLine",
    "StartLine",
    "StepLine",
    "from_json",
    "last_words",
    "to_json",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StartLine:
    """A rank begins to train.

    Attributes:
        run: Name of this start of the job, the same on all its ranks.
        rank: Initial world rank of the writer.
        replica: Its replica.
        position: Its index inside the replica.
        replicas: Replicas that the run was started with, W_init.
        living: Replicas at this start; fewer or more than `replicas` in a job that resumes.
        grad_accum: Microbatches per replica and step at the first start, G_init.
        replica_size: Ranks in a replica.
        global_batch: B, in microbatches.
        policy: Name of the policy.
        promise: What it promises of every step: ``exact``, ``batch`` or ``none``.
        first_step: The first step of this start.
        cursor: First id of the stream that was never given out before it.
        queue: Ids below `cursor` that are not committed yet, as inclusive ranges.
        steps: The last step is ``steps - 1``.
        tokens_per_microbatch: 0 if the program does not say.
        staging: Where the gradient before its reduction is kept.
        host: Name of the host.
        pid: Process id there.
        about: Further fields of the program's own; they are logged beside the others.
    """

    EVENT: ClassVar[str] = "start"
    run: str
    rank: int
    replica: int
    position: int
    replicas: int
    living: int
    grad_accum: int
    replica_size: int
    global_batch: int
    policy: str
    promise: str
    first_step: int
    cursor: int
    queue: Sequence[Sequence[int]]
    steps: int
    tokens_per_microbatch: int
    staging: str
    host: str
    pid: int
    about: Mapping[str, object] = field(default_factory=dict, metadata={"rest": True})

    def __post_init__(self) -> None:
        taken = {"event", "time", *(one.name for one in fields(self))}
        for name in sorted(taken & set(self.about)):
            raise LogError(
                f"about has a field {name!r}, which a start line has already; choose another name"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class InjectLine:
    """The last line of a rank that a failure schedule kills.

    Attributes:
        step: Optimizer step.
        at: The place in it, a `grad_txn.failures.At`.
        replica: Replica of the victim.
        position: Its index inside the replica.
        bucket: The bucket just reduced, where the place has one.
        microbatch: Index of the microbatch in the replica's list, where the place has one.
    """

    EVENT: ClassVar[str] = "inject"
    step: int
    at: str
    replica: int
    position: int
    bucket: int | None
    microbatch: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairLine:
    """The world was repaired. Durations are in seconds.

    Attributes:
        step: Step in progress.
        epoch: World epoch that the repair has made.
        detect: From the first sign of the failure on this rank to the agreement on it.
        repair: Revoke, shrink, fence and split.
        record: Exchange of the survivors' records.
        rounds: 1, or more where ranks died during the repair.
        complete: Whether this rank held complete sums.
    """

    EVENT: ClassVar[str] = "repair"
    step: int
    epoch: int
    detect: float
    repair: float
    record: float
    rounds: int
    complete: bool

    @property
    def seconds(self) -> float:
        """From the first sign of the failure to the table of survivors."""
        return self.detect + self.repair + self.record


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureLine:
    """What the policy has decided, equal on all survivors.

    Attributes:
        step: Step in progress.
        epoch: World epoch from here on.
        failed: Replicas that were lost, sorted.
        failed_ranks: Their ranks, as far as this repair lost them.
        boundary: Whether a policy boundary was crossed.
        restore: How to treat what was reduced: ``skip``, ``blocking`` or ``non_blocking``.
        promoted: Dead replica -> the spare that took its place.
        extra_ids: Replica -> the microbatches it computes on top; only those that have any.
        queued: Ids that a later step will commit.
        contributions: Replica -> microbatches that count from here on.
        recounted: Replica -> ids of its redundant stacks that count from here on.
    """

    EVENT: ClassVar[str] = "failure"
    step: int
    epoch: int
    failed: Sequence[int]
    failed_ranks: Sequence[int]
    boundary: bool
    restore: str
    promoted: Mapping[int, int]
    extra_ids: Mapping[int, Sequence[int]]
    queued: Sequence[int]
    contributions: Mapping[int, int]
    recounted: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoreLine:
    """Buckets were brought back to their state before the reduction.

    Attributes:
        step: Step in progress.
        epoch: World epoch.
        mode: ``blocking`` or ``non_blocking``.
        buckets: How many had been reduced under the old membership.
        seconds: How long this rank took to start or finish that.
        rereduce: Seconds until they were reduced again; 0 before an extended pass.
    """

    EVENT: ClassVar[str] = "restore"
    step: int
    epoch: int
    mode: str
    buckets: int
    seconds: float
    rereduce: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtendLine:
    """An extended pass has been computed and reduced.

    Attributes:
        step: Step in progress.
        epoch: World epoch.
        microbatches: How many this replica computed in it; 0 for one that only waited.
        seconds: Their compute.
        rereduce: Seconds from there until everything was reduced.
    """

    EVENT: ClassVar[str] = "extend"
    step: int
    epoch: int
    microbatches: int
    seconds: float
    rereduce: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLine:
    """What one replica did in a step that is committed; its leading rank writes it.

    Attributes:
        step: Number of the step, from 0.
        epoch: World epoch it was committed in.
        replica: Replica of the writer.
        life: How often the replica's place has been filled before.
        role: ``major``, ``minor``, ``major_spare`` or ``minor_spare``.
        ids: Its microbatches that counted, as inclusive ranges of ids in their order; empty for a
            spare.
        loss_sum: Sum of their losses times their weights, of the whole replica.
        weight_sum: Sum of their weights.
        plan: Digest of the plan, equal on all replicas.
        stacks: Stacks that it has computed; 0 under a policy without stacks.
        losses: The loss of each of `ids`, where the job was told to log them.
        weights: Their weights, likewise, where they are not all 1.
    """

    EVENT: ClassVar[str] = "step"
    step: int
    epoch: int
    replica: int
    life: int
    role: str
    ids: Sequence[Sequence[int]]
    loss_sum: float
    weight_sum: float
    plan: str
    stacks: int = 0
    losses: Sequence[float] = ()
    weights: Sequence[float] = ()

    @property
    def microbatches(self) -> int:
        """How many of its microbatches counted."""
        return sum(last - first + 1 for first, last in self.ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLine:
    """A step is committed; the leading rank of the lowest living replica writes it.

    Attributes:
        step: Number of the step, from 0.
        epoch: World epoch it was committed in.
        generation: How often the world has been replaced before.
        total: Microbatches committed.
        loss: Weighted mean over them, in nats per token for a language model.
        grad_norm: Norm of its gradient, before clipping.
        living: How many replicas are alive.
        boundary: Whether the step crossed a policy boundary.
        extra: Extra accumulation steps it took, G_ext.
        plan: Digest of the plan.
        seconds: Since the commit before it.
        tokens: Tokens committed; 0 if the program does not say how many a microbatch has.
        skipped: Whether the optimizer left the update out, because a 16-bit gradient overflowed.
    """

    EVENT: ClassVar[str] = "commit"
    step: int
    epoch: int
    generation: int
    total: int
    loss: float
    grad_norm: float
    living: int
    boundary: bool
    extra: int
    plan: str
    seconds: float
    tokens: int
    skipped: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferLine:
    """The replicas no longer hold the same parameters and optimizer state.

    Written by the ranks of every position that shows it.

    Attributes:
        step: Step in progress, which does not commit before those that differ have left.
        epoch: World epoch.
        replicas: Those that differ from the majority; all where there is none.
        majority: Whether more than half of the replicas hold the same.
        same_before: The step before which they were last found to be the same; None if never.
    """

    EVENT: ClassVar[str] = "differ"
    step: int
    epoch: int
    replicas: Sequence[int]
    majority: bool
    same_before: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointLine:
    """A checkpoint is complete.

    Attributes:
        step: The step it is the state before.
        path: Where it is.
        seconds: How long it took to write.
    """

    EVENT: ClassVar[str] = "checkpoint"
    step: int
    path: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitLine:
    """A rank ends.

    Attributes:
        code: Its exit code.
        reason: Why, in words.
        step: The last step it committed; None where the writer does not know (its guard).
        parameters: SHA-256 of this rank's parameters, of a rank that has finished; else empty.
    """

    EVENT: ClassVar[str] = "exit"
    code: int
    reason: str
    step: int | None = None
    parameters: str = ""


Line = (
    StartLine
    | InjectLine
    | RepairLine
    | FailureLine
    | RestoreLine
    | ExtendLine
    | StepLine
    | DifferLine
    | CommitLine
    | CheckpointLine
    | ExitLine
)

KINDS: Mapping[str, type[Line]] = {
    kind.EVENT: kind
    for kind in (
        StartLine,
        InjectLine,
        RepairLine,
        FailureLine,
        RestoreLine,
        ExtendLine,
        StepLine,
        DifferLine,
        CommitLine,
        CheckpointLine,
        ExitLine,
    )
}
"""What a line's ``event`` says -> its type."""


def to_json(line: Line) -> dict[str, Any]:
    """Return the fields of a line as they are logged.

    Without ``time``, which the log adds. A field that has a default is left out where it has it.
    """
    values: dict[str, Any] = {"event": line.EVENT}
    for one in fields(line):
        value = getattr(line, one.name)
        if one.metadata.get("rest"):
            values.update((name, _plain(extra)) for name, extra in value.items())
        elif not _is_default(one, value):
            many = one.type == Sequence[float]
            values[one.name] = list(map(_plain, value)) if many else _plain(value)
    return values


def from_json(values: Mapping[str, Any]) -> Line | None:
    """Return the line that a logged object is; None for a kind that is not known here.

    Raises:
        LogError: The object lacks a field of its kind, or one has no fitting value.
    """
    kind = KINDS.get(str(values.get("event")))
    if kind is None:
        return None
    given: dict[str, Any] = {}
    for one in fields(kind):
        if one.metadata.get("rest"):
            known = {"event", "time", *(other.name for other in fields(kind))}
            given[one.name] = {name: value for name, value in values.items() if name not in known}
        elif one.name in values:
            try:
                given[one.name] = READERS[one.type](values[one.name])
            except (TypeError, ValueError):
                found = repr(values[one.name])[:60]
                raise LogError(f"{kind.EVENT} line with {one.name} = {found}") from None
        elif one.default is MISSING and one.default_factory is MISSING:
            raise LogError(f"{kind.EVENT} line without {one.name!r}")
    return kind(**given)


def last_words(code: int) -> str:
    """Return the exit line that a guard writes for a rank that can no longer write its own.

    Args:
        code: The exit code.

    Returns:
        JSON in which the guard fills in ``{time}`` and ``{reason}``, with its line's end.
    """
    line = {"event": ExitLine.EVENT, "time": "{time}"}
    line |= to_json(ExitLine(code=code, reason="{reason}"))
    return json.dumps(line).replace('"{time}"', "{time}") + "\n"


def _is_default(one: Field[Any], value: object) -> bool:
    if one.default_factory is not MISSING:
        return bool(value == one.default_factory())
    return one.default is not MISSING and bool(value == one.default)


def _plain(value: object) -> object:
    """Give a float that JSON has no word for as text, which `float` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

"""What the judge checks of one run: its start lines, failures and exits.

Each check yields its problems, one line each.
"""

import json
from collections.abc import Iterable, Iterator

from grad_txn.log._evidence import Line, Run

__all__ = [
    "PROMISES",
    "check_after_death",
    "check_exits",
    "check_failures",
    "check_starts",
    "listed",
]

PROMISES = ("exact", "batch", "none")
"""What a policy may have promised of step t: precisely the ids tB to (t+1)B - 1; any B ids, none of
them twice; or just that none is committed twice.
"""

_LEFT = 75  # the exit code of a rank that its guard has ended, because a peer of its replica died

_SHARED = (
    "replicas", "living", "replica_size", "grad_accum", "global_batch", "policy", "promise",
    "first_step", "cursor", "queue", "steps",
)  # fmt: skip


def check_starts(run: Run) -> Iterator[str]:
    """The ranks of a run agree on its shape, and all of them are there."""
    shape, first = run.shape, run.lines[min(run.lines)][0]
    for name in ("replicas", "living", "replica_size", "grad_accum", "global_batch"):
        if shape[name] < 1:
            yield f"{first.where}: {name} is {shape[name]}, below 1"
            return
    if shape["promise"] not in PROMISES:
        known = ", ".join(PROMISES)
        yield f"{first.where}: promise is {shape['promise']!r}, the judge knows {known}"
    for rank, lines in run.lines.items():
        start = lines[0]
        for name in _SHARED:
            if start.value[name] != shape[name]:
                yield (
                    f"{start.where}: {name} is {start.value[name]!r}, "
                    f"other ranks started with {shape[name]!r}"
                )
        if start.value["rank"] != rank:
            yield f"{start.where}: rank is {start.value['rank']}, this file belongs to rank {rank}"
    ranks = shape["living"] * shape["replica_size"]
    for rank in sorted(set(range(ranks)) ^ set(run.lines)):
        if rank < ranks:
            yield f"run {run.name}: rank {rank} has no start line, its log is missing"
        else:
            yield f"{run.lines[rank][0].where}: rank {rank} in a world of {ranks} ranks"
    yield from _check_places(run)


def _check_places(run: Run) -> Iterator[str]:
    """Each position of each replica is held by one rank."""
    size, living = run.shape["replica_size"], run.shape["living"]
    holders: dict[tuple[int, int], str] = {}
    for rank, lines in run.lines.items():
        where, replica, position = lines[0].where, run.replica(rank), run.position(rank)
        if replica < 0:
            yield f"{where}: replica is {replica}, below 0"
        if not 0 <= position < size:
            yield f"{where}: position is {position}, a replica has positions 0 to {size - 1}"
        holder = holders.setdefault((replica, position), where)
        if holder != where:
            yield f"{where}: position {position} of replica {replica} is taken by {holder}"
    if len(run.replicas) != living:
        yield f"run {run.name}: {listed(run.replicas)} started, living is {living}"


def check_failures(run: Run) -> Iterator[str]:
    """All tell the same story about every failure, and the story makes sense.

    But for a repair that only ranks learned who died in it: theirs is the last word of each.
    """
    kept, gone, survivors = run.kept_failures(), run.gone(), run.survivors()
    epochs = {line.value["epoch"]: line for line in kept}
    for rank in run.lines:
        told: set[int] = set()
        mine = [line for line in run.told(rank, "failure") if line.value["step"] < run.limit]
        for line in mine:
            epoch = line.value["epoch"]
            if epoch in told:
                yield f"{line.where}: second failure line of epoch {epoch}"
            told.add(epoch)
            problems = (
                list(_differences(epochs[epoch], line))
                if epoch in epochs
                else [f"{line.where}: failure of epoch {epoch}, of which the others know nothing"]
            )
            alone = line is mine[-1] and run.replica(rank) in gone and not run.finished(rank)
            if not (alone and gone[run.replica(rank)] >= line.value["step"]):
                yield from problems
            if run.replica(rank) in line.value["failed"]:
                yield f"{line.where}: replica {run.replica(rank)} reports its own death"
        for epoch in sorted(set(epochs) - told):
            if run.replica(rank) in survivors:
                yield (
                    f"{run.lines[rank][0].where}: rank {rank} survived, "
                    f"but has no failure line of epoch {epoch} ({epochs[epoch].where} has one)"
                )
    yield from _check_story(run, kept)
    for replica, step in run.killed().items():
        if step < min(run.limit - 1, run.last) and replica not in gone:
            yield f"run {run.name}: replica {replica} was killed at step {step}, nobody noticed"


def _check_story(run: Run, failures: Iterable[Line]) -> Iterator[str]:
    """Epochs and steps only grow, and each replica dies once."""
    living = run.replicas
    epoch, step = 0, run.shape["first_step"]
    for line in failures:
        value = line.value
        if value["epoch"] <= epoch:
            yield f"{line.where}: epoch {value['epoch']} does not follow epoch {epoch}"
        if value["step"] < step:
            yield f"{line.where}: epoch {value['epoch']} is at step {value['step']}, before {step}"
        epoch, step = value["epoch"], value["step"]
        failed = set(value["failed"])
        if len(failed) != len(value["failed"]):
            yield f"{line.where}: failed is {value['failed']}, it must name each replica once"
        if not failed <= living:
            yield f"{line.where}: {listed(failed - living)} reported dead, but not alive before"
        living -= failed
        ranks = value["failed_ranks"]
        if {run.replica(rank) if rank in run.lines else None for rank in ranks} != failed:
            yield (f"{line.where}: failed_ranks {ranks} are not ranks of {listed(failed)}")
    if not living:
        yield f"run {run.name}: no replica survived"


def check_after_death(run: Run) -> Iterator[str]:
    """Nobody speaks after its own SIGKILL, which would then have been none."""
    for rank, line in run.of("inject"):
        of = (run.replica(rank), run.position(rank))
        if (line.value["replica"], line.value["position"]) != of:
            yield f"{line.where}: the death of another rank"
    for span in run.spans.values():
        late = span.after_kill
        # But for its guard, which may see a peer's death in that very moment.
        if late is not None and not (late.event == "exit" and late.value["code"] == _LEFT):
            yield f"{late.where}: {late.event} event after the rank killed itself"


def check_exits(run: Run, *, last: int) -> Iterator[str]:
    """Survivors of the last run ended well, and whoever did holds the same parameters.

    Args:
        run: The last one.
        last: The last step that was committed.
    """
    survivors = run.survivors()
    exits: dict[int, list[Line]] = {rank: [] for rank in run.lines}
    for rank, line in run.of("exit"):
        exits[rank].append(line)
    digests: dict[int, Line] = {}
    for rank, lines in exits.items():
        survived = run.replica(rank) in survivors
        if survived and run.spans[rank].torn:
            yield f"{run.spans[rank].torn}: torn line, the file ends in the middle of it"
            continue
        if survived and len(lines) != 1:
            where = run.lines[rank][-1].where
            yield f"{where}: rank {rank} survived, but has {len(lines)} exit lines instead of one"
            continue
        for line in lines:
            # Whoever finishes counts, no matter who called it dead.
            if line.value["code"] == 0:
                yield from _check_end(run, rank, line, last=last, digests=digests)
            elif survived:
                reason = line.value.get("reason")
                yield f"{line.where}: rank {rank} ended with code {line.value['code']}: {reason}"


def _check_end(
    run: Run, rank: int, line: Line, *, last: int, digests: dict[int, Line]
) -> Iterator[str]:
    if line.value.get("step") != last:
        yield f"{line.where}: exit after step {line.value.get('step')}, the log says {last}"
    digest = line.value.get("parameters")
    other = digests.setdefault(run.position(rank), line)
    if not isinstance(digest, str) or not digest:
        yield f"{line.where}: exit without a digest of the parameters"
    elif digest != other.value.get("parameters"):
        yield f"{line.where}: parameters differ from those of {other.where}"


def _differences(one: Line, other: Line) -> Iterator[str]:
    """Fields in which two lines that must be equal but for their time differ, as written."""
    for name in sorted((set(one.value) | set(other.value)) - {"time"}):
        values = [json.dumps(line.value.get(name), sort_keys=True) for line in (one, other)]
        if values[0] != values[1]:
            yield (
                f"{other.where}: {other.event} of step {other.value['step']}: {name} is "
                f"{values[1][:60]}, but {values[0][:60]} in {one.where}"
            )


def listed(replicas: Iterable[int]) -> str:
    numbers = sorted(replicas)
    return f"replica{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers)) or 'none'}"

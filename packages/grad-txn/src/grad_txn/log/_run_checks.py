"""What the judge checks of one run: its start lines, failures, steps and exits.

Each check yields its problems, one line each.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import pairwise

from grad_txn.log._evidence import Line, Run

__all__ = [
    "PROMISES",
    "check_after_death",
    "check_exits",
    "check_failures",
    "check_starts",
    "check_steps",
    "listed",
]

PROMISES = ("exact", "batch", "none")
"""What a policy may have promised of step t: precisely the ids tB to (t+1)B - 1; any B ids, none of
them twice; or just that none is committed twice.
"""

_LEFT = 75  # the exit code of a rank that its guard has ended, because a peer of its replica died

_SHARED = (
    "replicas", "living", "replica_size", "grad_accum", "global_batch", "policy", "promise",
    "first_step", "steps",
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
    """Survivors tell the same story about every failure, and the story makes sense."""
    kept, gone, survivors = run.kept_failures(), run.gone(), run.survivors()
    epochs = {line.value["epoch"]: line for line in kept}
    told: dict[int, set[int]] = {rank: set() for rank in run.lines}
    for rank, line in run.of("failure"):
        epoch = line.value["epoch"]
        if epoch in told[rank]:
            yield f"{line.where}: second failure line of epoch {epoch}"
        told[rank].add(epoch)
        if epoch not in epochs:
            continue
        yield from differences(epochs[epoch], line, ignored=("time",))
        if run.replica(rank) in line.value["failed"]:
            yield f"{line.where}: replica {run.replica(rank)} reports its own death"
    for rank, epochs_told in told.items():
        for epoch in sorted(set(epochs) - epochs_told):
            if run.replica(rank) in survivors:
                yield (
                    f"{run.lines[rank][0].where}: rank {rank} survived, "
                    f"but has no failure line of epoch {epoch} ({epochs[epoch].where} has one)"
                )
    yield from _check_story(run, kept)
    last = max(run.step_lines(), default=0)
    for replica, step in run.killed().items():
        if step < min(run.limit - 1, last) and replica not in gone:
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


def check_steps(run: Run, *, allow_shrinking_batch: bool) -> Iterator[str]:
    """Each step is recorded alike by all who were alive, and holds B microbatches."""
    steps = run.step_lines()
    failures, gone, killed = run.failures(), run.gone(), run.killed()
    everyone = run.replicas
    last = max(steps, default=0)
    promise = run.shape["promise"]
    for step, lines in steps.items():
        dead = {replica for replica, since in gone.items() if since <= step}
        # Dead behind the commit, before the line: the next step reports it, the last step cannot.
        unheard = {replica for replica, since in gone.items() if since == step + 1}
        unheard |= {replica for replica, at in killed.items() if at == step == last}
        epochs = [f.value["epoch"] for f in failures if f.value["step"] <= step]
        authors: dict[int, Line] = {}
        for line in lines:
            author = line.value["replica"]
            if author in authors:
                yield f"{line.where}: step {step} committed twice by replica {author}"
            if author in dead:
                yield f"{line.where}: replica {author} committed step {step} after its death"
            authors[author] = line
            yield from differences(lines[0], line, ignored=("time", "replica", "seconds"))
        if step + 1 < run.limit:
            for replica in sorted(everyone - dead - unheard - set(authors)):
                yield (
                    f"run {run.name}: replica {replica} has no line for step {step}, "
                    "and was not reported dead by then"
                )
        yield from _check_step(
            lines[0],
            batch=run.shape["global_batch"],
            living=everyone - dead,
            epoch=max(epochs, default=0),
            may_shrink=allow_shrinking_batch and promise == "none",
            exact=promise == "exact",
        )
    for rank, line in run.of("step"):
        if line.value["replica"] != run.replica(rank):
            yield f"{line.where}: step line of replica {line.value['replica']} in another's log"


def _check_step(
    line: Line, *, batch: int, living: set[int], epoch: int, may_shrink: bool, exact: bool
) -> Iterator[str]:
    """One step: its numbers agree with each other and with who is alive."""
    value, contributions, ids = line.value, line.value["contributions"], line.value["ids"]
    step = value["step"]
    counts = {
        "total": value["total"],
        "sum of contributions": sum(contributions.values()),
        "number of ids": sum(map(len, ids.values())),
    }
    least = 1 if may_shrink else batch
    if len(set(counts.values())) > 1 or not least <= value["total"] <= batch:
        said = ", ".join(f"{name} {count}" for name, count in counts.items())
        yield f"{line.where}: step {step}: {said}; it has to be {batch}"
    for replica in sorted(set(contributions) | set(ids)):
        claimed, shown = contributions.get(replica, 0), len(ids.get(replica, ()))
        if claimed != shown:
            yield (
                f"{line.where}: step {step}: replica {replica} contributed {claimed} "
                f"but lists {shown} ids"
            )
        if replica not in living:
            yield f"{line.where}: step {step}: {listed([replica])} contributed while dead"
    if value["living"] != len(living):
        yield f"{line.where}: step {step}: living is {value['living']}, {len(living)} were alive"
    if value["epoch"] != epoch:
        yield (
            f"{line.where}: step {step}: epoch is {value['epoch']}, "
            f"the last failure up to it made {epoch}"
        )
    if exact:
        found = {i for some in ids.values() for i in some}
        wrong = sorted(found ^ set(range(step * batch, (step + 1) * batch)))
        if wrong:
            yield (
                f"{line.where}: step {step}: exact has to commit ids {step * batch} to "
                f"{(step + 1) * batch - 1}; id {wrong[0]} is "
                f"{'too many' if wrong[0] in found else 'missing'}"
            )


def check_after_death(run: Run) -> Iterator[str]:
    """Nobody speaks after its own SIGKILL, which would then have been none."""
    for lines in run.lines.values():
        for line, following in pairwise(lines):
            # But for its guard, which may see a peer's death in that very moment.
            ended = following.event == "exit" and following.value["code"] == _LEFT
            if line.event == "inject" and not ended:
                yield f"{following.where}: {following.event} event after the rank killed itself"


def check_exits(run: Run) -> Iterator[str]:
    """Survivors of the last run ended well, and hold the same parameters."""
    # A job that is started again may find that all steps are done.
    last = max(run.step_lines(), default=run.shape["first_step"] - 1)
    survivors = run.survivors()
    exits: dict[int, list[Line]] = {rank: [] for rank in run.lines}
    for rank, line in run.of("exit"):
        exits[rank].append(line)
    digests: dict[int, Line] = {}
    for rank, lines in exits.items():
        if run.replica(rank) not in survivors:
            continue
        if len(lines) != 1:
            where = run.lines[rank][-1].where
            yield f"{where}: rank {rank} survived, but has {len(lines)} exit lines instead of one"
            continue
        line = lines[0]
        if line.value["code"] != 0:
            reason = line.value.get("reason")
            yield f"{line.where}: rank {rank} ended with code {line.value['code']}: {reason}"
        if line.value.get("step") != last:
            yield f"{line.where}: exit after step {line.value.get('step')}, the log says {last}"
        digest = line.value.get("parameters")
        other = digests.setdefault(run.position(rank), line)
        if not isinstance(digest, str) or not digest:
            yield f"{line.where}: exit without a digest of the parameters"
        elif digest != other.value.get("parameters"):
            yield f"{line.where}: parameters differ from those of {other.where}"


def differences(one: Line, other: Line, *, ignored: tuple[str, ...]) -> Iterator[str]:
    """Fields in which two lines that must be equal differ, compared as they were written."""
    for name in sorted((set(one.value) | set(other.value)) - set(ignored)):
        values = [json.dumps(line.value.get(name), sort_keys=True) for line in (one, other)]
        if values[0] != values[1]:
            yield (
                f"{other.where}: {other.event} of step {other.value['step']}: {name} is "
                f"{values[1][:60]}, but {values[0][:60]} in {one.where}"
            )


def listed(replicas: Iterable[int]) -> str:
    numbers = sorted(replicas)
    return f"replica{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers)) or 'none'}"

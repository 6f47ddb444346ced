"""Prove from the raw event lines of a run that it kept its batch.

``python -m grad_txn.verify DIR [--allow-shrinking-batch] [--json]`` exits with 0 only if the lines
in ``DIR/events`` show, without trusting any code that took part in the run, that

1. every step committed exactly ``B = replicas * grad_accum`` microbatches: the agreed
   contributions, the total and the ids all say so;
2. every id was committed once, in one step, by one replica, and none was left behind: ids that a
   death gave back were committed by the next step that saw no death (``exact``: step t committed
   precisely the ids tB to (t+1)B - 1);
3. there is no gap in the steps, and all replicas alive at a step recorded that very step, bit by
   bit: loss, gradient norm, contributions, ids, epoch;
4. whoever is missing was reported dead, by all survivors, in the same words; epochs only grow, and
   a step carries the epoch of the last failure before it;
5. all survivors ended well and with identical parameters, position by position.

A resumed run replaces the steps from its ``first_step`` on of the runs before it in the same log.

This module is the judge of the others. So it shares no code with them, imports only the standard
library, and has a reader of its own (`grad_txn._evidence`).
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from grad_txn._evidence import Line, Run, UnreadableError, read_logs, split_into_runs

__all__ = ["Verdict", "main", "verify"]

SHOWN = 10
"""Problems printed before the rest is only counted."""

_EXACT = ("exact", "stacked")  # policies under which step t commits the ids tB to (t+1)B - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the log shows.

    Attributes:
        problems: One line each; empty if and only if the log proves the invariant.
        runs: Runs in the log: 1, and one more for each resumption.
        policy: Policy of the last run.
        global_batch: B, in microbatches.
        first_step: First committed step.
        steps: Committed steps.
        ids: Committed microbatch ids.
        smallest_total: Microbatches of the smallest step; below B only where that was allowed.
        failures: Failures that the job survived (repairs of the world).
        lost: Replicas lost on the way, by run.
        survivors: Replicas that reached the end.
    """

    problems: tuple[str, ...] = ()
    runs: int = 0
    policy: str = ""
    global_batch: int = 0
    first_step: int = 0
    steps: int = 0
    ids: int = 0
    smallest_total: int = 0
    failures: int = 0
    lost: tuple[tuple[int, ...], ...] = ()
    survivors: tuple[int, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the log proves the invariant."""
        return not self.problems


def verify(directory: str | Path, *, allow_shrinking_batch: bool = False) -> Verdict:
    """Check the event log of a run.

    Args:
        directory: Directory of the run, the one that holds ``events/``.
        allow_shrinking_batch: Accept steps below B from the adaptive policy, which gives up the
            constant batch by design. Everything else is checked all the same.
    """
    try:
        logs = read_logs(Path(directory))
        runs = split_into_runs(logs)
    except UnreadableError as error:
        return Verdict(problems=tuple(error.args))
    problems: list[str] = []
    for run in runs:
        problems += _check_starts(run)
    if problems:
        # Without a shape that all agree on, no other line can be judged.
        return Verdict(problems=tuple(problems), runs=len(runs))
    problems += _check_batch(runs)
    for run in runs:
        problems += _check_failures(run)
        problems += _check_steps(run, allow_shrinking_batch=allow_shrinking_batch)
        problems += _check_after_death(run)
    problems += _check_stream(runs)
    problems += _check_exits(runs[-1])
    committed = dict(_committed(runs))
    totals = [line.value["total"] for line in committed.values()]
    return Verdict(
        problems=tuple(problems),
        runs=len(runs),
        policy=runs[-1].shape["policy"],
        global_batch=runs[-1].shape["global_batch"],
        first_step=min(committed, default=0),
        steps=len(committed),
        ids=sum(len(ids) for line in committed.values() for ids in line.value["ids"].values()),
        smallest_total=min(totals, default=0),
        failures=sum(len(run.kept_failures()) for run in runs),
        lost=tuple(
            tuple(sorted(r for line in run.kept_failures() for r in line.value["failed"]))
            for run in runs
        ),
        survivors=tuple(sorted(runs[-1].survivors())),
    )


# The checks. Each returns its problems, one line each.

_SHARED = (
    "replicas", "grad_accum", "replica_size", "global_batch", "policy", "first_step", "steps",
)  # fmt: skip


def _check_starts(run: Run) -> Iterator[str]:
    """The ranks of a run agree on its shape, and all of them are there."""
    shape = run.shape
    for name in ("replicas", "grad_accum", "replica_size", "global_batch"):
        if shape[name] < 1:
            yield f"{run.lines[min(run.lines)][0].where}: {name} is {shape[name]}, below 1"
            return
    for rank, lines in run.lines.items():
        start = lines[0]
        for name in _SHARED:
            if start.value[name] != shape[name]:
                yield (
                    f"{start.where}: {name} is {start.value[name]!r}, "
                    f"other ranks started with {shape[name]!r}"
                )
        replica, position = divmod(rank, shape["replica_size"])
        found = tuple(start.value[name] for name in ("rank", "replica", "position"))
        if found != (rank, replica, position):
            yield (
                f"{start.where}: rank, replica, position are {found}, "
                f"this file belongs to {(rank, replica, position)}"
            )
    expected = range(len(run.replicas) * shape["replica_size"])
    for rank in sorted(set(expected) ^ set(run.lines)):
        if rank in expected:
            yield f"run {run.name}: rank {rank} has no start line, its log is missing"
        else:
            yield f"{run.lines[rank][0].where}: rank {rank} in a world of {len(expected)} ranks"


def _check_batch(runs: Sequence[Run]) -> Iterator[str]:
    """B is replicas * grad_accum, and the same in every run."""
    for run in runs:
        start = run.lines[min(run.lines)][0]
        product = start.value["replicas"] * start.value["grad_accum"]
        first = runs[0].shape["global_batch"]
        for name, value in (("replicas * grad_accum", product), ("that of the first run", first)):
            if start.value["global_batch"] != value:
                found = start.value["global_batch"]
                yield f"{start.where}: global_batch is {found}, {name} is {value}"


def _check_failures(run: Run) -> Iterator[str]:
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
        yield from _differences(epochs[epoch], line, ignored=("time",))
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
    living = set(run.replicas)
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
            yield f"{line.where}: {_listed(failed - living)} reported dead, but not alive before"
        living -= failed
        if {run.replica(rank) for rank in value["failed_ranks"]} != failed:
            yield (
                f"{line.where}: failed_ranks {value['failed_ranks']} are not ranks of "
                f"{_listed(failed)}"
            )
    if not living:
        yield f"run {run.name}: no replica survived"


def _check_steps(run: Run, *, allow_shrinking_batch: bool) -> Iterator[str]:
    """Each step is recorded alike by all who were alive, and holds B microbatches."""
    steps = run.step_lines()
    failures, gone, killed = run.failures(), run.gone(), run.killed()
    everyone = set(run.replicas)
    last = max(steps, default=0)
    may_shrink = allow_shrinking_batch and run.shape["policy"] == "adaptive"
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
            yield from _differences(lines[0], line, ignored=("time", "replica", "seconds"))
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
            may_shrink=may_shrink,
            exact=run.shape["policy"] if run.shape["policy"] in _EXACT else "",
        )
    for rank, line in run.of("step"):
        if line.value["replica"] != run.replica(rank):
            yield f"{line.where}: step line of replica {line.value['replica']} in another's log"


def _check_step(
    line: Line, *, batch: int, living: set[int], epoch: int, may_shrink: bool, exact: str
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
        claimed, listed = contributions.get(replica, 0), len(ids.get(replica, ()))
        if claimed != listed:
            yield (
                f"{line.where}: step {step}: replica {replica} contributed {claimed} "
                f"but lists {listed} ids"
            )
        if replica not in living:
            yield f"{line.where}: step {step}: {_listed([replica])} contributed while dead"
    if value["replicas"] != len(living):
        yield f"{line.where}: step {step}: {value['replicas']} replicas, {len(living)} were alive"
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
                f"{line.where}: step {step}: {exact} has to commit ids {step * batch} to "
                f"{(step + 1) * batch - 1}; id {wrong[0]} is "
                f"{'too many' if wrong[0] in found else 'missing'}"
            )


def _check_after_death(run: Run) -> Iterator[str]:
    """Nobody speaks after its own SIGKILL, which would then have been none."""
    for lines in run.lines.values():
        for line, following in pairwise(lines):
            # But for its guard, which may see a peer's death in that very moment.
            ended = following.event == "exit" and following.value["code"] == 75
            if line.event == "inject" and not ended:
                yield f"{following.where}: {following.event} event after the rank killed itself"


def _committed(runs: Iterable[Run]) -> Iterator[tuple[int, Line]]:
    """Step -> the line that holds, over all runs."""
    for run in runs:
        for step, lines in run.step_lines().items():
            if step >= run.shape["first_step"]:
                yield step, lines[0]


def _check_stream(runs: Sequence[Run]) -> Iterator[str]:
    """Over all runs: no gap in the steps, no id twice, no id left behind."""
    committed = list(_committed(runs))
    if not committed:
        yield "no step line in any log, no step was committed"
        return
    failed_steps = {line.value["step"] for run in runs for line in run.kept_failures()}
    batch = runs[0].shape["global_batch"]
    owner: dict[int, str] = {}
    expected = runs[0].shape["first_step"]
    missing_from = expected * batch
    highest = missing_from - 1
    for step, line in committed:
        if step != expected:
            yield f"{line.where}: step {step} follows, step {expected} is missing"
        expected = step + 1
        for replica, ids in line.value["ids"].items():
            for i in ids:
                if i < 0:
                    yield f"{line.where}: step {step}: id {i} is below 0"
                if i in owner:
                    yield f"{line.where}: step {step}: id {i} committed before, {owner[i]}"
                owner[i] = f"by replica {replica} in step {step}"
                highest = max(highest, i)
        while missing_from in owner:
            missing_from += 1
        # A batch that shrinks may be smaller than the queue, and then takes several steps over it.
        whole = line.value["total"] == batch
        if whole and step not in failed_steps and missing_from <= highest:
            yield f"{line.where}: step {step}: id {missing_from} was left behind"
            missing_from = highest + 1
    for run in runs:
        for rank, lines in run.lines.items():
            steps = [line.value["step"] for line in lines if line.event == "step"]
            for before, after in pairwise(steps):
                if after != before + 1:
                    yield f"run {run.name}: rank {rank} recorded step {after} after step {before}"


def _check_exits(run: Run) -> Iterator[str]:
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
        other = digests.setdefault(rank % run.shape["replica_size"], line)
        if not isinstance(digest, str) or not digest:
            yield f"{line.where}: exit without a digest of the parameters"
        elif digest != other.value.get("parameters"):
            yield f"{line.where}: parameters differ from those of {other.where}"


def _differences(one: Line, other: Line, *, ignored: tuple[str, ...]) -> Iterator[str]:
    """Fields in which two lines that must be equal differ, compared as they were written."""
    for name in sorted((set(one.value) | set(other.value)) - set(ignored)):
        values = [json.dumps(line.value.get(name), sort_keys=True) for line in (one, other)]
        if values[0] != values[1]:
            yield (
                f"{other.where}: {other.event} of step {other.value['step']}: {name} is "
                f"{values[1][:60]}, but {values[0][:60]} in {one.where}"
            )


def _listed(replicas: Iterable[int]) -> str:
    numbers = sorted(replicas)
    return f"replica{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers)) or 'none'}"


def _summary(verdict: Verdict, *, allow_shrinking_batch: bool) -> str:
    last = verdict.first_step + verdict.steps - 1
    batch = f"exactly {verdict.global_batch} microbatches"
    if verdict.smallest_total < verdict.global_batch:
        batch = f"{verdict.smallest_total} to {verdict.global_batch} microbatches"
    lost = _listed(replica for run in verdict.lost for replica in run)
    failures = f"{verdict.failures} survived, {lost} lost" if verdict.failures else "none"
    lines = [
        f"proved: {verdict.steps} steps ({verdict.first_step} to {last}), each committed {batch}",
        f"  ids        {verdict.ids} committed, each once",
        f"  failures   {failures}",
        f"  survivors  {_listed(verdict.survivors)}, with identical parameters",
    ]
    if verdict.runs > 1:
        lines.append(f"  runs       {verdict.runs}, each resumed from the one before")
    if allow_shrinking_batch:
        lines.append(
            f"  batch      allowed to shrink below {verdict.global_batch}, as the adaptive "
            "policy does"
        )
    return "\n".join(lines)


class _Parser(argparse.ArgumentParser):
    """Exit code 2 would read as a crash of the judge; a wrong call is one more "not proved"."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the proof and return 0, or print what is wrong and return 1."""
    parser = _Parser(
        prog="python -m grad_txn.verify",
        description="Prove from the event log of a run that every step kept its batch.",
    )
    parser.add_argument("directory", metavar="DIR", help="directory of the run (its --out)")
    parser.add_argument(
        "--allow-shrinking-batch",
        action="store_true",
        help="accept steps below B from the adaptive policy",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    options = parser.parse_args(arguments)
    allow = options.allow_shrinking_batch
    verdict = verify(options.directory, allow_shrinking_batch=allow)
    if options.json:
        values = {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}
        print(json.dumps({"holds": verdict.holds} | values))
    elif verdict.holds:
        print(_summary(verdict, allow_shrinking_batch=allow))
    if verdict.holds:
        return 0
    for problem in verdict.problems[:SHOWN]:
        print(f"error: {problem}", file=sys.stderr)
    hidden = len(verdict.problems) - SHOWN
    if hidden > 0:
        print(f"error: and {hidden} more, {len(verdict.problems)} problems", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

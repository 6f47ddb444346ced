"""What the judge checks of the steps of all runs, in their order, as a stream.

It holds what is not committed yet (`Uncommitted`), and of the steps only the one in hand.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grad_txn.log._evidence import Line, Run
from grad_txn.log._ids import Uncommitted, joined, overlap, size, without
from grad_txn.log._run_checks import listed

__all__ = ["Stream", "check_batch"]

_CLOSE = 1e-9
"""Relative difference of two sums of the same doubles, added in another order."""

_ROLES = ("major", "minor", "major_spare", "minor_spare")


def check_batch(runs: Sequence[Run]) -> Iterator[str]:
    """B is replicas * grad_accum, and the same in every run."""
    for run in runs:
        start = run.lines[min(run.lines)][0]
        product = start.value["replicas"] * start.value["grad_accum"]
        first = runs[0].shape["global_batch"]
        for name, value in (("replicas * grad_accum", product), ("that of the first run", first)):
            if start.value["global_batch"] != value:
                found = start.value["global_batch"]
                yield f"{start.where}: global_batch is {found}, {name} is {value}"


@dataclass(kw_only=True, slots=True)
class Stream:
    """The committed steps of all runs so far.

    Attributes:
        allow_shrinking_batch: Accept steps below B from a policy that promises none.
        uncommitted: What is not committed yet.
        first: First step.
        next: The step that has to follow.
        steps: How many were committed.
        ids: How many ids.
        smallest: Ids of the smallest step.
        plan: Digest of the last plan.
        total: Ids of the last step.
    """

    allow_shrinking_batch: bool
    uncommitted: Uncommitted | None = None
    first: int = 0
    next: int = 0
    steps: int = 0
    ids: int = 0
    smallest: int = 0
    plan: str = ""
    total: int = 0

    def check(self, run: Run) -> Iterator[str]:
        """Check the steps of a run; runs come in their order."""
        yield from self._check_begin(run)
        facts = _Facts.of(run)
        seen: dict[int, int] = {}
        for step, lines in run.steps():
            for rank, line in lines:
                if line.event != "step":
                    continue
                if rank in seen and step != seen[rank] + 1:
                    yield (
                        f"run {run.name}: rank {rank} recorded step {step} after step {seen[rank]}"
                    )
                seen[rank] = step
            yield from self._check_step(run, facts, step, lines)

    def _check_begin(self, run: Run) -> Iterator[str]:
        shape, where = run.shape, run.lines[min(run.lines)][0].where
        queue = [(first, last) for first, last in shape["queue"]]
        if queue != joined(queue) or (queue and queue[-1][1] >= shape["cursor"]):
            yield f"{where}: queue is {shape['queue']}, no sorted ranges below {shape['cursor']}"
        if self.uncommitted is None:
            self.first = self.next = shape["first_step"]
            self.uncommitted = Uncommitted(queue, shape["cursor"])
            count = shape["cursor"] - size(queue)
            most = shape["first_step"] * shape["global_batch"]
            if count != most and (shape["promise"] != "none" or not 0 <= count < most):
                yield f"{where}: {count} ids are committed before the first step, not {most}"
            if shape["promise"] == "exact" and queue:
                yield f"{where}: exact leaves no queue, this one is {shape['queue']}"
        elif shape["first_step"] <= self.next and (
            self.uncommitted.holes != queue or self.uncommitted.cursor != shape["cursor"]
        ):
            yield (
                f"{where}: resumes at id {shape['cursor']} with the queue {shape['queue']}, the "
                f"log says {self.uncommitted.cursor} and {self.uncommitted.holes}"
            )

    def _check_step(
        self, run: Run, facts: "_Facts", step: int, lines: Sequence[tuple[int, Line]]
    ) -> Iterator[str]:
        living = {r for r in facts.everyone if facts.gone.get(r, math.inf) > step}
        # Dead behind the commit, before the line: the next step reports it, the last step cannot.
        unheard = {r for r in living if facts.gone.get(r) == step + 1}
        unheard |= {r for r, at in facts.killed.items() if at == step == run.last}
        own: dict[int, Line] = {}
        commits: list[tuple[int, Line]] = []
        for rank, line in lines:
            author = run.replica(rank)
            if line.event == "step" and line.value["replica"] != author:
                yield f"{line.where}: step line of replica {line.value['replica']} in another's log"
            if run.position(rank) != 0:
                yield f"{line.where}: {line.event} line of a rank that leads no replica"
            if author not in living:
                # One may learn alone that a step is committed, and die: the others redo it.
                alone = facts.gone[author] == step and run.spans[rank].last_step <= step
                if not alone or run.finished(rank):
                    yield f"{line.where}: replica {author} committed step {step} after its death"
            elif line.event == "commit":
                commits.append((author, line))
            elif author in own:
                yield f"{line.where}: step {step} committed twice by replica {author}"
            else:
                own[author] = line
        if not own and not commits:
            return  # only the dead have seen it: it is redone
        where = next(iter(own.values())).where if own else commits[0][1].where
        if step != self.next:
            yield f"{where}: step {step} follows, step {self.next} is missing"
        self.next = step + 1
        missing = living - set(own)
        for replica in sorted(missing - unheard):
            if step + 1 < run.limit:
                yield (
                    f"run {run.name}: replica {replica} has no line for step {step}, "
                    "and was not reported dead by then"
                )
        yield from self._check_plan(step, [*own.values(), *(line for _, line in commits)])
        for line in own.values():
            yield from _check_own(line, facts, step)
        yield from _check_commits(commits, own, living, unheard, facts, step, run)
        yield from self._count(run, facts, step, own, where, commits, missing=bool(missing))

    def _check_plan(self, step: int, lines: Sequence[Line]) -> Iterator[str]:
        plan = lines[0].value["plan"]
        for line in lines:
            if line.value["plan"] != plan:
                yield (
                    f"{line.where}: step {step}: plan is {line.value['plan'][:20]!r}, but "
                    f"{plan[:20]!r} in {lines[0].where}"
                )
        if plan == self.plan or len(plan) != 15 or set(plan) - set("0123456789abcdef"):
            yield f"{lines[0].where}: step {step}: plan is {plan[:20]!r}, no digest of its own"
        self.plan = plan

    def _goal(
        self,
        facts: "_Facts",
        step: int,
        commits: Sequence[tuple[int, Line]],
        *,
        batch: int,
        promise: str,
    ) -> int:
        """Return how many ids a step has committed of which a replica's line is missing."""
        if promise != "none":
            return batch
        if commits:
            return int(commits[0][1].value["total"])
        if step in facts.contributions:
            return sum(facts.contributions[step].values())
        return self.total or batch

    def _count(
        self,
        run: Run,
        facts: "_Facts",
        step: int,
        own: Mapping[int, Line],
        where: str,
        commits: Sequence[tuple[int, Line]],
        *,
        missing: bool,
    ) -> Iterator[str]:
        """Commit the ids of a step."""
        assert self.uncommitted is not None
        batch, promise = run.shape["global_batch"], run.shape["promise"]
        given = sorted((f, last) for line in own.values() for f, last in line.value["ids"])
        twice = overlap(given)
        if twice is not None:
            yield f"{where}: step {step}: id {twice} committed twice"
        taken = joined(given)
        foreign = self.uncommitted.foreign(taken)
        if foreign is not None:
            yield f"{where}: step {step}: id {foreign} committed before"
        queued = joined((i, i) for i in facts.queued.get(step, ()))
        goal = self._goal(facts, step, commits, batch=batch, promise=promise)
        if missing and size(taken) < goal:
            # Whose line is missing did what is left: nothing else would have been committed.
            rest = Uncommitted(self.uncommitted.holes, self.uncommitted.cursor)
            rest.commit(taken)
            taken = joined([*taken, *rest.lowest(goal - size(taken), but=queued)])
        total = size(taken)
        may_shrink = self.allow_shrinking_batch and promise == "none"
        if not (1 if may_shrink else batch) <= total <= batch:
            yield f"{where}: step {step}: number of ids {total}; it has to be {batch}"
        later = queued
        if step in facts.queued:
            # A death leaves for later what it gives back, what an earlier one gave back and, behind
            # what the step began with, what spares have computed that did not have to stand in.
            end = max(last for _, last in self.uncommitted.lowest(batch, but=()))
            beyond = (end + 1, max(end + 1, taken[-1][1] if taken else 0))
            later = joined([*queued, *self.uncommitted.holes, beyond])
        self.uncommitted.commit(taken)
        top = max((last for _, last in taken), default=-1)
        below = [(first, min(end, top)) for first, end in self.uncommitted.holes if first <= top]
        left = without(below, later)
        if left:
            yield f"{where}: step {step}: id {left[0][0]} was left behind"
        if promise == "exact" and taken != [(step * batch, (step + 1) * batch - 1)]:
            yield (
                f"{where}: step {step}: exact has to commit ids {step * batch} to "
                f"{(step + 1) * batch - 1}, not {str(taken)[:60]}"
            )
        self.steps += 1
        self.ids += total
        self.total = total
        self.smallest = min(self.smallest, total) if self.steps > 1 else total


@dataclass(kw_only=True, slots=True)
class _Facts:
    """What the lines of a run that are no steps say, once for all steps."""

    everyone: set[int]
    gone: dict[int, int]
    killed: dict[int, int]
    epochs: list[tuple[int, int]]
    queued: dict[int, set[int]] = field(default_factory=dict)
    contributions: dict[int, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> "_Facts":
        failures = run.kept_failures()
        facts = cls(
            everyone=run.replicas,
            gone=run.gone(),
            killed=run.killed(),
            epochs=[(line.value["step"], line.value["epoch"]) for line in failures],
        )
        for line in failures:
            step = line.value["step"]
            facts.queued.setdefault(step, set()).update(line.value["queued"])
            facts.contributions[step] = line.value["contributions"]
        return facts

    def epoch(self, step: int) -> int:
        """World epoch that a step has to be committed in."""
        return max((epoch for at, epoch in self.epochs if at <= step), default=0)


def _check_own(line: Line, facts: _Facts, step: int) -> Iterator[str]:
    """One replica's line agrees with itself and with the failures."""
    value = line.value
    count, at = size([(f, last) for f, last in value["ids"]]), f"{line.where}: step {step}:"
    if value["epoch"] != facts.epoch(step):
        yield f"{at} epoch is {value['epoch']}, the last failure up to it made {facts.epoch(step)}"
    if value["life"] != 0:
        yield f"{at} life is {value['life']}, no replica has returned"
    if value["role"] not in _ROLES:
        yield f"{at} role is {value['role']!r}"
    elif value["role"].endswith("spare") and count:
        yield f"{at} {count} ids of a spare"
    elif not value["role"].endswith("spare") and not count and not value.get("stacks"):
        yield f"{at} a {value['role']} without ids"
    if step in facts.contributions:
        claimed = facts.contributions[step].get(str(value["replica"]), 0)
        if claimed != count:
            yield (
                f"{at} replica {value['replica']} lists {count} ids, after the failure it had to "
                f"contribute {claimed}"
            )
    weight, loss = float(value["weight_sum"]), float(value["loss_sum"])
    weights = [float(one) for one in value.get("weights", [1] * count)]
    losses = value.get("losses")
    if not weight >= 0 or (weight > 0) != (count > 0) or (not count and loss != 0):
        yield f"{at} loss_sum is {loss} and weight_sum {weight}, of {count} microbatches"
    if len(weights) != count or not _same(sum(weights), weight, weight):
        yield f"{at} weight_sum is {weight}, the weights of its {count} microbatches say otherwise"
    if losses is not None:
        terms = [float(a) * b for a, b in zip(losses, weights, strict=False)]
        if len(losses) != count or not _same(sum(terms), loss, sum(map(abs, terms))):
            yield f"{at} loss_sum is {loss}, its losses sum to {sum(terms)}"


def _check_commits(
    commits: Sequence[tuple[int, Line]],
    own: Mapping[int, Line],
    living: set[int],
    unheard: set[int],
    facts: _Facts,
    step: int,
    run: Run,
) -> Iterator[str]:
    """The leader wrote one commit line, which follows from what the replicas did."""
    if not living:
        return
    leader = min(living)
    if not commits and leader not in unheard and step + 1 < run.limit:
        yield f"run {run.name}: replica {leader} led step {step}, but has no commit line of it"
    for author, line in commits:
        value, at = line.value, f"{line.where}: step {step}:"
        if author != leader or line is not commits[0][1]:
            yield f"{at} commit line of replica {author}, replica {leader} led and wrote one"
        for name, known in (
            ("living", len(living)),
            ("epoch", facts.epoch(step)),
            ("generation", 0),
        ):
            if value[name] != known:
                yield f"{at} {name} is {value[name]}, it has to be {known}"
        loss, norm = float(value["loss"]), float(value["grad_norm"])
        fine = norm >= 0 and math.isfinite(norm)
        if not fine and math.isfinite(loss) and not value.get("skipped", False):
            yield f"{at} grad_norm is {norm}, but the loss {loss}"
        if set(own) != living:
            continue  # what the missing line says is not known
        total = sum(size([(f, e) for f, e in one.value["ids"]]) for one in own.values())
        if value["total"] != total:
            yield f"{at} total {value['total']}, number of ids {total}; of {listed(own)}"
        sums = [float(one.value["loss_sum"]) for one in own.values()]
        weight = sum(float(one.value["weight_sum"]) for one in own.values())
        expected = sum(sums) / weight if weight else math.nan
        if not _same(loss, expected, sum(map(abs, sums)) / weight if weight else 0.0):
            yield f"{at} loss is {loss}, the replicas' own make {expected}"
        per = run.shape.get("tokens_per_microbatch", 0)
        if value["tokens"] != total * per:
            yield f"{at} tokens is {value['tokens']}, {total} microbatches of {per} were committed"


def _same(one: float, other: float, scale: float) -> bool:
    """Whether two numbers are the same but for rounding; all that are none are alike."""
    if not math.isfinite(one) or not math.isfinite(other):
        return (math.isnan(one) and math.isnan(other)) or one == other
    return abs(one - other) <= _CLOSE * scale + 1e-300

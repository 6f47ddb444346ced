"""Prove from the raw event lines of a run that it kept its batch.

A run has kept its batch if the lines in ``DIR/events`` show, without trusting any code that took
part in it, that

1. every step committed exactly ``B = replicas * grad_accum`` microbatches: the replicas' own ids
   and the total say so;
2. every id was committed once, in one step, by one replica, and none was left behind but what a
   death in that step gave back; the next step that sees no death has committed those (where the
   policy promised ``exact``: step t committed precisely the ids tB to (t+1)B - 1);
3. there is no gap in the steps, all replicas alive at a step recorded it under the same plan, and
   its loss is the mean of what they themselves computed;
4. whoever is missing was reported dead, by all survivors, in the same words; epochs only grow, and
   a step carries the epoch of the last failure before it;
5. all survivors ended well, and whoever finished holds the same parameters, position by position.

What only the dead have seen proves nothing and harms nothing: a commit or a repair that one rank
learned before it died, or half a line.

A resumed run replaces the steps from its ``first_step`` on of the runs before it in the same log.

What the policy promised stands in the start lines: the judge knows no policy by name. It takes from
them, too, who was there and which rank belongs to which replica, and checks that they agree.

This module is the judge of the others. So it shares no code with them, imports only the standard
library, and has a reader of its own (`grad_txn.log._evidence`).
"""

from dataclasses import dataclass
from pathlib import Path

from grad_txn.log._evidence import UnreadableError, log_files, split_into_runs
from grad_txn.log._run_checks import (
    check_after_death,
    check_exits,
    check_failures,
    check_starts,
)
from grad_txn.log._stream_checks import Stream, check_batch

__all__ = ["Verdict", "verify"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the log shows.

    Attributes:
        problems: One line each; empty if and only if the log proves the invariant.
        runs: Runs in the log: 1, and one more for each resumption.
        policy: Name of the last run's policy.
        promise: What that policy promised of every step: ``exact``, ``batch`` or ``none``.
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
    promise: str = ""
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
        allow_shrinking_batch: Accept steps below B from a policy that promises no batch. Everything
            else is checked all the same.
    """
    try:
        runs = split_into_runs(log_files(Path(directory)))
    except UnreadableError as error:
        return Verdict(problems=tuple(error.args))
    problems: list[str] = []
    for run in runs:
        problems += check_starts(run)
    if problems:
        # Without a shape that all agree on, no other line can be judged.
        return Verdict(problems=tuple(problems), runs=len(runs))
    problems += check_batch(runs)
    stream = Stream(allow_shrinking_batch=allow_shrinking_batch)
    for run in runs:
        problems += check_failures(run)
        problems += stream.check(run)
        problems += check_after_death(run)
    if not stream.steps:
        problems.append("no step line in any log, no step was committed")
    problems += check_exits(runs[-1], last=stream.next - 1)
    return Verdict(
        problems=tuple(problems),
        runs=len(runs),
        policy=runs[-1].shape["policy"],
        promise=runs[-1].shape["promise"],
        global_batch=runs[-1].shape["global_batch"],
        first_step=stream.first,
        steps=stream.steps,
        ids=stream.ids,
        smallest_total=stream.smallest,
        failures=sum(len(run.kept_failures()) for run in runs),
        lost=tuple(
            tuple(sorted(r for line in run.kept_failures() for r in line.value["failed"]))
            for run in runs
        ),
        survivors=tuple(sorted(runs[-1].survivors())),
    )

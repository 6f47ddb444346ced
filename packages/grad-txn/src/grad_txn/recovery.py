"""The recovery of a step: repair the world, decide, restore (ReCoVer, Algorithms 3 and 5).

All survivors go through it together. It ends in one of two ways: the same gradients are to be
reduced again under the new membership, or an extended pass computes what is missing first.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grad_txn.failures.places import At
from grad_txn.log.lines import ExitLine, ExtendLine, FailureLine, RepairLine, RestoreLine
from grad_txn.parts import Parts, Progress
from grad_txn.records import Record, table_of
from ulfm_core import Repair, ReplicaCondemnedError
from ulfm_core.codes import FAILED
from workload_policy import Decision, Restore, WorkloadPolicyError

__all__ = ["Recovery", "recover", "repair"]


@dataclass(slots=True, kw_only=True)
class Recovery:
    """One recovery of a step, and what it has cost so far.

    Attributes:
        step: The step.
        epoch: World epoch that its repair has made.
        extra_ids: The microbatches that this replica computes in the extended pass; None where
            there is none, and the gradients are reduced again as they are.
        buckets: How many had been reduced under the old membership.
        restore_seconds: What restoring them has taken.
        reduce_begun: When the reductions could begin, by `time.perf_counter`.
        compute_seconds: What the extended pass has taken.
    """

    step: int
    epoch: int
    extra_ids: Sequence[int] | None
    buckets: int
    restore_seconds: float
    reduce_begun: float
    compute_seconds: float = 0.0

    def extended(self, seconds: float) -> None:
        """Note that the extended pass is computed. Local."""
        self.compute_seconds = seconds
        self.reduce_begun = time.perf_counter()

    def lines(self, now: float) -> Iterator[RestoreLine | ExtendLine]:
        """Yield what the log says of it, once the reductions are drained.

        Args:
            now: When they were, by `time.perf_counter`.
        """
        reduced = now - self.reduce_begun
        extends = self.extra_ids is not None
        yield RestoreLine(
            step=self.step,
            epoch=self.epoch,
            mode=(Restore.NON_BLOCKING if extends else Restore.BLOCKING).value,
            buckets=self.buckets,
            seconds=self.restore_seconds,
            rereduce=0.0 if extends else reduced,
        )
        if self.extra_ids is not None:
            yield ExtendLine(
                step=self.step,
                epoch=self.epoch,
                microbatches=len(self.extra_ids),
                seconds=self.compute_seconds,
                rereduce=reduced,
            )


def recover(
    parts: Parts, progress: Progress, *, detect_seconds: float, computed: int, complete: bool
) -> Recovery:
    """Repair, decide, and begin to restore; the plan in force is then that of the survivors.

    Collective over the survivors. See `repair` for the arguments and what is raised.
    """
    decision = repair(
        parts, progress, detect_seconds=detect_seconds, computed=computed, complete=complete
    )
    replica, step = parts.control.replica, progress.plan.step
    parts.places.reached(At.DURING_RESTORE, step)
    # Redundant stacks whose supplier is gone count from here on.
    parts.reserve.count(stack.shard_type for stack in decision.recounted_stacks(replica))
    extends = decision.restore is Restore.NON_BLOCKING
    begun = time.perf_counter()
    buckets = parts.staging.restore(parts.control.epoch, blocking=not extends)
    now = time.perf_counter()
    return Recovery(
        step=step,
        epoch=parts.control.epoch,
        extra_ids=decision.extra_ids.get(replica, ()) if extends else None,
        buckets=buckets,
        restore_seconds=now - begun,
        reduce_begun=now,
    )


def repair(
    parts: Parts,
    progress: Progress,
    *,
    detect_seconds: float = 0.0,
    computed: int = 0,
    complete: bool = False,
) -> Decision:
    """Repair the world, and put the plan into force by which the survivors go on.

    Collective over the survivors.

    Args:
        parts: Of the job.
        progress: Of the job.
        detect_seconds: How long it took to agree that somebody is gone.
        computed: Microbatches of the step that this replica has finished.
        complete: Whether this rank held complete sums; others may not have, for the log.

    Raises:
        ReplicaCondemnedError: This rank's own replica is lost; it must leave.
        DivergenceError: The survivors do not tell the same story.
        WorkloadPolicyError: The policy cannot go on with these survivors.
    """
    control, plan = parts.control, progress.plan
    record = Record(
        replica=control.replica,
        position=control.position,
        step=plan.step,
        role=plan.roles[control.replica],
        contributed=computed,
        microbatch=computed,
    )
    try:
        repaired = control.repair(record.to_row())
        table = table_of(repaired.records, plan, control.membership)
        decision = parts.policy.on_failure(plan, table)
    except (ReplicaCondemnedError, WorkloadPolicyError) as error:
        parts.log.write(ExitLine(code=FAILED, step=plan.step - 1, reason=str(error)))
        raise
    progress.plan = decision.plan
    progress.broken_in = None
    line = RepairLine(
        step=plan.step,
        epoch=repaired.epoch,
        detect=detect_seconds,
        repair=repaired.repair_seconds,
        record=repaired.record_seconds,
        rounds=repaired.rounds,
        complete=complete,
    )
    parts.log.write(line)
    failure = _failure_line(decision, repaired)
    parts.log.write(failure)
    if parts.leads:
        for observer in parts.observers:
            observer.failure(failure, seconds=line.seconds)
    return decision


def _failure_line(decision: Decision, repaired: Repair) -> FailureLine:
    plan = decision.plan
    return FailureLine(
        step=plan.step,
        epoch=repaired.epoch,
        failed=decision.failed,
        failed_ranks=repaired.failed,
        boundary=decision.boundary,
        restore=decision.restore.value,
        promoted=decision.promoted,
        extra_ids={replica: ids for replica, ids in decision.extra_ids.items() if ids},
        queued=decision.queued,
        contributions=plan.contributions,
        recounted={replica: ids for replica, ids in decision.recounted.items() if ids},
    )

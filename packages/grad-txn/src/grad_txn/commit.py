"""The commit of a step: the agreement that is the commit point, and what follows it.

`agree` asks all ranks of all replicas whether every one of them holds complete sums. Before its
answer everything can be undone; after it the step is done, on every survivor alike. `apply` is then
local but for what the replica shares: divide, clip, log, step the optimizer.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from grad_txn.errors import DivergenceError, InvariantError
from grad_txn.failures.places import At
from grad_txn.log.lines import CommitLine, DifferLine, ExitLine, StepLine
from grad_txn.parts import Parts, Progress
from grad_txn.sameness import Verdict
from grad_txn.sums import Sums
from ulfm_core import Outcome, ReplicaCondemnedError
from ulfm_core.codes import FAILED
from workload_policy import Plan, ranges_of

__all__ = ["Closing", "agree", "apply", "sums_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """What came out of the agreement that closes a step.

    Attributes:
        stands: Whether the step is committed. Equal on all ranks.
        complete: Whether this rank held complete sums when it asked.
        noticed: When this rank last had a reason to ask, by `time.perf_counter`.
        sums: Of all ranks of the cross-replica group; garbage unless it stands.
    """

    stands: bool
    complete: bool
    noticed: float
    sums: Sums


def sums_of(losses: Sequence[float]) -> Sums:
    """Return this replica's part of the sums that close a step.

    Args:
        losses: The losses of the microbatches that count here.
    """
    return Sums(loss=sum(losses, 0.0), weight=float(len(losses)), microbatches=len(losses))


def agree(parts: Parts, progress: Progress, own: Sums, *, reduced: bool, noticed: float) -> Closing:
    """Agree whether the step stands.

    Collective over the world.

    Args:
        parts: Of the job.
        progress: Of the job; it learns of a death that the step has survived.
        own: Of `sums_of`.
        reduced: Whether all buckets are reduced on this rank.
        noticed: When that was known, by `time.perf_counter`.

    Raises:
        DivergenceError: Some ranks are in another step, or follow another plan; or the replicas
            hold different things, and no majority the same. Not committed.
        ReplicaCondemnedError: This replica holds something else than the majority. Leave at once.
        InvariantError: The contributions do not sum to B. Raised on all ranks.
    """
    control, plan = parts.control, progress.plan
    complete = reduced
    row = parts.sameness.row(plan.step, plan.members, control.replica)
    travelling = own.to_tensor(int(plan.digest, 16), row)
    if complete:
        parts.places.reached(At.AFTER_SYNC, plan.step)
        complete = control.all_reduce(travelling).wait() is Outcome.OK
        noticed = time.perf_counter()
    sums, summed_row = Sums.from_tensor(travelling) if complete else (own, [])
    verdict = parts.sameness.judge(plan.step, plan.members, summed_row)
    if complete:
        parts.places.reached(At.BEFORE_COMMIT, plan.step)
    control.beat(f"step {plan.step}, agreeing")
    agreement = control.agree(complete and sums.alike and verdict.same)
    # With somebody dead, others may not have seen these sums: after the recovery, all see new ones.
    if agreement.all_alive and not sums.alike:
        raise DivergenceError(
            f"the ranks are not all in step {plan.step} with the plan {plan.digest}, so it is not "
            "committed; a policy must decide the same everywhere, from the plan and table alone"
        )
    if agreement.all_alive and not verdict.same:
        _part_from(parts, plan, verdict)
    closing = Closing(stands=agreement.flag, complete=complete, noticed=noticed, sums=sums)
    if closing.stands:
        if sums.microbatches != plan.target:
            raise InvariantError(step=plan.step, total=sums.microbatches, target=plan.target)
        if not agreement.all_alive:
            # Somebody died after contributing. Every living rank holds complete sums of the full
            # membership, so the step stands (ReCoVer, section 4.2, case b).
            progress.broken_in = plan.step
    return closing


def _part_from(parts: Parts, plan: Plan, verdict: Verdict) -> None:
    """Leave what the replicas do not hold the same: this one, if it differs, or everyone.

    Who stays goes on to the recovery, which waits for those that leave.
    """
    control, before = parts.control, parts.sameness.same_before
    since = "from the start" if before is None else f"since they were compared before step {before}"
    what = f"other parameters or another optimizer state before step {plan.step}, {since}"
    line = DifferLine(
        step=plan.step,
        epoch=control.epoch,
        replicas=verdict.differing,
        majority=verdict.majority,
        same_before=before,
    )
    parts.log.write(line)
    if not verdict.majority:
        reason = (
            f"the {len(plan.members)} replicas hold {what}, and no majority holds the same: which "
            "is right cannot be told, so nothing was committed; go on from a checkpoint"
            + ("" if before is None else f" of step {before} or older")
        )
        parts.log.write(ExitLine(code=FAILED, step=plan.step - 1, reason=reason))
        raise DivergenceError(reason)
    if control.replica in verdict.differing:
        reason = (
            f"replica {control.replica} holds {what}, than {len(plan.members)} replicas in their "
            "majority: it is lost, and the memory and processors of its host are suspect"
        )
        parts.log.write(ExitLine(code=FAILED, step=plan.step - 1, reason=reason))
        ranks = control.membership.ranks_of(control.replica)
        raise ReplicaCondemnedError(reason, failed=tuple(ranks), epoch=control.epoch)


def apply(
    parts: Parts, progress: Progress, closing: Closing, losses: Sequence[float]
) -> CommitLine:
    """Apply a step that stands, and advance the plan. Return what the log says of it.

    Collective over the replica.

    Args:
        parts: Of the job.
        progress: Of the job.
        closing: What `agree` returned.
        losses: This rank's own of the replica's microbatches that count, in their order.
    """
    plan, gradients = progress.plan, parts.gradients
    _, following = parts.policy.advance(plan)  # first: what it raises, it raises on all ranks
    # Of this position's parts of all committed microbatches, then of all positions; what the
    # replica itself had goes with it, in the same message.
    loss, *own = gradients.mean_losses(
        [
            closing.sums.loss / closing.sums.weight,
            sum(losses, 0.0),
            *(losses if parts.log_losses else ()),
        ]
    )
    norm = gradients.norm(parts.staging.sums) / plan.global_batch
    parts.staging.divide(plan.global_batch, scale=_clipping(norm, parts.max_norm))
    now = time.perf_counter()
    line = CommitLine(
        step=plan.step,
        epoch=parts.control.epoch,
        generation=0,
        total=plan.total,
        loss=loss,
        grad_norm=norm,
        living=len(plan.members),
        boundary=plan.boundary,
        extra=plan.extra,
        plan=plan.digest,
        seconds=now - progress.committed_at,
        tokens=plan.total * parts.tokens_per_microbatch,
    )
    progress.committed_at = now
    if parts.control.position == 0:
        parts.log.write(_own_line(parts, plan, own[0], own[1:]))
    if parts.leads:
        parts.log.write(line)
        for observer in parts.observers:
            observer.step(line)
    progress.plan = progress.step_plan = following
    parts.places.reached(At.AFTER_COMMIT, plan.step)
    gradients.expose()
    parts.places.reached(At.OPTIMIZER, plan.step)
    parts.optimizer.step()
    if parts.scheduler is not None:
        parts.scheduler.step()
    gradients.zero()
    return line


def _own_line(parts: Parts, plan: Plan, loss_sum: float, losses: Sequence[float]) -> StepLine:
    """Return what this replica did in the step. Written by its leading rank."""
    replica = parts.control.replica
    ids = plan.committed_ids[replica]
    return StepLine(
        step=plan.step,
        epoch=parts.control.epoch,
        replica=replica,
        life=0,
        role=plan.roles[replica].label,
        ids=ranges_of(ids),
        loss_sum=loss_sum,
        weight_sum=float(len(ids)),  # all weights are 1
        plan=plan.digest,
        stacks=0 if plan.stacks is None else len(plan.stacks[replica]),
        losses=tuple(losses),
    )


def _clipping(norm: float, max_norm: float | None) -> float:
    """By what gradients of this norm are multiplied, as `torch.nn.utils.clip_grad_norm_` does."""
    if max_norm is None:
        return 1.0
    # In this order: a norm that is no number makes the scale none, which shows in the gradients.
    return min(max_norm / (norm + 1e-6), 1.0)

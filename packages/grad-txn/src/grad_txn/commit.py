"""The commit of a step: the agreement that is the commit point, and what follows it.

`agree` asks all ranks of all replicas whether every one of them holds complete sums. Before its
answer everything can be undone; after it the step is done, on every survivor alike. `apply` is then
local but for what the replica shares: divide, clip, log, step the optimizer.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from grad_txn.errors import InvariantError
from grad_txn.failures.places import At
from grad_txn.log.lines import StepLine
from grad_txn.parts import Parts, Progress
from ulfm_core import Outcome

__all__ = ["Closing", "agree", "apply", "sums_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Closing:
    """What came out of the agreement that closes a step.

    Attributes:
        stands: Whether the step is committed. Equal on all ranks.
        complete: Whether this rank held complete sums when it asked.
        noticed: When this rank last had a reason to ask, by `time.perf_counter`.
        loss_sum: Sum of the losses of the step's microbatches; garbage unless it stands.
        microbatches: How many they are; garbage unless it stands.
    """

    stands: bool
    complete: bool
    noticed: float
    loss_sum: float
    microbatches: float


def sums_of(losses: list[Tensor]) -> Tensor:
    """Return this replica's part of the sums that close a step: of losses, and of contributions.

    Args:
        losses: The losses of the microbatches that count here, scalars.

    Returns:
        Two float64 numbers on the CPU.
    """
    loss = float(torch.stack(losses).double().sum()) if losses else 0.0
    return torch.tensor([loss, float(len(losses))], dtype=torch.float64)


def agree(
    parts: Parts, progress: Progress, sums: Tensor, *, reduced: bool, noticed: float
) -> Closing:
    """Agree whether the step stands. `sums` become everyone's.

    Collective over the world.

    Args:
        parts: Of the job.
        progress: Of the job; it learns of a death that the step has survived.
        sums: Of `sums_of`.
        reduced: Whether all buckets are reduced on this rank.
        noticed: When that was known, by `time.perf_counter`.

    Raises:
        InvariantError: The contributions do not sum to B. Raised on all ranks.
    """
    control, plan = parts.control, progress.plan
    complete = reduced
    if complete:
        parts.places.reached(At.AFTER_SYNC, plan.step)
        complete = control.all_reduce(sums).wait() is Outcome.OK
        noticed = time.perf_counter()
    if complete:
        parts.places.reached(At.BEFORE_COMMIT, plan.step)
    control.beat(f"step {plan.step}, agreeing")
    agreement = control.agree(complete)
    closing = Closing(
        stands=agreement.flag,
        complete=complete,
        noticed=noticed,
        loss_sum=float(sums[0]),
        microbatches=float(sums[1]),
    )
    if closing.stands:
        total = round(closing.microbatches)
        if total != plan.target:
            raise InvariantError(step=plan.step, total=total, target=plan.target)
        if not agreement.all_alive:
            # Somebody died after contributing. Every living rank holds complete sums of the full
            # membership, so the step stands (ReCoVer, section 4.2, case b).
            progress.broken_in = plan.step
    return closing


def apply(parts: Parts, progress: Progress, closing: Closing) -> StepLine:
    """Apply a step that stands, and advance the plan. Return what the log says of it.

    Collective over the replica.
    """
    plan, gradients = progress.plan, parts.gradients
    _, following = parts.policy.advance(plan)  # first: what it raises, it raises on all ranks
    # Of this position's parts of all committed microbatches, then of all positions.
    loss = gradients.mean_loss(closing.loss_sum / closing.microbatches)
    norm = gradients.norm(parts.staging.sums) / plan.global_batch
    parts.staging.divide(plan.global_batch, scale=_clipping(norm, parts.max_norm))
    now = time.perf_counter()
    line = StepLine(
        step=plan.step,
        epoch=parts.control.epoch,
        loss=loss,
        grad_norm=norm,
        replica=parts.control.replica,
        living=len(plan.members),
        contributions=plan.contributions,
        ids=plan.committed_ids,
        roles={replica: role.label for replica, role in plan.roles.items()},
        total=plan.total,
        boundary=plan.boundary,
        extra=plan.extra,
        seconds=now - progress.committed_at,
        tokens=plan.total * parts.tokens_per_microbatch,
        stacks=plan.depth,
    )
    progress.committed_at = now
    if parts.control.position == 0:
        parts.log.write(line)
    if parts.leads:
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


def _clipping(norm: float, max_norm: float | None) -> float:
    """By what gradients of this norm are multiplied, as `torch.nn.utils.clip_grad_norm_` does."""
    if max_norm is None:
        return 1.0
    # In this order: a norm that is no number makes the scale none, which shows in the gradients.
    return min(max_norm / (norm + 1e-6), 1.0)

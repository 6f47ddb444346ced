"""What the steps of a job share: its parts, which never change, and how far it has come."""

from dataclasses import dataclass
from typing import Any, Protocol

from grad_txn.communicator import Control
from grad_txn.failures.places import Places
from grad_txn.gradients import Gradients
from grad_txn.log.events import EventLog
from grad_txn.log.observer import Observer
from grad_txn.reserve import Reserve
from grad_txn.sameness import Sameness
from grad_txn.staging import Staging
from workload_policy import Plan, Policy

__all__ = ["Parts", "Progress", "Steppable"]


class Steppable(Protocol):
    """An optimizer or a learning-rate scheduler, as far as a job needs it."""

    def step(self) -> Any:
        """Take one step; without an argument."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a job is made of.

    Attributes:
        control: Who is there, and what all agree on.
        gradients: Where the framework keeps this rank's accumulated gradients.
        staging: Their buckets, staged and reduced.
        sameness: Compares what the replicas hold.
        reserve: Gradients of redundant stacks, kept apart.
        optimizer: Stepped once for each committed step.
        scheduler: Stepped after the optimizer.
        policy: Who computes what.
        log: The event log of this rank.
        places: Told where in a step this process is; may kill it there.
        observers: Told about steps and failures on the leader.
        max_norm: The global norm that gradients are clipped to; None not to clip.
        tokens_per_microbatch: For the log's token counts; 0 if unknown.
        log_losses: Whether the loss of each microbatch is logged.
    """

    control: Control
    gradients: Gradients
    staging: Staging
    sameness: Sameness
    reserve: Reserve
    optimizer: Steppable
    scheduler: Steppable | None
    policy: Policy
    log: EventLog
    places: Places
    observers: tuple[Observer, ...]
    max_norm: float | None
    tokens_per_microbatch: int
    log_losses: bool

    @property
    def leads(self) -> bool:
        """Whether this rank leads the lowest living replica."""
        return self.control.rank == self.control.membership.leader


@dataclass(kw_only=True, slots=True)
class Progress:
    """How far a job has come: what passes from one step to the next.

    Equal on all living ranks, but for the time.

    Attributes:
        plan: The plan in force: of the step in progress, or between steps of the next one.
        step_plan: The plan that the step in progress began with, which a checkpoint holds.
        broken_in: The last step, if it stood although somebody had died: the next one begins with
            the repair.
        computing: Whether a step is in progress, from its first microbatch to its commit.
        committed_at: When the last step committed, by `time.perf_counter`.
    """

    plan: Plan
    step_plan: Plan
    broken_in: int | None = None
    computing: bool = False
    committed_at: float = 0.0

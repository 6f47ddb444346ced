"""What the steps of a job share: the world, the plan in force, and who is told what happens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from grad_txn.communicator import Communicator
from grad_txn.events import EventLog
from grad_txn.gradients import Gradients
from grad_txn.recovery import Record, failure_line, table_of
from grad_txn.reserve import Reserve
from grad_txn.schedule import At, FailureInjector
from grad_txn.transaction import StepTransaction
from ulfm_core import ReplicaCondemnedError
from workload_policy import Decision, Plan, Policy, WorkloadPolicyError

__all__ = ["Observer", "Runtime"]


class Observer(Protocol):
    """Somebody who wants to see what happens: a console, a metrics sink.

    Called on the leader of the lowest living replica only, with the fields of the log's lines.
    """

    def step(self, line: Mapping[str, Any]) -> None:
        """A step has committed."""
        ...

    def failure(self, line: Mapping[str, Any], *, seconds: float) -> None:
        """A failure has been decided upon, `seconds` after it was noticed."""
        ...


@dataclass(kw_only=True, slots=True)
class Runtime:
    """The parts of a job, and the state that passes from one step to the next.

    Attributes:
        plan: Of the step in progress, or between steps of the next one.
        step_plan: The plan that the step in progress began with, what a checkpoint holds.
        broken_in: The last step, if it stood although somebody had died: the next one begins with
            the repair.
        committed_at: When the last step committed, by `time.perf_counter`.
    """

    world: Communicator
    gradients: Gradients
    transaction: StepTransaction
    optimizer: Optimizer
    scheduler: LRScheduler | None
    max_norm: float | None
    policy: Policy
    plan: Plan
    step_plan: Plan
    log: EventLog
    injector: FailureInjector | None
    observers: Sequence[Observer]
    tokens_per_microbatch: int
    reserve: Reserve
    broken_in: int | None = None
    committed_at: float = 0.0

    @property
    def leads(self) -> bool:
        """Whether this is the leader of the lowest living replica."""
        return self.world.rank == min(self.world.members)

    @property
    def contributes(self) -> bool:
        """Whether what this replica computes counts in the step."""
        return self.plan.contributions[self.world.replica] > 0

    def reached(
        self, at: At, step: int, *, bucket: int | None = None, microbatch: int | None = None
    ) -> None:
        """Say where this process is; it does not return if a schedule kills it there."""
        if self.injector is not None:
            self.injector.reached(at, step, bucket, microbatch)

    def repair(self, *, detect_seconds: float, computed: int, complete: bool = False) -> Decision:
        """Repair the world, and put the plan into force by which the survivors go on.

        Collective over the survivors.

        Args:
            detect_seconds: How long it took to agree that somebody is gone.
            computed: Microbatches of the step that this replica has finished.
            complete: Whether this rank held complete sums; others may not have, for the log.

        Raises:
            ReplicaCondemnedError: this rank's own replica is lost; it must leave.
            DivergenceError: the survivors do not tell the same story.
            WorkloadPolicyError: the policy cannot go on with these survivors.
        """
        world, plan = self.world, self.plan
        record = Record(
            replica=world.replica,
            position=world.position,
            step=plan.step,
            role=plan.roles[world.replica],
            contributed=computed,
            microbatch=computed,
        )
        try:
            repair = world.repair(record.to_row())
        except ReplicaCondemnedError as condemned:
            self.log.write("exit", code=1, step=plan.step - 1, reason=str(condemned))
            raise
        table = table_of(repair.records, plan, replica_size=world.replica_size)
        try:
            decision = self.policy.on_failure(plan, table)
        except WorkloadPolicyError as error:
            self.log.write("exit", code=1, step=plan.step - 1, reason=str(error))
            raise
        self.plan = decision.plan
        self.broken_in = None
        self.log.write(
            "repair",
            step=plan.step,
            epoch=repair.epoch,
            detect=detect_seconds,
            repair=repair.repair_seconds,
            record=repair.record_seconds,
            rounds=repair.rounds,
            complete=complete,
        )
        line = failure_line(decision, epoch=repair.epoch, failed_ranks=repair.failed)
        self.log.write("failure", **line)
        if self.leads:
            seconds = detect_seconds + repair.repair_seconds + repair.record_seconds
            for observer in self.observers:
                observer.failure(line, seconds=seconds)
        return decision

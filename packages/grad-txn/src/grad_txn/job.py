"""The job: optimizer steps that commit the same batch, whatever dies (ReCoVer, Algorithm 1).

    for step in job.steps(max_steps):
        for microbatch in step:              # ids of this replica; grows when a failure leaves work to redo
            step.backward(model(*batch(microbatch)))
        # here the step is committed and the optimizer has stepped

Who decides what: the gradients are staged, reduced and restored by a `StepTransaction`; the world below tells, once a
step and on all survivors alike, whether everything went well; the policy turns the table of survivors into a decision.
This module only runs them in order.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from workload_policy import Plan, Restore

from grad_txn.errors import DivergenceError, InvariantError, UsageError
from grad_txn.recovery import Record, failure_line, table_of
from grad_txn.schedule import At
from grad_txn.transaction import Staging, StepTransaction

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from workload_policy import Decision, Policy

    from grad_txn.communicator import Communicator
    from grad_txn.events import EventLog
    from grad_txn.gradients import Gradients
    from grad_txn.schedule import FailureInjector

__all__ = ["Job", "Observer", "Step"]

_DIED_IN_SET_UP = "a rank died while the job was being set up: start it again"


class Observer(Protocol):
    """Somebody who wants to see what happens: a console, a metrics sink. Called with the fields of the log's lines."""

    def step(self, line: Mapping[str, Any]) -> None:
        """A step has committed. Only on the leader of the lowest living replica."""
        ...

    def failure(self, line: Mapping[str, Any], *, seconds: float) -> None:
        """A failure has been decided upon, `seconds` after it was noticed. Only on the leader of the lowest replica."""
        ...


@dataclass(slots=True)
class _Recovery:
    """What the current step's latest recovery has cost so far, for the log."""

    boundary: bool
    buckets: int = 0
    restore_seconds: float = 0.0
    extra_microbatches: int = 0
    extra_seconds: float = 0.0
    reduce_begun: float = 0.0


class Job:
    """A training job over the living replicas.

    Args:
        world: the communicator, of which this process is one rank.
        gradients: where the framework keeps this rank's accumulated gradients.
        optimizer: stepped once for each committed step.
        policy: who computes what.
        grad_accum: microbatches per replica and step at the start, G_init; B = replicas * grad_accum.
        log: the event log of this rank.
        replicas: replicas that the run was started with, W_init; as many as there are now by default.
        scheduler: learning-rate scheduler, stepped after the optimizer.
        max_norm: clip gradients to this global norm.
        staging: `no-copy` or `snapshot`, see `StepTransaction`.
        injector: kills this process where a schedule says so.
        observers: told about steps and failures.
        tokens_per_microbatch: for the log's token counts.
        about: further fields for the log's `start` line.

    Collective over the world: all ranks make it with the same arguments, and call everything in the same order.

    Raises:
        UsageError: an argument has a value that cannot work.
        DivergenceError: the replicas' gradient buckets differ.
    """

    def __init__(
        self,
        world: Communicator,
        gradients: Gradients,
        optimizer: Optimizer,
        *,
        policy: Policy,
        grad_accum: int,
        log: EventLog,
        replicas: int | None = None,
        scheduler: LRScheduler | None = None,
        max_norm: float | None = None,
        staging: Staging = "no-copy",
        injector: FailureInjector | None = None,
        observers: Sequence[Observer] = (),
        tokens_per_microbatch: int = 0,
        about: Mapping[str, object] | None = None,
    ) -> None:
        if max_norm is not None and not max_norm > 0:
            message = f"max_norm {max_norm} is not positive: give a norm, or None not to clip"
            raise UsageError(message)
        self._world = world
        self._gradients = gradients
        self._optimizer = optimizer
        self._policy = policy
        self._log = log
        self._scheduler = scheduler
        self._max_norm = max_norm
        self._staging = staging
        self._injector = injector
        self._observers = tuple(observers)
        self._tokens_per_microbatch = tokens_per_microbatch
        self._about = dict(about or {})
        self._transaction = StepTransaction(world, gradients.buckets, staging=staging)
        self._plan = policy.start(
            replicas=world.initial_size // world.replica_size, grad_accum=grad_accum
        )
        self._broken_in: int | None = None
        self._last_commit = 0.0
        self._run = _agree_on_start(world, gradients.buckets)
        optimizer.register_step_pre_hook(
            lambda *_: self._reached(At.OPTIMIZER, self._plan.step - 1)
        )
        world.on_repair_phase(self._on_repair_phase)

    # ------------------------------------------------------------------------------------------- for the trainer

    @property
    def plan(self) -> Plan:
        """The plan of the step in progress, or of the next one between steps."""
        return self._plan

    @property
    def global_batch(self) -> int:
        """B: microbatches in every committed step."""
        return self._plan.global_batch

    @property
    def leads(self) -> bool:
        """Whether this is the leader of the lowest living replica: the one that prints and writes checkpoints."""
        return self._world.rank == min(self._world.members)

    def steps(self, max_steps: int) -> Iterator[Step]:
        """Yield the steps from the current one to number `max_steps` - 1; iterate over each to its end."""
        self._log.write(
            "start",
            run=self._run,
            rank=self._world.rank,
            replica=self._world.replica,
            position=self._world.position,
            replicas=self._plan.replicas,
            grad_accum=self._plan.grad_accum,
            replica_size=self._world.replica_size,
            global_batch=self._plan.global_batch,
            policy=self._policy.name,
            first_step=self._plan.step,
            steps=max_steps,
            tokens_per_microbatch=self._tokens_per_microbatch,
            staging=self._staging,
            host=socket.gethostname(),
            pid=os.getpid(),
            **self._about,
        )
        self._gradients.zero()
        self._last_commit = time.perf_counter()
        while (number := self._plan.step) < max_steps:
            step = Step(self)
            yield step
            if not step.committed:
                message = f"step {number} was left before its end: iterate over it until it stops by itself"
                raise UsageError(message)

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give every replica the values that the lowest one has, in place. Collective over the cross-replica group."""
        for tensor in tensors:
            flat = tensor.detach().cpu().contiguous()
            if self._world.broadcast(flat, root=0).wait().name != "OK":
                raise DivergenceError(_DIED_IN_SET_UP)
            tensor.detach().copy_(flat)

    def finish(self, parameters: Sequence[Tensor], *, reason: str = "finished") -> None:
        """Agree that all steps are done and write this rank's last line, with a digest of its parameters.

        Collective over the world: a death in the last step is noticed here.
        """
        self._world.beat("the end of the job")
        while self._broken_in is not None or not self._world.agree().all_alive:
            self._repair(detect_seconds=0.0, microbatch=0, contributed=0)
        self._log.write(
            "exit", code=0, step=self._plan.step - 1, reason=reason, parameters=_digest(parameters)
        )
        self._log.close()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides model and optimizer: step, policy state, stream cursor. Between steps."""
        return {"plan": self._plan.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, with as many replicas as there are now; B stays B.

        Collective over the world; before the first step.
        """
        self._plan = self._laid_out(Plan.from_dict(state["plan"]))

    # ------------------------------------------------------------------------------------------- for the step

    def _reached(
        self, at: At, step: int, *, bucket: int | None = None, microbatch: int | None = None
    ) -> None:
        if self._injector is not None:
            self._injector.reached(at, step, bucket, microbatch)

    def _on_repair_phase(self, phase: str, _round: int) -> None:
        if phase == "shrink":
            self._reached(At.DURING_REPAIR, self._plan.step)
            if self._broken_in is not None:
                self._reached(At.DURING_REPAIR, self._broken_in)

    def _repair(self, *, detect_seconds: float, microbatch: int, contributed: int) -> Decision:
        """Repair the world and decide how the survivors go on. Collective over the survivors."""
        world, plan = self._world, self._plan
        record = Record(
            replica=world.replica,
            position=world.position,
            step=plan.step,
            role=plan.roles[world.replica],
            contributed=contributed,
            microbatch=microbatch,
        )
        repair = world.repair(record.to_row())
        table = table_of(repair.records, plan, replica_size=world.replica_size)
        decision = self._policy.on_failure(plan, table)
        self._plan = decision.plan
        self._broken_in = None
        self._log.write(
            "repair",
            step=plan.step,
            epoch=repair.epoch,
            detect=detect_seconds,
            repair=repair.repair_seconds,
            record=repair.record_seconds,
            rounds=repair.rounds,
        )
        line = failure_line(decision, epoch=repair.epoch, failed_ranks=repair.failed)
        self._log.write("failure", **line)
        if self.leads:
            for observer in self._observers:
                observer.failure(
                    line, seconds=detect_seconds + repair.repair_seconds + repair.record_seconds
                )
        return decision

    def _commit(self, loss: float) -> dict[str, object]:
        """Apply the committed step. Local: the agreement has passed."""
        plan = self._plan
        self._transaction.commit(plan.global_batch)
        norm = self._gradients.clip(self._max_norm)
        now = time.perf_counter()
        line: dict[str, object] = {
            "step": plan.step,
            "epoch": self._world.epoch,
            "loss": loss,
            "grad_norm": norm,
            "replica": self._world.replica,
            "replicas": len(plan.members),
            "contributions": plan.contributions,
            "ids": {replica: list(ids) for replica, ids in plan.committed_ids.items()},
            "roles": {replica: role.label for replica, role in plan.roles.items()},
            "total": plan.total,
            "boundary": plan.boundary,
            "extra": plan.extra,
            "seconds": now - self._last_commit,
            "tokens": plan.total * self._tokens_per_microbatch,
        }
        self._last_commit = now
        if self._world.position == 0:
            self._log.write("step", **line)
        if self.leads:
            for observer in self._observers:
                observer.step(line)
        _, self._plan = self._policy.commit(plan)
        self._reached(At.AFTER_COMMIT, plan.step)
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self._gradients.zero()
        return line


class Step:
    """One optimizer step in progress. Iterate over it, and call `backward` once for each microbatch id."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.number = job.plan.step
        self.committed = False
        self.loss = float("nan")
        """Mean over the B committed microbatches; known once committed."""
        self.line: Mapping[str, Any] = {}
        """What the log says of it; known once committed."""
        self._losses: dict[int, Tensor] = {}
        self._current: int | None = None
        self._begun = False
        self._recovery: _Recovery | None = None

    def __iter__(self) -> Iterator[int]:
        if self._begun:
            message = f"step {self.number} was already iterated over"
            raise UsageError(message)
        self._begun = True
        job = self._job
        if job._broken_in is not None:  # noqa: SLF001 - Job and Step are one concept
            # Somebody died after the last step's work was complete: that step stood, and this one begins without them.
            job._repair(detect_seconds=0.0, microbatch=0, contributed=0)  # noqa: SLF001
        work: Sequence[int] | None = job.plan.assigned[job._world.replica]  # noqa: SLF001
        while work is not None:
            yield from self._run(work)
            work = self._close()
        self.committed = True

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of the current microbatch: its mean loss, not divided by anything.

        Raises:
            UsageError: there is no current microbatch, or it was called for it already.
        """
        if self._current is None:
            message = "backward() is called once for each microbatch id that the step yields"
            raise UsageError(message)
        self._job._transaction.wait_restored()  # noqa: SLF001
        loss.backward()  # type: ignore[no-untyped-call]
        self._losses[self._current] = loss.detach()
        self._current = None
        self._job._gradients.end_microbatch()  # noqa: SLF001

    # ------------------------------------------------------------------------------------------- one pass

    def _run(self, work: Sequence[int]) -> Iterator[int]:
        """Yield the microbatches of one pass. The reductions are posted during the last one's backward."""
        job, recovery = self._job, self._recovery
        at = At.FORWARD if recovery is None else At.DURING_EXTENSION
        job._transaction.begin()  # noqa: SLF001
        begun = time.perf_counter()
        first = len(self._losses)
        if not work:
            job._reached(at, self.number, microbatch=first)  # noqa: SLF001
            self._reduce_all()
        for index, microbatch in enumerate(work):
            job._world.beat(  # noqa: SLF001
                f"step {self.number}, microbatch {microbatch} ({index + 1} of {len(work)})"
            )
            job._reached(at, self.number, microbatch=first + index)  # noqa: SLF001
            job._gradients.begin_microbatch(last=index == len(work) - 1, ready=self._ready)  # noqa: SLF001
            self._current = microbatch
            yield microbatch
            if self._current is not None:
                message = (
                    f"backward() was not called for microbatch {microbatch} of step {self.number}"
                )
                raise UsageError(message)
        if recovery is not None:
            recovery.extra_microbatches = len(work)
            recovery.extra_seconds = time.perf_counter() - begun
            recovery.reduce_begun = time.perf_counter()

    def _ready(self, index: int) -> None:
        """The gradient of bucket `index` is final: post its reduction."""
        job = self._job
        if index == 0:
            job._reached(At.BEFORE_SYNC, self.number)  # noqa: SLF001
        work = job._transaction.reduce(index, contribute=self._contributes)  # noqa: SLF001
        injector = job._injector  # noqa: SLF001
        if injector is not None and injector.expects(At.DURING_SYNC, self.number):
            work.wait()
            injector.reached(At.DURING_SYNC, self.number, bucket=index)

    def _reduce_all(self) -> None:
        self._job._transaction.begin()  # noqa: SLF001
        for index in range(len(self._job._transaction)):  # noqa: SLF001
            self._ready(index)

    @property
    def _contributes(self) -> bool:
        return self._job.plan.contributions[self._job._world.replica] > 0  # noqa: SLF001

    # ------------------------------------------------------------------------------------------- its close

    def _close(self) -> Sequence[int] | None:
        """Drain, agree, and commit; or recover, and return the microbatches of the pass that is needed then."""
        while True:
            loss, failed_after = self._attempt()
            if failed_after is None:
                self.loss = loss
                self.line = self._job._commit(loss)  # noqa: SLF001
                return None
            extra = self._recover(failed_after)
            if extra is not None:
                return extra

    def _attempt(self) -> tuple[float, float | None]:
        """Close the step if everything went well everywhere; else return how long learning of a failure took."""
        job = self._job
        world = job._world  # noqa: SLF001
        world.beat(f"step {self.number}, reducing")
        good = job._transaction.drain()  # noqa: SLF001
        begun = time.perf_counter()
        self._write_recovery()
        if good:
            job._reached(At.AFTER_SYNC, self.number)  # noqa: SLF001
        sums = self._sums()
        good = good and world.all_reduce(sums).wait().name == "OK"
        if good:
            job._reached(At.BEFORE_COMMIT, self.number)  # noqa: SLF001
        world.beat(f"step {self.number}, agreeing")
        agreement = world.agree(good)
        if not agreement.flag:
            return float("nan"), time.perf_counter() - begun
        # The commit point. Every living rank holds complete sums of one membership. If somebody died after
        # contributing, the step stands as it is, and the next one begins with the repair (ReCoVer, 4.2, case b).
        total = round(float(sums[1]))
        if total != job.plan.target or total != job.plan.total:
            raise InvariantError(step=self.number, total=total, target=job.plan.target)
        if not agreement.all_alive:
            job._broken_in = self.number  # noqa: SLF001
        return float(sums[0]) / total, None

    def _sums(self) -> Tensor:
        """This rank's part of the two sums that every step agrees on: of losses, and of contributions."""
        counted = self._job.plan.committed_ids[self._job._world.replica]  # noqa: SLF001
        losses = [self._losses[microbatch] for microbatch in counted]
        loss = float(torch.stack(losses).double().sum()) if losses else 0.0
        return torch.tensor([loss, float(len(losses))], dtype=torch.float64)

    def _recover(self, detect_seconds: float) -> Sequence[int] | None:
        """Repair, decide, restore. Returns the extra microbatches of this rank, or None if there are none for anybody."""
        job = self._job
        decision = job._repair(  # noqa: SLF001
            detect_seconds=detect_seconds,
            microbatch=len(self._losses),
            contributed=len(self._losses),
        )
        begun = time.perf_counter()
        blocking = decision.restore is not Restore.NON_BLOCKING
        job._reached(At.DURING_RESTORE, self.number)  # noqa: SLF001
        buckets = job._transaction.restore(blocking=blocking)  # noqa: SLF001
        now = time.perf_counter()
        self._recovery = _Recovery(
            boundary=not blocking, buckets=buckets, restore_seconds=now - begun, reduce_begun=now
        )
        if not blocking:
            return decision.extra.get(job._world.replica, ())  # noqa: SLF001
        self._reduce_all()
        return None

    def _write_recovery(self) -> None:
        """Log what the recovery that led to the drained reductions has cost."""
        recovery, job = self._recovery, self._job
        if recovery is None:
            return
        self._recovery = None
        where = {"step": self.number, "epoch": job._world.epoch}  # noqa: SLF001
        reduced = time.perf_counter() - recovery.reduce_begun
        mode = Restore.NON_BLOCKING if recovery.boundary else Restore.BLOCKING
        job._log.write(  # noqa: SLF001
            "restore",
            **where,
            mode=mode.value,
            buckets=recovery.buckets,
            seconds=recovery.restore_seconds,
            rereduce=0.0 if recovery.boundary else reduced,
        )
        if recovery.boundary:
            job._log.write(  # noqa: SLF001
                "extend",
                **where,
                microbatches=recovery.extra_microbatches,
                seconds=recovery.extra_seconds,
                rereduce=reduced,
            )


def _agree_on_start(world: Communicator, buckets: Sequence[Tensor]) -> str:
    """Refuse replicas whose buckets differ (their sums would mix different parameters); return a name for this run."""
    text = ";".join(f"{bucket.numel()} {bucket.dtype}" for bucket in buckets)
    layout = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    mine = torch.tensor([layout, secrets.randbits(62)], dtype=torch.int64)
    gathered = torch.empty(2 * world.group_size, dtype=torch.int64)
    if world.all_gather(mine, gathered).wait().name != "OK":
        raise DivergenceError(_DIED_IN_SET_UP)
    if not bool((gathered[::2] == layout).all()):
        message = f"the replicas' gradient buckets differ; this one has: {text}. Build the same model everywhere"
        raise DivergenceError(message)
    return f"{int(gathered[1]):016x}"


def _digest(parameters: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for parameter in parameters:
        flat = parameter.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

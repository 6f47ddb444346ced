"""One optimizer step: its passes over microbatches, and the close that commits it or goes round.

A step is closed by one agreement of the whole world. If every living rank holds complete sums, the
step is committed there and then. Otherwise the world is repaired, the policy decides, and either
the same gradients are reduced again (a spare has taken the place of the dead) or an extended pass
computes what is missing first (ReCoVer, Algorithms 1, 4 and 5).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from grad_txn.errors import InvariantError, UsageError
from grad_txn.passes import Pass
from grad_txn.runtime import Runtime
from grad_txn.schedule import At
from workload_policy import Decision, Restore, Stacking

__all__ = ["Step"]

Given = TypeVar("Given", int, Pass)
"""What a step yields: microbatch ids, or whole passes over them."""

Compute = Callable[[Sequence[int], At, Callable[[int], None]], Iterator[Given]]
"""Yields microbatches, and calls back for each bucket as it is final after the last of them."""


@dataclass(slots=True)
class _Recovery:
    """What the latest recovery of a step has cost so far, for the log."""

    extends: bool
    buckets: int
    restore_seconds: float
    microbatches: int = 0
    compute_seconds: float = 0.0
    reduce_begun: float = 0.0


class Step:
    """One optimizer step in progress; `Job.steps` yields it.

    Iterate over it to get this replica's microbatch ids, and call `backward` once for each. The
    iteration grows when a failure leaves work to redo, and ends when the step is committed and the
    optimizer has stepped. Or iterate over its `passes`, where a framework takes many microbatches
    at once.

    Attributes:
        number: The step's number, from 0.
        committed: Whether it is.
        loss: Mean over the B committed microbatches; NaN until committed.
        line: What the log says of it; empty until committed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.number = runtime.plan.step
        self.committed = False
        self.loss = float("nan")
        self.line: Mapping[str, Any] = {}
        self._runtime = runtime
        self._replica = runtime.world.replica
        self._begun = False
        self._current: int | None = None
        self._losses: dict[int, Tensor] = {}
        self._recovery: _Recovery | None = None
        self._complete = False  # whether this rank held complete sums when it last asked
        self._noticed = 0.0  # when this rank last had a reason to ask the others

    def __iter__(self) -> Iterator[int]:
        return self._to_its_end(self._one_by_one)

    def passes(self) -> Iterator[Pass]:
        """Yield this replica's microbatches pass by pass, in place of one by one.

        The first pass has all that the plan gives this replica; another one follows where a failure
        leaves it work to redo. Where nothing but the reductions has to be done again, none does.
        """
        return self._to_its_end(self._at_once)

    def _to_its_end(self, compute: Compute[Given]) -> Iterator[Given]:
        if self._begun:
            raise UsageError(f"step {self.number} was iterated over already")
        self._begun = True
        if self._runtime.broken_in is not None:
            self._runtime.repair(detect_seconds=0.0, computed=0)
        yield from self._run_redundant(compute)
        work: Sequence[int] | None = self._counted()
        while work is not None:
            yield from self._run(work, compute)
            work = self._close()

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of the current microbatch: of its mean loss, undivided.

        Collective over the replica, as the framework's backward is.

        Args:
            loss: Scalar, on the model's device; where the ranks of a replica share a microbatch, of
                this rank's part.

        Raises:
            UsageError: There is no current microbatch, or this was called for it already.
        """
        if self._current is None:
            raise UsageError("call backward() once for each microbatch id that the step yields")
        self._runtime.transaction.wait_restored()
        loss.backward()  # type: ignore[no-untyped-call]
        self._losses[self._current] = loss.detach()
        self._current = None
        self._runtime.gradients.end_microbatch()

    # ------------------------------------------------------------------------------- one pass

    def _counted(self) -> Sequence[int]:
        """The ids that this replica computes first, without those of redundant stacks."""
        plan = self._runtime.plan
        if plan.stacking is None:
            return plan.assigned[self._replica]
        return plan.stacking.counted[self._replica]

    def _run_redundant(self, compute: Compute[Given]) -> Iterator[Given]:
        """Yield the microbatches of stacks that do not count here, and keep their gradients.

        They come first: what the buckets hold in the end is what counts.
        """
        runtime = self._runtime
        runtime.reserve.clear()
        if runtime.plan.stacking is None:
            return
        runtime.transaction.wait_restored()
        for stack in runtime.plan.stacking.stacks[self._replica]:
            if not stack.counted:
                yield from compute(stack.ids, At.FORWARD, _keep)
                runtime.reserve.keep(stack.shard_type)

    def _run(self, work: Sequence[int], compute: Compute[Given]) -> Iterator[Given]:
        """Yield the microbatches of one pass; the last one's backward posts the reductions."""
        runtime, recovery = self._runtime, self._recovery
        at = At.FORWARD if recovery is None else At.DURING_EXTENSION
        done = len(self._losses)
        begun = time.perf_counter()
        runtime.transaction.begin()
        if not done:  # then the gradients start from zero, whatever is being restored
            runtime.transaction.wait_restored()
        if not work:
            runtime.reached(at, self.number, microbatch=done)
            self._reduce_all()
        yield from compute(work, at, self._reduce)
        if recovery is not None:
            recovery.microbatches = len(work)
            recovery.reduce_begun = time.perf_counter()
            recovery.compute_seconds = recovery.reduce_begun - begun

    def _one_by_one(
        self, work: Sequence[int], at: At, ready: Callable[[int], None]
    ) -> Iterator[int]:
        runtime = self._runtime
        done = len(self._losses)
        for index, microbatch in enumerate(work):
            last = index == len(work) - 1
            self._about_to_compute(microbatch, at, done + index)
            runtime.gradients.begin_microbatch(last=last, ready=ready)
            self._current = microbatch
            yield microbatch
            if self._current is not None:
                raise UsageError(
                    f"backward() was not called for microbatch {microbatch} of step {self.number}"
                )

    def _at_once(self, work: Sequence[int], at: At, ready: Callable[[int], None]) -> Iterator[Pass]:
        if not work:
            return
        runtime = self._runtime
        done = len(self._losses)

        def begin(index: int) -> None:
            self._about_to_compute(work[index], at, done + index)

        def finish(losses: Sequence[Tensor]) -> None:
            for microbatch, loss in zip(work, losses, strict=True):
                self._losses[microbatch] = loss.detach()
            runtime.gradients.end_microbatch()

        runtime.transaction.wait_restored()  # the first backward may come at any time
        runtime.gradients.begin_microbatch(last=True, ready=ready)
        given = Pass(work, begin=begin, finish=finish)
        yield given
        if not given.finished:
            raise UsageError(f"finish() was not called for a pass of step {self.number}")

    def _about_to_compute(self, microbatch: int, at: At, index: int) -> None:
        self._runtime.world.beat(f"step {self.number}, microbatch {microbatch}")
        self._runtime.reached(at, self.number, microbatch=index)

    def _reduce(self, index: int) -> None:
        """Bucket `index` holds this replica's final sum: post its reduction."""
        runtime = self._runtime
        if index == 0:
            runtime.reached(At.BEFORE_SYNC, self.number)
        runtime.transaction.wait_restored()
        runtime.reserve.complete(index)
        work = runtime.transaction.reduce(index, contribute=runtime.contributes)
        if runtime.injector is not None and runtime.injector.expects(At.DURING_SYNC, self.number):
            work.wait()
            runtime.reached(At.DURING_SYNC, self.number, bucket=index)

    def _reduce_all(self) -> None:
        for index in range(len(self._runtime.transaction)):
            self._reduce(index)

    # ------------------------------------------------------------------------------- its close

    def _close(self) -> Sequence[int] | None:
        """Commit the step; or recover, and return the microbatches of the pass it still takes."""
        while True:
            sums = self._sums()
            if self._agree(sums):
                self._commit(sums)
                return None
            extra = self._recover(time.perf_counter() - self._noticed)
            if extra is not None:
                return extra

    def _sums(self) -> Tensor:
        """This replica's part of the sums that close a step: of losses, and of contributions."""
        counted = self._runtime.plan.committed_ids[self._replica]
        losses = [self._losses[microbatch] for microbatch in counted]
        loss = float(torch.stack(losses).double().sum()) if losses else 0.0
        return torch.tensor([loss, float(len(losses))], dtype=torch.float64)

    def _agree(self, sums: Tensor) -> bool:
        """Finish the reductions and agree: whether the step stands. `sums` become everyone's.

        Collective over the world. This agreement is the commit point: before it everything can be
        undone, after it the step is done, on every survivor alike.

        Raises:
            InvariantError: The contributions do not sum to B. Raised on all ranks.
        """
        runtime, world = self._runtime, self._runtime.world
        world.beat(f"step {self.number}, reducing")
        good = runtime.transaction.drain()
        self._noticed = time.perf_counter()
        self._write_recovery()
        if good:
            runtime.reached(At.AFTER_SYNC, self.number)
            good = world.all_reduce(sums).wait().name == "OK"
            self._noticed = time.perf_counter()
        if good:
            runtime.reached(At.BEFORE_COMMIT, self.number)
        self._complete = good
        world.beat(f"step {self.number}, agreeing")
        agreement = world.agree(good)
        if not agreement.flag:
            return False
        total = round(float(sums[1]))
        if total != runtime.plan.target:
            raise InvariantError(step=self.number, total=total, target=runtime.plan.target)
        if not agreement.all_alive:
            # Somebody died after contributing. Every living rank holds complete sums of the full
            # membership, so the step stands (ReCoVer, section 4.2, case b).
            runtime.broken_in = self.number
        return True

    def _recover(self, detect_seconds: float) -> Sequence[int] | None:
        """Repair, decide, restore. Return this replica's part of the extended pass, if any."""
        runtime = self._runtime
        decision = runtime.repair(
            detect_seconds=detect_seconds, computed=len(self._losses), complete=self._complete
        )
        runtime.reached(At.DURING_RESTORE, self.number)
        self._recount(decision)
        extends = decision.restore is Restore.NON_BLOCKING
        begun = time.perf_counter()
        buckets = runtime.transaction.restore(blocking=not extends)
        now = time.perf_counter()
        self._recovery = _Recovery(
            extends=extends, buckets=buckets, restore_seconds=now - begun, reduce_begun=now
        )
        if extends:
            return decision.extra.get(self._replica, ())
        runtime.transaction.begin()
        self._reduce_all()
        return None

    def _recount(self, decision: Decision) -> None:
        """Have redundant stacks count whose supplier is gone. Local."""
        stacking = self._runtime.plan.stacking
        recounted = decision.recounted.get(self._replica, ())
        if stacking is not None and recounted:
            self._runtime.reserve.count(
                stack.shard_type
                for stack in stacking.stacks[self._replica]
                if set(stack.ids) <= set(recounted)
            )

    def _commit(self, sums: Tensor) -> None:
        """Apply the step. Local: the agreement has passed."""
        runtime, plan = self._runtime, self._runtime.plan
        self.committed = True
        # Of this position's parts of all committed microbatches, then of all positions.
        self.loss = runtime.gradients.mean_loss(float(sums[0]) / float(sums[1]))
        norm = runtime.gradients.norm(runtime.transaction.sums) / plan.global_batch
        runtime.transaction.commit(plan.global_batch, scale=_clipping(norm, runtime.max_norm))
        now = time.perf_counter()
        stacks = {} if plan.stacking is None else {"stacks": _depth(plan.stacking)}
        self.line = {
            "step": self.number,
            "epoch": runtime.world.epoch,
            "loss": self.loss,
            "grad_norm": norm,
            "replica": self._replica,
            "replicas": len(plan.members),
            "contributions": plan.contributions,
            "ids": {replica: list(ids) for replica, ids in plan.committed_ids.items()},
            "roles": {replica: role.label for replica, role in plan.roles.items()},
            "total": plan.total,
            "boundary": plan.boundary,
            "extra": plan.extra,
            "seconds": now - runtime.committed_at,
            "tokens": plan.total * runtime.tokens_per_microbatch,
            **stacks,
        }
        runtime.committed_at = now
        if runtime.world.position == 0:
            runtime.log.write("step", **self.line)
        if runtime.leads:
            for observer in runtime.observers:
                observer.step(self.line)
        _, runtime.plan = runtime.policy.commit(plan)
        runtime.step_plan = runtime.plan
        runtime.reached(At.AFTER_COMMIT, self.number)
        runtime.optimizer.step()
        if runtime.scheduler is not None:
            runtime.scheduler.step()
        runtime.gradients.zero()

    def _write_recovery(self) -> None:
        """Log what the recovery has cost that led to the reductions just drained."""
        recovery, self._recovery = self._recovery, None
        if recovery is None:
            return
        log = self._runtime.log
        where = {"step": self.number, "epoch": self._runtime.world.epoch}
        reduced = time.perf_counter() - recovery.reduce_begun
        log.write(
            "restore",
            **where,
            mode=(Restore.NON_BLOCKING if recovery.extends else Restore.BLOCKING).value,
            buckets=recovery.buckets,
            seconds=recovery.restore_seconds,
            rereduce=0.0 if recovery.extends else reduced,
        )
        if recovery.extends:
            log.write(
                "extend",
                **where,
                microbatches=recovery.microbatches,
                seconds=recovery.compute_seconds,
                rereduce=reduced,
            )


def _keep(_index: int) -> None:
    """Reduce nothing: a redundant stack stays with its replica."""


def _depth(stacking: Stacking) -> int:
    """How many stacks the step took: the most that a member has computed."""
    return max(map(len, stacking.stacks.values()))


def _clipping(norm: float, max_norm: float | None) -> float:
    """By what gradients of this norm are multiplied, as `torch.nn.utils.clip_grad_norm_` does."""
    if max_norm is None:
        return 1.0
    # In this order: a norm that is no number makes the scale none, which shows in the gradients.
    return min(max_norm / (norm + 1e-6), 1.0)

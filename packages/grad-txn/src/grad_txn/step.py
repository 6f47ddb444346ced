"""One optimizer step: a corridor from microbatches to a commit.

microbatch -> bucket -> stage -> reduce -> agree -> commit. A step is closed by one agreement of the
whole world (`grad_txn.commit`). If every living rank holds complete sums, the step is committed
there and then. Otherwise the survivors recover (`grad_txn.recovery`), and either the same gradients
are reduced again (a spare has taken the place of the dead) or an extended pass computes what is
missing first (ReCoVer, Algorithms 1, 4 and 5).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from grad_txn import commit
from grad_txn.errors import UsageError
from grad_txn.failures.places import At
from grad_txn.parts import Parts, Progress
from grad_txn.passes import Pass
from grad_txn.recovery import Recovery, recover, repair

if TYPE_CHECKING:
    from grad_txn.log.lines import CommitLine

__all__ = ["Step"]

Given = TypeVar("Given", int, Pass)
"""What a step yields: microbatch ids, or whole passes over them."""

Compute = Callable[[Sequence[int], At, Callable[[int], None]], Iterator[Given]]
"""Yields microbatches, and calls back for each bucket as it is final after the last of them."""


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
        line: What the log says of it; None until committed.
    """

    def __init__(self, parts: Parts, progress: Progress) -> None:
        self.number = progress.plan.step
        self.committed = False
        self.loss = float("nan")
        self.line: CommitLine | None = None
        self._parts = parts
        self._progress = progress
        self._replica = parts.control.replica
        self._begun = False
        self._current: int | None = None
        self._losses: dict[int, Tensor] = {}
        self._contributes = True
        self._recovery: Recovery | None = None

    def __iter__(self) -> Iterator[int]:
        return self._to_its_end(self._one_by_one)

    def passes(self) -> Iterator[Pass]:
        """Yield this replica's microbatches pass by pass, in place of one by one.

        The first pass has all that the plan gives this replica; another one follows where a failure
        leaves it work to redo. Where nothing but the reductions has to be done again, none does.
        """
        return self._to_its_end(self._at_once)

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
        self._parts.staging.wait_restored()
        loss.backward()  # type: ignore[no-untyped-call]
        self._losses[self._current] = loss.detach()
        self._current = None
        self._parts.gradients.end_microbatch()

    def _to_its_end(self, compute: Compute[Given]) -> Iterator[Given]:
        if self._begun:
            raise UsageError(f"step {self.number} was iterated over already")
        self._begun = self._progress.computing = True
        if self._progress.broken_in is not None:
            repair(self._parts, self._progress)
        self._parts.sameness.begin(self.number)
        yield from self._run_redundant(compute)
        work: Sequence[int] | None = self._progress.plan.primary(self._replica)
        while work is not None:
            yield from self._run(work, compute)
            work = self._close()

    # ------------------------------------------------------------------------------- microbatches

    def _run_redundant(self, compute: Compute[Given]) -> Iterator[Given]:
        """Yield the microbatches of stacks that do not count here, and keep their gradients.

        They come first: what the buckets hold in the end is what counts.
        """
        reserve = self._parts.reserve
        reserve.clear()
        for stack in self._progress.plan.redundant(self._replica):
            self._parts.staging.wait_restored()
            yield from compute(stack.ids, At.FORWARD, _keep)
            reserve.keep(stack.shard_type)

    def _run(self, work: Sequence[int], compute: Compute[Given]) -> Iterator[Given]:
        """Yield the microbatches of one pass; the last one's backward posts the reductions."""
        parts, recovery = self._parts, self._recovery
        at = At.FORWARD if recovery is None else At.DURING_EXTENSION
        begun = time.perf_counter()
        self._begin_to_reduce()
        if not self._losses:  # then the gradients start from zero, whatever is being restored
            parts.staging.wait_restored()
        if not work:
            parts.places.reached(at, self.number, microbatch=len(self._losses))
            self._reduce_all()
        yield from compute(work, at, self._reduce)
        if recovery is not None:
            recovery.extended(time.perf_counter() - begun)

    def _one_by_one(
        self, work: Sequence[int], at: At, ready: Callable[[int], None]
    ) -> Iterator[int]:
        done = len(self._losses)
        for index, microbatch in enumerate(work):
            self._about_to_compute(microbatch, at, done + index)
            self._parts.gradients.begin_microbatch(last=index == len(work) - 1, ready=ready)
            self._current = microbatch
            yield microbatch
            if self._current is not None:
                raise UsageError(
                    f"backward() was not called for microbatch {microbatch} of step {self.number}"
                )

    def _at_once(self, work: Sequence[int], at: At, ready: Callable[[int], None]) -> Iterator[Pass]:
        if not work:
            return
        parts, done = self._parts, len(self._losses)

        def begin(index: int) -> None:
            self._about_to_compute(work[index], at, done + index)

        def finish(losses: Sequence[Tensor]) -> None:
            for microbatch, loss in zip(work, losses, strict=True):
                self._losses[microbatch] = loss.detach()
            parts.gradients.end_microbatch()

        parts.staging.wait_restored()  # the first backward may come at any time
        parts.gradients.begin_microbatch(last=True, ready=ready)
        given = Pass(work, begin=begin, finish=finish)
        yield given
        if not given.finished:
            raise UsageError(f"finish() was not called for a pass of step {self.number}")

    def _about_to_compute(self, microbatch: int, at: At, index: int) -> None:
        self._parts.control.beat(f"step {self.number}, microbatch {microbatch}")
        self._parts.places.reached(at, self.number, microbatch=index)

    # ------------------------------------------------------------------- buckets: stage and reduce

    def _begin_to_reduce(self) -> None:
        self._parts.staging.begin()
        self._contributes = self._progress.plan.contributions[self._replica] > 0

    def _reduce(self, index: int) -> None:
        """Bucket `index` holds this replica's final sum: post its reduction."""
        parts = self._parts
        if index == 0:
            parts.places.reached(At.BEFORE_SYNC, self.number)
        parts.staging.wait_restored()
        parts.reserve.complete(index)
        work = parts.staging.reduce(index, contribute=self._contributes)
        if parts.places.expects(At.DURING_SYNC, self.number):
            work.wait()
            parts.places.reached(At.DURING_SYNC, self.number, bucket=index)

    def _reduce_all(self) -> None:
        for index in range(len(self._parts.staging)):
            self._reduce(index)

    # ---------------------------------------------------------------------------- agree and commit

    def _close(self) -> Sequence[int] | None:
        """Commit the step; or recover, and return the microbatches of the pass it still takes."""
        parts, progress = self._parts, self._progress
        while True:
            reduced, noticed = self._drain()
            losses = self._counted()
            sums = commit.sums_of(losses)
            closing = commit.agree(parts, progress, sums, reduced=reduced, noticed=noticed)
            if closing.stands:
                self.committed = True
                self.line = commit.apply(parts, progress, closing, losses)
                self.loss = self.line.loss
                progress.computing = False
                return None
            self._recovery = recover(
                parts,
                progress,
                detect_seconds=time.perf_counter() - closing.noticed,
                computed=len(self._losses),
                complete=closing.complete,
            )
            if self._recovery.extra_ids is not None:
                return self._recovery.extra_ids
            self._begin_to_reduce()
            self._reduce_all()

    def _drain(self) -> tuple[bool, float]:
        """Finish the reductions; whether all succeeded here, and when that was known."""
        parts = self._parts
        parts.control.beat(f"step {self.number}, reducing")
        reduced = parts.staging.drain()
        now = time.perf_counter()
        if self._recovery is not None:
            for line in self._recovery.lines(now):
                parts.log.write(line)
            self._recovery = None
        return reduced, now

    def _counted(self) -> list[float]:
        """The losses of this replica's microbatches that count, in their order."""
        counted = self._progress.plan.committed_ids[self._replica]
        losses = [self._losses[microbatch] for microbatch in counted]
        return torch.stack(losses).double().tolist() if losses else []


def _keep(_index: int) -> None:
    """Reduce nothing: a redundant stack stays with its replica."""

"""The buckets of one step: staged, reduced, and brought back when a peer has died.

A `Staging` holds, for every bucket, the sum that this replica has accumulated and the sum over the
replicas, each reduction tagged with the world epoch it ran in (ReCoVer, section 4.2). Until
`divide` the accumulated sums can be had back:

* ``no-copy``: the reduction goes to a second buffer, so the accumulated gradient *is* the snapshot,
  and restoring costs nothing;
* ``snapshot``: the reduction runs in place on a framework's own buffer, after a copy to a pooled
  one.
"""

import threading
import time
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from grad_txn.communicator import Reducer, Work
from grad_txn.errors import UsageError
from ulfm_core import Outcome

__all__ = ["STAGINGS", "Staging", "StagingMode"]

StagingMode = Literal["no-copy", "snapshot"]
STAGINGS: tuple[StagingMode, ...] = ("no-copy", "snapshot")


class Staging:
    """Stage, reduce and restore the buckets of one rank, step after step.

    Args:
        reducer: Sums over the cross-replica group.
        buckets: The accumulated gradients: flat contiguous tensors, one dtype and device each.
        mode: Where the state before a reduction is kept.

    Memory: one buffer more for every bucket, allocated here and never again.

    Raises:
        UsageError: There is no such mode.
    """

    def __init__(
        self, reducer: Reducer, buckets: Sequence[Tensor], *, mode: StagingMode = "no-copy"
    ) -> None:
        if mode not in STAGINGS:
            raise UsageError(f"staging {mode!r} is unknown: use {' or '.join(STAGINGS)}")
        self.mode = mode
        self._reducer = reducer
        self._buckets = tuple(bucket.detach() for bucket in buckets)
        self._in_place = mode == "snapshot"
        # The sums over the replicas (no-copy), or the accumulated sums before their reduction
        # (snapshot).
        self._second = tuple(torch.empty_like(bucket) for bucket in self._buckets)
        self._works: list[Work | None] = [None] * len(self._buckets)
        self._restoration: _Restoration | None = None

    def __len__(self) -> int:
        return len(self._buckets)

    # -------------------------------------------------------------------------- stage and reduce

    def begin(self) -> None:
        """Start a step, or an extended pass over the same step: nothing is reduced yet. Local."""
        self._works = [None] * len(self._buckets)

    def reduce(self, index: int, *, contribute: bool) -> Work:
        """Stage bucket `index` and post its reduction.

        Collective over the cross-replica group. Returns at once.

        Args:
            index: Which bucket; the same order on every replica.
            contribute: False for a spare: it adds nothing, and its gradient stays as it is.
        """
        # Nobody else waits in an extended pass that has no microbatch for this replica.
        self.wait_restored()
        bucket, second = self._buckets[index], self._second[index]
        if self._in_place:
            second.copy_(bucket)
            work = self._reducer.all_reduce(bucket, contribute=contribute)
        else:
            work = self._reducer.all_reduce(bucket, second, contribute=contribute)
        self._works[index] = work
        return work

    def drain(self) -> bool:
        """Wait for all posted reductions; whether every one was posted and succeeded on this rank.

        Others may have seen another outcome: only an agreement makes it common.
        """
        # All of them, also when one has failed: none may still write when this returns.
        outcomes = [None if work is None else work.wait() for work in self._works]
        return all(outcome is Outcome.OK for outcome in outcomes)

    # ----------------------------------------------------------------------------------- restore

    def stale(self, epoch: int) -> tuple[int, ...]:
        """Buckets whose reduction was posted in an epoch before this (ReCoVer, Algorithm 5)."""
        return tuple(
            index
            for index, work in enumerate(self._works)
            if work is not None and work.epoch < epoch
        )

    def restore(self, epoch: int, *, blocking: bool) -> int:
        """Bring the accumulated gradient of every stale bucket back; return how many there were.

        Non-blocking, the copies run beside the next forward: on a side stream, or a thread on CPUs;
        `wait_restored` ends that. With no-copy staging there is nothing to bring back. Local.

        Args:
            epoch: The epoch of the repaired world.
            blocking: Whether to return only when they are back.
        """
        stale = self.stale(epoch)
        self.wait_restored()
        if self._in_place and stale:
            self._restoration = _Restoration([(self._buckets[i], self._second[i]) for i in stale])
            if blocking:
                self.wait_restored()
        return len(stale)

    def wait_restored(self) -> float:
        """Block until a non-blocking restoration is complete, before the next backward.

        Returns:
            Its seconds; 0 if there was none.
        """
        if self._restoration is None:
            return 0.0
        seconds = self._restoration.wait()
        self._restoration = None
        return seconds

    # -------------------------------------------------------------------------------- the result

    @property
    def sums(self) -> tuple[Tensor, ...]:
        """The sums over the replicas, one a bucket: for reading, once they are drained."""
        return self._buckets if self._in_place else self._second

    def divide(self, divisor: int, *, scale: float = 1.0) -> None:
        """Leave the sums over the replicas, divided by `divisor`, in the buckets.

        Local, after the agreement that commits the step: nothing can be brought back after it.

        Args:
            divisor: Always B.
            scale: What clipping multiplies them by. It costs no pass over memory of its own.
        """
        for bucket, total in zip(self._buckets, self.sums, strict=True):
            if scale == 1.0:
                torch.div(total, divisor, out=bucket)
            else:
                torch.mul(total, scale / divisor, out=bucket)
        self.begin()


class _Restoration:
    """Copies on their way from snapshots to buckets."""

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self._begun = time.perf_counter()
        self._seconds = 0.0
        self._pairs = pairs
        self._thread: threading.Thread | None = None
        self._event: torch.cuda.Event | None = None
        if pairs[0][0].is_cuda:
            side = torch.cuda.Stream(device=pairs[0][0].device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream(pairs[0][0].device))
            with torch.cuda.stream(side):
                self._copy()
                self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._event.record(side)
        else:
            self._thread = threading.Thread(target=self._copy, name="grad-txn-restore")
            self._thread.start()

    def _copy(self) -> None:
        for bucket, snapshot in self._pairs:
            bucket.copy_(snapshot, non_blocking=True)
        self._seconds = time.perf_counter() - self._begun

    def wait(self) -> float:
        if self._thread is not None:
            self._thread.join()
        if self._event is not None:
            # The compute stream waits on the device; this thread need not.
            torch.cuda.current_stream(self._pairs[0][0].device).wait_event(self._event)
        return self._seconds

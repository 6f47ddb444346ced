"""Between the steps: what all living ranks reduce and note, whoever dies meanwhile.

A validation, say. What travels here is small and not hurried, so each of these calls is a
transaction of its own: messages, then one agreement of the whole world. Where a rank failed to get
its result, the world is repaired there and then and the survivors do the whole again, from inputs
that are still intact; where every living rank has it, it stands, on all of them alike.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from grad_txn.errors import UsageError
from grad_txn.notes import Notes, told_by_the_leader
from grad_txn.parts import Parts, Progress
from grad_txn.recovery import repair
from grad_txn.reduction import Op, Reduced, Reduction
from ulfm_core import Membership

__all__ = ["Between", "agreed"]

T = TypeVar("T")


class Between:
    """What a loop may ask of its job between the steps; `grad_txn.Job` is one."""

    _parts: Parts
    _progress: Progress
    _notes: Notes

    def reduce(self, tensor: Tensor, op: Op = "sum") -> Reduced:
        """Combine a tensor of every living rank, and return the same on each of them.

        It runs over *all ranks* of all living replicas, unlike torch's own calls, which end at the
        replica. Give sums and counts in one tensor, and divide afterwards: then it does not matter
        whether the ranks of a replica had parts of their own or shared one.

        Collective over all living ranks, between the steps. Whoever dies in it, or died since the
        last step's commit, is repaired away here, and the survivors repeat it among themselves:
        `Reduced.replicas` says whose tensors are in the value.

        Args:
            tensor: This rank's, of the same shape and dtype everywhere: float64, 32, 16, bfloat16,
                int64, 32, 16, 8 or uint8. Left untouched.
            op: ``sum``, ``mean`` (over the ranks; floats only), ``min`` or ``max``.

        Raises:
            UsageError: The step in progress is not committed; or the tensor, or the operation, is
                not one of the above, or not the same on all ranks.
            WorkloadPolicyError: The policy cannot go on with the survivors.
            ReplicaCondemnedError: This rank's own replica is lost; it must leave.
        """
        reduction = Reduction(self._parts.control, tensor, op)
        total, members = agreed(self._parts, self._progress, "job.reduce", reduction.attempt)
        return reduction.result(total, members)

    def note(self, key: str, value: Any) -> Any:
        """Keep a small value under a name on every living rank: the leader's. Return what is kept.

        For what one rank knows and the next leader must: the best validation loss so far, the path
        of the best checkpoint. Collective over all living ranks, between the steps, like `reduce`:
        the note holds on all of them or on none. Every rank passes a value, the lowest living
        rank's counts. If that one dies in the call, the next one's does: a rank that does not know
        passes None, which leaves the note as it was.

        Args:
            key: Its name, the same on all ranks.
            value: What `json` can write; it is kept as `json` reads it. None changes nothing.

        Raises:
            UsageError: The step in progress is not committed, or `json` cannot write the value, or
                the leader notes another key.
            WorkloadPolicyError, ReplicaCondemnedError: As in `reduce`.
        """
        text = Notes.text_of(key, value)
        control = self._parts.control
        told, _ = agreed(
            self._parts,
            self._progress,
            "job.note",
            lambda members: told_by_the_leader(control, members, text),
        )
        return self._notes.take(told, key)

    @property
    def notes(self) -> Mapping[str, Any]:
        """What was noted, by name: equal on all living ranks, and part of `state_dict`. A copy."""
        return self._notes.to_dict()


def agreed(
    parts: Parts,
    progress: Progress,
    where: str,
    attempt: Callable[[Membership], T | None],
) -> tuple[T, Membership]:
    """Attempt something among the living until all who live have it; repair in between.

    Collective over the living ranks, between the steps. All of them return what came out of the
    same attempt: only the agreement after it makes its outcome common.

    Args:
        parts: Of the job.
        progress: Of the job.
        where: What this is, for the guard's message should it take too long.
        attempt: Called with those who take part; returns None where a message of it failed.

    Returns:
        What the attempt that stands returned here, and who took part in it.

    Raises:
        UsageError: The step in progress is not committed.
        WorkloadPolicyError, ReplicaCondemnedError: As `repair` does.
    """
    control = parts.control
    if progress.computing:
        raise UsageError(
            f"{where}() inside step {progress.plan.step}: call it between the steps, once the loop "
            "over the step's microbatches has ended"
        )
    if progress.broken_in is not None:
        repair(parts, progress)
    while True:
        control.beat(f"{where} before step {progress.plan.step}")
        members = control.membership
        result = attempt(members)
        agreement = control.agree(result is not None)
        if not (agreement.flag and agreement.all_alive):
            repair(parts, progress, detect_seconds=agreement.seconds)
        if agreement.flag:
            # Also where somebody has died since: every living rank holds the result of all of them.
            assert result is not None
            return result, members

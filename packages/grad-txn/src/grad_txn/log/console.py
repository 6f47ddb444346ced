"""What a person sees of a run.

One line a step, and a line that stands out for every failure and what was decided.
"""

from collections.abc import Mapping, Sequence

from grad_txn.log.lines import CommitLine, FailureLine

__all__ = ["Console"]


class Console:
    """Prints a job's steps and failures; a `grad_txn.log.observer.Observer`.

    Args:
        replicas: Replicas that the run was started with, which the living are compared to.
    """

    def __init__(self, *, replicas: int) -> None:
        self._replicas = replicas

    def step(self, line: CommitLine) -> None:
        """Print one line: loss, replicas, epoch, microbatches."""
        # A job that does not say how many tokens a microbatch has counts none.
        speed = f"  {line.tokens / line.seconds:,.0f} tokens/s" if line.tokens else ""
        print(
            f"step {line.step:4d}  loss {line.loss:.4f}  norm {line.grad_norm:.3f}"
            f"  replicas {line.living}/{self._replicas}  epoch {line.epoch}"
            f"  microbatches {line.total}{' (extended)' if line.boundary else ''}"
            f"  {line.seconds:.2f} s{speed}",
            flush=True,
        )

    def failure(self, line: FailureLine, *, seconds: float) -> None:
        """Print who was lost, and what the survivors do about it."""
        lost = ", ".join(map(str, line.failed)) or "none"
        print(
            f"  !! step {line.step}: lost replica {lost} -> epoch {line.epoch},"
            f" {_decided(line)}"
            f" (repaired {1e3 * seconds:.0f} ms after it was noticed)",
            flush=True,
        )


def _decided(line: FailureLine) -> str:
    counted = line.recounted
    masked = _shares(counted, "microbatches of redundant stacks count instead") if counted else ""
    if line.extra_ids:
        patched = f"policy boundary, {_shares(line.extra_ids, 'extra microbatches')}"
        return f"{patched}, {masked}" if masked else patched
    if masked:
        return masked
    if line.promoted:
        return "; ".join(
            f"spare {spare} takes the place of {dead}" for dead, spare in line.promoted.items()
        )
    return "the gradients are reduced again"


def _shares(work: Mapping[int, Sequence[int]], kind: str) -> str:
    """Say how many microbatches there are, and on which replicas."""
    total = sum(map(len, work.values()))
    each = ", ".join(f"{replica}: {len(ids)}" for replica, ids in work.items())
    return f"{total} {kind} ({each})"

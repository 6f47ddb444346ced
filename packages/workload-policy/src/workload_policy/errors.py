"""Errors of this package, all of them `WorkloadPolicyError`.

What a caller got wrong is also a `ValueError`, so code that knows nothing of this package can catch
it.
"""

__all__ = [
    "LayoutError",
    "LedgerError",
    "NoSurvivorsError",
    "PlanError",
    "PolicyError",
    "ScheduleError",
    "TableError",
    "WorkloadPolicyError",
]


class WorkloadPolicyError(Exception):
    """Base of everything this package raises on purpose."""


class LayoutError(WorkloadPolicyError, ValueError):
    """A shape that no work can be shared out over, such as zero replicas."""


class TableError(WorkloadPolicyError, ValueError):
    """A table of survivors that does not fit the plan it is meant for."""


class PlanError(WorkloadPolicyError, ValueError):
    """A plan that is damaged, of another policy, or not at the point it is used for."""


class LedgerError(WorkloadPolicyError, ValueError):
    """A microbatch counted twice, skipped, or lost; `step` is where it showed.

    Attributes:
        step: The step whose entry or plan did not fit.
    """

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


class ScheduleError(WorkloadPolicyError, ValueError):
    """A failure or a join that cannot happen, such as a replica dying twice."""


class PolicyError(WorkloadPolicyError, ValueError):
    """A policy that cannot be loaded: no such name, module or file, or something wrong in it."""


class NoSurvivorsError(WorkloadPolicyError, RuntimeError):
    """Nobody is left to do the work of this step.

    Attributes:
        step: The step that nobody can finish.
        failed: Ids of the replicas that were the last to go, sorted.
    """

    def __init__(self, *, step: int, failed: tuple[int, ...]) -> None:
        some = ", ".join(map(str, failed[:8])) + (", ..." if len(failed) > 8 else "")
        super().__init__(
            f"no replica survives step {step}: the last {len(failed)} ({some}) are gone,"
            " restart from a checkpoint"
        )
        self.step = step
        self.failed = failed

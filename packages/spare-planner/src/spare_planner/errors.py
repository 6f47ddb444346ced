"""Errors of this package, all of them `PlannerError`.

What a caller got wrong is also a `ValueError`, so code that knows nothing of this package can catch
it.
"""

from workload_policy import WorkloadPolicyError

__all__ = [
    "GroupError",
    "PlacementError",
    "PlannerError",
    "QuantityError",
    "StaleError",
    "WipeOutError",
]


class PlannerError(Exception):
    """Base of everything this package raises on purpose."""


class PlacementError(PlannerError, ValueError):
    """A number of groups, a redundancy or a construction that do not go together."""


class GroupError(PlannerError, ValueError):
    """A group that does not exist, or is not in the state the call needs."""


class QuantityError(PlannerError, ValueError):
    """A quantity outside the range in which a formula or a simulation means anything."""


class StaleError(PlannerError, RuntimeError):
    """A result was asked for an order that has changed since."""


class WipeOutError(PlannerError, WorkloadPolicyError, RuntimeError):
    """A shard type has lost all its hosts: only a restart from a checkpoint brings it back.

    Attributes:
        lost: The types without a living host, sorted.
        step: The training step that cannot be finished; None outside of training.
    """

    def __init__(self, *, lost: tuple[int, ...], step: int | None = None) -> None:
        some = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
        where = "" if step is None else f" in step {step}"
        super().__init__(
            f"wipe-out{where}: no living group hosts shard type{'s' * (len(lost) > 1)} {some};"
            " restart from a checkpoint"
        )
        self.lost = lost
        self.step = step

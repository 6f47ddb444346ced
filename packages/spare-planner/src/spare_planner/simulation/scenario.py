"""What is simulated: a job on a cluster, in seconds."""

import math
from dataclasses import dataclass, fields

from spare_planner.errors import QuantityError

__all__ = ["Scenario"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A training job and what its parts take.

    The defaults are the SPARe paper's for 600 groups of 1,000 GPUs.

    Attributes:
        groups: N, model-parallel groups that hold a whole model each: what lives or dies.
        steps: Optimizer steps to commit.
        stack_seconds: Compute of one stack (the share of a step's batch that one of N groups has
            when nothing is redundant).
        allreduce_seconds: Sum of the gradients over all groups.
        checkpoint_seconds: What a checkpoint holds the job up.
        checkpoint_every: Committed steps from one checkpoint to the next.
        restart_seconds: From a wipe-out to the first step after it, on all groups.
        shrink_seconds: Repair of the communicator after a failure.
        detection_seconds: From a failure to the moment at which it is known.
        jitter: Standard deviation of the time of one stack on one group, relative to its mean. A
            step takes as long as its slowest group.
        restart_below: Restart on purpose, right after a checkpoint, when a smaller share of the
            groups than this is alive; 0 for never.
        repair_seconds: How long after its failure a group can come back without a restart; None if
            it cannot.
        rejoin_at_checkpoints: Groups come back at checkpoints, and not at every step.
        job_mtbf: Mean time between failures that end the whole job whatever is redundant (its
            storage, its software, the power), exponential; None for none.
        timers: The restart of the authors' simulator: every group restarts on a timer of its own,
            again if it fails meanwhile, all wait for the last one, failure clocks go on running,
            and a failed sum is not repeated when nothing has to be computed again. Otherwise a
            restart takes `restart_seconds`, clocks stand still meanwhile, and a sum that failed is
            repeated.
        give_up: Stop when this many times the failure-free time has passed.
    """

    groups: int
    steps: int = 10_000
    stack_seconds: float = 64.0
    allreduce_seconds: float = 6.0
    checkpoint_seconds: float = 60.0
    checkpoint_every: int = 20
    restart_seconds: float = 3600.0
    shrink_seconds: float = 0.1
    detection_seconds: float = 0.0
    jitter: float = 0.05
    restart_below: float = 0.0
    repair_seconds: float | None = None
    rejoin_at_checkpoints: bool = True
    job_mtbf: float | None = None
    timers: bool = False
    give_up: float = 200.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise QuantityError(f"{_spoken(field.name)} must be a finite number, got {value}")
        for name in ("groups", "steps", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise QuantityError(
                    f"{_spoken(name)} must be at least 1, got {getattr(self, name)}"
                )
        for name in ("stack_seconds", "job_mtbf", "give_up"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise QuantityError(f"{_spoken(name)} must be above 0, got {getattr(self, name)}")
        for name in (
            "allreduce_seconds",
            "checkpoint_seconds",
            "restart_seconds",
            "shrink_seconds",
            "detection_seconds",
            "jitter",
            "repair_seconds",
        ):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise QuantityError(f"{_spoken(name)} must not be negative: {getattr(self, name)}")
        if not 0 <= self.restart_below < 1:
            raise QuantityError(
                f"restart below must be a share of the groups in [0, 1), got {self.restart_below}"
            )

    @property
    def ideal_seconds(self) -> float:
        """T0, the run without failures, redundancy, checkpoints or stragglers."""
        return self.steps * (self.stack_seconds + self.allreduce_seconds)


def _spoken(name: str) -> str:
    return name.replace("_", " ")

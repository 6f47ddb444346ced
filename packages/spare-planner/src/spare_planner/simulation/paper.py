"""The setting of the SPARe paper, and of its authors' simulator: 600,000 H100 in N groups.

Sources: the paper's evaluation and the parameters of its published simulator. The interval between
checkpoints is the paper's (Saxena et al.), in steps of 68 s a stack, with its own S and mu; for
replication it takes the mu of SPARe as well.
"""

from spare_planner.intervals import checkpoint_interval
from spare_planner.simulation.clocks import FailureModel
from spare_planner.theory import endurable_failures, stacks_per_step_paper

__all__ = [
    "ALLREDUCE_SECONDS",
    "CHECKPOINT_SECONDS",
    "GPUS",
    "JITTER",
    "MTBF",
    "RESTART_SECONDS",
    "SHRINK_SECONDS",
    "STACK_SECONDS",
    "STEPS",
    "WEIBULL_SHAPE",
    "checkpoint_every",
    "failure_model",
]

GPUS = 600_000
STEPS = 10_000
STACK_SECONDS = 64.0
"""2.56e16 flop a stack at 400 Tflop/s."""
CHECKPOINT_SECONDS = 2e13 / 340e9
"""10T parameters of 2 bytes to storage of 340 GB/s."""
RESTART_SECONDS = 3600.0
SHRINK_SECONDS = 0.1
JITTER = 0.05
MTBF = 300.0
"""Of the whole system."""
WEIBULL_SHAPE = 0.78
ALLREDUCE_SECONDS = {200: 2.0, 600: 6.0, 1000: 10.0}
"""By number of groups."""
_SCALE_SECONDS = {200: 51_979.0, 600: 155_937.0, 1000: 259_894.0}
_STEP_OF_A_STACK = 68.0


def failure_model(groups: int) -> FailureModel:
    """Return the paper's Weibull clocks; for other numbers of groups, of the same system MTBF."""
    model = FailureModel.of_system(MTBF, groups=groups, shape=WEIBULL_SHAPE)
    return FailureModel(
        scale=_SCALE_SECONDS.get(groups, model.scale),
        shape=WEIBULL_SHAPE,
        aged=False,
        renewed_at_death=True,
    )


def checkpoint_every(
    strategy: str,
    groups: int,
    redundancy: int,
    *,
    mtbf: float = MTBF,
    save: float = CHECKPOINT_SECONDS,
    restart: float = RESTART_SECONDS,
) -> int:
    """Return the steps between two checkpoints.

    >>> [checkpoint_every("spare", *shape) for shape in [(200, 9), (600, 8), (1000, 9)]]
    [15, 23, 30]
    """
    between = float(endurable_failures(groups, redundancy)) * mtbf
    interval = float(checkpoint_interval(save=save, mtbf=between, restart=restart))
    stacks = redundancy if strategy == "replication" else stacks_per_step_paper(groups, redundancy)
    return max(1, round(interval / (_STEP_OF_A_STACK * float(stacks))))

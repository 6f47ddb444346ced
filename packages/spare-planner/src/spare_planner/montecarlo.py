"""The theory put to the test: random failures until the wipe-out, reordered for real.

Each trial kills groups one at a time, in random order, on the placement that `place` chooses, and
follows what `Stacks` makes of it. What it measures are the quantities of `spare_planner.theory`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spare_planner.errors import QuantityError
from spare_planner.placement import Placement
from spare_planner.reorder import Stacks

__all__ = ["MonteCarlo", "run_trials"]


@dataclass(frozen=True, kw_only=True, eq=False)
class MonteCarlo:
    """What was measured, one number a trial.

    Attributes:
        masked: Failures before the fatal one.
        stacks: Mean number of stacks over the states between failures, before the fatal one.
        patches: Share of the failures that took a type nobody else computed; the fatal one is among
            them.
        moves: Mean number of moves of a failure that was not fatal.
        above_bound: Share of the states with more stacks than the lower bound c(k).
    """

    masked: NDArray[np.float64]
    stacks: NDArray[np.float64]
    patches: NDArray[np.float64]
    moves: NDArray[np.float64]
    above_bound: NDArray[np.float64]


def run_trials(placement: Placement, *, trials: int, seed: int = 0) -> MonteCarlo:
    """Kill groups at random until the wipe-out, many times over.

    Raises:
        QuantityError: There are fewer than two trials, or the seed is negative.
    """
    if trials < 2:
        raise QuantityError(f"trials must be at least 2, got {trials}")
    if seed < 0:
        raise QuantityError(f"seed must not be negative, got {seed}")
    stacks = Stacks(placement)
    rows = []
    for rng in np.random.default_rng(seed).spawn(trials):
        stacks.reset()
        rows.append(_trial(stacks, rng.permutation(placement.groups).tolist()))
    masked, depth, patches, moves, above = np.asarray(rows, dtype=np.float64).T
    return MonteCarlo(masked=masked, stacks=depth, patches=patches, moves=moves, above_bound=above)


def _trial(stacks: Stacks, victims: list[int]) -> tuple[float, float, float, float, float]:
    groups = stacks.placement.groups
    depths = patches = moves = above = 0
    for masked, victim in enumerate(victims):
        depths += stacks.depth
        above += stacks.depth > -(-groups // (groups - masked))
        change = stacks.fail([victim])
        patches += not change.covered
        moves += change.moves
        if change.wiped_out:
            states = masked + 1
            return masked, depths / states, patches / states, moves / max(masked, 1), above / states
    raise AssertionError("with nobody left no type has a host")

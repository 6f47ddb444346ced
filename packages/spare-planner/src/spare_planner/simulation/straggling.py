"""How long the slowest of many groups takes."""

import math

import numpy as np
from scipy.special import ndtri

__all__ = ["Straggling"]

_BLOCK = 4096  # draws made at a time: one by one they would dominate the simulation


class Straggling:
    """Times of the slowest group, in units of the mean time of a stack.

    A stack takes 1 +- jitter (normal) on each group. The slowest of n groups is drawn as one number
    and not n: with U uniform, U^(1/n) has the distribution of the largest of n uniforms.

    Args:
        jitter: Standard deviation of the time of one stack, relative to its mean.
        rng: Source of the draws.
    """

    def __init__(self, jitter: float, *, rng: np.random.Generator) -> None:
        self._jitter = jitter
        self._rng = rng
        self._draws: list[float] = []

    def slowest(self, groups: int, *, stacks: float, draws: float) -> float:
        """Return the time of the slowest group.

        Args:
            groups: How many groups take part.
            stacks: How many stacks each computes.
            draws: How many independent parts the time is made of.
        """
        if not self._jitter:
            return stacks
        if not self._draws:
            # -log(U) is exponential, and small where U is close to 1.
            self._draws = self._rng.exponential(size=_BLOCK).tolist()
        # 1 - U^(1/n), the upper tail, keeps its digits where n is large.
        tail = -math.expm1(-self._draws.pop() / groups)
        deviation = -float(ndtri(tail))
        longest = stacks * (1 + self._jitter * deviation / math.sqrt(draws))
        return longest if longest > 0 else 0.0

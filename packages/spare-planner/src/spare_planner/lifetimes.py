"""How long units live: what a failure log shows of it, and the Weibull that fits best.

Each unit is taken to fail and be repaired over and over, independently of the others and for long
before watching began. So the log is a window on a stationary renewal process: the time from the
beginning to a unit's first failure is a rest of a lifetime, the time from a repair to the next
failure a whole one, the last one is cut off, and a unit that never failed is evidence too. The
Weibull is fitted by maximum likelihood to all four, with a profile likelihood's interval for its
shape.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from spare_planner.failure_log import FailureLog

__all__ = [
    "Lifetimes",
    "Range",
    "fit_weibull",
    "lifetimes",
    "log_likelihood",
    "misfit",
    "unequal_log_likelihood",
]

Numbers = NDArray[np.float64]

_SHAPES = (0.1, 10.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An estimate with its 95% interval.

    Attributes:
        value: The estimate.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Range":
        """Return it times a factor."""
        return Range(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def to_dict(self) -> dict[str, float | None]:
        """Return the three as JSON-ready numbers, None where one is infinite."""
        return {
            name: value if math.isfinite(value) else None
            for name, value in (("value", self.value), ("low", self.low), ("high", self.high))
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Lifetimes:
    """Times in service, in seconds, by what was seen of them.

    Attributes:
        rests: From the beginning to a unit's first failure.
        whole: From a repair to the next failure.
        cut: From a repair to the end of watching.
        never: The whole time of units that did not fail.
    """

    rests: Numbers
    whole: Numbers
    cut: Numbers
    never: Numbers

    @property
    def failures(self) -> int:
        """How many failures there were."""
        return len(self.rests) + len(self.whole)

    @property
    def service(self) -> float:
        """All time in service, over all units."""
        return float(sum(part.sum() for part in (self.rests, self.whole, self.cut, self.never)))


def lifetimes(log: FailureLog) -> Lifetimes:
    """Return the times in service that a log tells of.

    Faults of a unit that overlap are one failure. A time shorter than what the log can tell apart
    counts as that.
    """
    rests, whole, cut, never = [], [], [], []
    for outages in log.outages():
        if not outages:
            never.append(log.seconds)
            continue
        rests.append(max(outages[0][0], log.resolution))
        for (_, back), (start, _) in itertools.pairwise(outages):
            whole.append(max(start - back, log.resolution))
        if outages[-1][1] < log.seconds:
            cut.append(log.seconds - outages[-1][1])
    return Lifetimes(
        rests=np.asarray(rests, dtype=np.float64),
        whole=np.asarray(whole, dtype=np.float64),
        cut=np.asarray(cut, dtype=np.float64),
        never=np.asarray(never, dtype=np.float64),
    )


def log_likelihood(times: Lifetimes, shape: float, scale: float) -> float:
    """Return the log-likelihood of a stationary Weibull renewal process seen through a window.

    A rest has the density S(t)/mean, and outlasts the window with the probability Q(1/k, (t/s)^k),
    Q the regularised upper incomplete gamma function.
    """
    mean = scale * special.gamma(1 + 1 / shape)

    def hazard(t: Numbers) -> Numbers:
        """Return -log S(t)."""
        return np.asarray((t / scale) ** shape)

    whole = times.whole
    never = np.maximum(special.gammaincc(1 / shape, hazard(times.never)), 1e-300)
    return float(
        -hazard(times.rests).sum()
        - len(times.rests) * math.log(mean)
        + (math.log(shape / scale) + (shape - 1) * np.log(whole / scale) - hazard(whole)).sum()
        - hazard(times.cut).sum()
        + np.log(never).sum()
    )


def fit_weibull(times: Lifetimes) -> tuple[float, Range]:
    """Return the scale in seconds and the shape of the most likely Weibull.

    The shape's interval holds all shapes whose best likelihood is within 1.92 of the best (the
    profile likelihood's 95%).
    """
    mean = times.service / times.failures

    def best_scale(shape: float) -> tuple[float, float]:
        middle = math.log(mean / math.gamma(1 + 1 / shape))
        found = optimize.minimize_scalar(
            lambda log_scale: -log_likelihood(times, shape, math.exp(log_scale)),
            bounds=(middle - 4, middle + 4),
            method="bounded",
            options={"xatol": 1e-4},
        )
        return math.exp(float(found.x)), -float(found.fun)

    def loss(log_shape: float) -> float:
        return -best_scale(math.exp(log_shape))[1]

    least, most = (math.log(shape) for shape in _SHAPES)
    found = optimize.minimize_scalar(
        loss, bounds=(least, most), method="bounded", options={"xatol": 1e-3}
    )
    top, worst = float(found.x), float(found.fun) + stats.chi2.ppf(0.95, 1) / 2

    def edge(towards: float) -> float:
        if loss(towards) < worst:
            return math.exp(towards)
        return math.exp(
            optimize.brentq(
                lambda x: loss(x) - worst, min(top, towards), max(top, towards), xtol=1e-3
            )
        )

    shape = math.exp(top)
    return best_scale(shape)[0], Range(value=shape, low=edge(least), high=edge(most))


def misfit(times: Lifetimes, shape: float, scale: float) -> float:
    """Return the largest distance of a Weibull from what was seen between repairs and failures.

    What was seen is the estimate of Kaplan and Meier, so that times cut off count as such.
    """
    if not len(times.whole):
        return 0.0
    seen = stats.ecdf(stats.CensoredData(uncensored=times.whole, right=times.cut)).sf
    fitted = np.exp(-((seen.quantiles / scale) ** shape))
    # Where hardly anybody is left, the estimate jumps about.
    enough = (
        len(times.whole)
        + len(times.cut)
        - np.searchsorted(np.sort(np.concatenate([times.whole, times.cut])), seen.quantiles)
        >= 10
    )
    return float(np.abs(seen.probabilities - fitted)[enough].max(initial=0.0))


def unequal_log_likelihood(log: FailureLog) -> float:
    """Return the best log-likelihood of units that do not age but are not equal.

    Each unit fails at a rate of its own, and rates are gamma distributed: with shape a and rate b,
    n failures in s seconds of service have the density ``G(a+n)/G(a) b^a / (b+s)^(a+n)``. As many
    parameters as a Weibull, of the same data, so the two can be compared as they stand.
    """
    outages = log.outages()
    counts = np.asarray([len(mine) for mine in outages], dtype=np.float64)
    service = np.asarray(
        [log.seconds - sum(min(b, log.seconds) - a for a, b in mine) for mine in outages]
    )
    service = np.maximum(service, log.resolution)
    mean = counts.sum() / service.sum()

    def loss(log_a: float) -> float:
        a = math.exp(log_a)
        b = a / mean
        terms = (
            special.gammaln(a + counts)
            - special.gammaln(a)
            + a * math.log(b)
            - (a + counts) * np.log(b + service)
        )
        return -float(terms.sum())

    return -float(optimize.minimize_scalar(loss, bounds=(-5, 10), method="bounded").fun)

"""What a failure log says about a cluster, and what it does not.

Each unit is taken to fail and be repaired over and over, independently of the others and for long
before watching began. So the log is a window on a stationary renewal process: the time from the
beginning to a unit's first failure is a rest of a lifetime, the time from a repair to the next
failure a whole one, the last one is cut off, and a unit that never failed is evidence too. The
Weibull is fitted by maximum likelihood to all four. Intervals: profile likelihood for the shape,
and counts with their overdispersion for the mean time between failures.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from spare_planner.durations import counted
from spare_planner.failure_log import FailureLog

__all__ = ["Fit", "Lifetimes", "Range", "fit_log", "fit_weibull", "lifetimes", "log_likelihood"]

Numbers = NDArray[np.float64]

_FEW = 30  # failures below which little can be said
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
        """Return it as JSON has it: no infinities."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """What a log says.

    Attributes:
        log: The log.
        gpus_per_unit: GPUs of a unit.
        faults: How many faults it tells of.
        failures: How many are left when overlapping faults of a unit are one.
        mtbf: Mean seconds between two failures of the cluster of the log, in calendar time.
        dispersion: How much more the counts scatter than those of independent failures would (1):
            the larger of the scatter over units and that over weeks.
        scale: Scale of the Weibull of one unit's time to failure, in seconds.
        shape: Its shape.
        repair: Mean seconds of a repair; None if the log tells of none.
        repair_median: Half are shorter than this.
        repair_p90: Nine in ten are shorter than this.
        within: Failures so close, in seconds, count as simultaneous.
        simultaneous: Share of the failures that came with another one so close.
        by_chance: The share that independent failures at the same rate would show.
        largest: The most failures in one such bunch.
        bunches: Failures in a bunch -> how many such bunches; singles are among them.
        same_domain: Share of the pairs in a bunch that share a domain; None without domains.
        doubts: What the log does not carry, in words.
        kinds: Kinds of faults, the most frequent first, with their numbers.
    """

    log: FailureLog
    gpus_per_unit: int
    faults: int
    failures: int
    mtbf: Range
    dispersion: float
    scale: float
    shape: Range
    repair: Range | None
    repair_median: float | None
    repair_p90: float | None
    within: float
    simultaneous: float
    by_chance: float
    largest: int
    bunches: dict[int, int]
    same_domain: float | None
    doubts: tuple[str, ...]
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def unit_mtbf(self) -> Range:
        """Mean seconds between failures of one unit."""
        return self.mtbf.scaled(self.log.units)

    @property
    def gpu_mtbf(self) -> Range:
        """Mean seconds between failures of one GPU, each blamed for its share of its unit's."""
        return self.unit_mtbf.scaled(self.gpus_per_unit)

    def scaled_mtbf(self, gpus: int) -> Range:
        """Return the mean seconds between failures of a cluster of so many GPUs."""
        return self.gpu_mtbf.scaled(1 / gpus)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "log": self.log.name,
            "units": self.log.units,
            "gpus_per_unit": self.gpus_per_unit,
            "gpus": self.log.units * self.gpus_per_unit,
            "seconds": self.log.seconds,
            "faults": self.faults,
            "excluded": self.log.excluded,
            "failures": self.failures,
            "failed_units": len(self.log.names),
            "mtbf": self.mtbf.to_dict(),
            "unit_mtbf": self.unit_mtbf.to_dict(),
            "gpu_mtbf": self.gpu_mtbf.to_dict(),
            "dispersion": self.dispersion,
            "shape": self.shape.to_dict(),
            "scale": self.scale,
            "repair": None if self.repair is None else self.repair.to_dict(),
            "repair_median": self.repair_median,
            "repair_p90": self.repair_p90,
            "simultaneity": {
                "within": self.within,
                "share": self.simultaneous,
                "by_chance": self.by_chance,
                "largest": self.largest,
                "bunches": {str(size): count for size, count in self.bunches.items()},
                "same_domain": self.same_domain,
            },
            "kinds": self.kinds,
            "doubts": list(self.doubts),
        }


def fit_log(log: FailureLog, *, gpus_per_unit: int = 8, within: float = 60.0) -> Fit:
    """Estimate everything that a log says.

    Args:
        log: The log.
        gpus_per_unit: GPUs of a unit.
        within: Failures so close, in seconds, count as simultaneous.
    """
    times = lifetimes(log)
    starts = [[outage[0] for outage in outages] for outages in log.outages()]
    counts = np.asarray([len(mine) for mine in starts], dtype=np.float64)
    when = np.sort(np.concatenate([np.asarray(mine, dtype=np.float64) for mine in starts]))
    dispersion = max(1.0, _dispersion(counts), _dispersion(_weekly(when, log.seconds)))
    scale, shape = fit_weibull(times)
    repairs = np.asarray(
        [end - start for mine in log.outages() for start, end in mine if math.isfinite(end)]
    )
    bunches = _bunches(log, within)
    sizes = [len(bunch) for bunch in bunches]
    rate = times.failures / log.seconds
    fit = Fit(
        log=log,
        gpus_per_unit=gpus_per_unit,
        faults=len(log.faults),
        failures=times.failures,
        mtbf=_mtbf(log.seconds, times.failures, dispersion),
        dispersion=dispersion,
        scale=scale,
        shape=shape,
        repair=_mean(repairs),
        repair_median=float(np.median(repairs)) if len(repairs) else None,
        repair_p90=float(np.quantile(repairs, 0.9)) if len(repairs) else None,
        within=within,
        simultaneous=sum(size for size in sizes if size > 1) / sum(sizes),
        # Nobody within the time before and the time after.
        by_chance=-math.expm1(-2 * rate * within),
        largest=max(sizes),
        bunches={size: sizes.count(size) for size in sorted(set(sizes))},
        same_domain=_same_domain(log, bunches),
        doubts=(),
        kinds=_kinds(log),
    )
    return _with_doubts(fit, times, _dispersion(_weekly(when, log.seconds)))


def _mtbf(seconds: float, failures: int, dispersion: float) -> Range:
    """Return seconds / failures with the interval of an overdispersed count.

    A count that scatters d times as much as a Poisson one says as much as one d times smaller.
    """
    independent = failures / dispersion
    low, high = (
        stats.gamma.ppf(0.025, independent),
        stats.gamma.ppf(0.975, independent + 1),
    )
    return Range(
        value=seconds / failures,
        low=seconds / (float(high) * dispersion),
        high=seconds / (float(low) * dispersion) if low > 0 else math.inf,
    )


def _dispersion(counts: Numbers) -> float:
    """Return variance over mean of counts: 1 if they are Poisson."""
    if len(counts) < 2 or not counts.any():
        return 1.0
    return float(counts.var(ddof=1) / counts.mean())


def _weekly(when: Numbers, seconds: float) -> Numbers:
    weeks = int(seconds // (7 * 86_400))
    if weeks < 4:
        return np.zeros(0)
    counts, _ = np.histogram(when, bins=weeks, range=(0, weeks * 7 * 86_400))
    return counts.astype(np.float64)


def _mean(values: Numbers) -> Range | None:
    """Return the mean with a bootstrap interval: repairs have long tails."""
    if not len(values):
        return None
    mean = float(values.mean())
    if len(values) == 1:
        return Range(value=mean, low=0.0, high=math.inf)
    rng = np.random.default_rng(0)
    means = rng.choice(values, (2000, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Range(value=mean, low=float(low), high=float(high))


def _bunches(log: FailureLog, within: float) -> list[list[int]]:
    """Return the units that failed together: each within a time of the one before."""
    events = sorted((start, unit) for unit, mine in enumerate(log.outages()) for start, _ in mine)
    bunches: list[list[int]] = []
    last = -math.inf
    for start, unit in events:
        if start - last <= within:
            bunches[-1].append(unit)
        else:
            bunches.append([unit])
        last = start
    return bunches


def _same_domain(log: FailureLog, bunches: list[list[int]]) -> float | None:
    if not log.domains:
        return None
    pairs = [
        log.domains[one] == log.domains[other] != ""
        for bunch in bunches
        for index, one in enumerate(bunch)
        for other in bunch[index + 1 :]
    ]
    return sum(pairs) / len(pairs) if pairs else None


def _kinds(log: FailureLog) -> dict[str, int]:
    names = [fault.kind for fault in log.faults if fault.kind]
    counts = {name: names.count(name) for name in set(names)}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _with_doubts(fit: Fit, times: Lifetimes, over_weeks: float) -> Fit:
    """Add what the log does not carry."""
    log, doubts = fit.log, []
    if fit.failures < _FEW:
        doubts.append(
            f"only {counted(fit.failures, 'failure')}: the mean time between them is known to a"
            f" factor of {fit.mtbf.high / fit.mtbf.low:.1f}, the shape hardly at all"
        )
    if fit.shape.low <= 1 <= fit.shape.high:
        doubts.append(
            f"the shape's interval, {fit.shape.low:.2f} to {fit.shape.high:.2f}, has 1 in it: the"
            " log does not tell a Weibull from an exponential distribution"
        )
    elif fit.shape.value < 1:
        ahead = log_likelihood(times, fit.shape.value, fit.scale) - unequal_log_likelihood(log)
        if ahead < 3:
            doubts.append(
                f"a shape of {fit.shape.value:.2f} may say that some units are worse than others,"
                " and not that a repaired one soon fails again: unequal units that do not age"
                f" explain the log {'as well' if ahead > -3 else 'better'}"
            )
    off = misfit(times, fit.shape.value, fit.scale)
    if off > 0.05 + 1.36 / math.sqrt(max(1, len(times.whole))):
        doubts.append(
            f"times from a repair to the next failure are up to {off:.0%} of the units off the"
            " fitted Weibull: a replay of the log (simulate --trace) is closer to it than any shape"
        )
    if not len(times.whole):
        doubts.append("no unit failed twice: the shape rests on first failures only")
    elif log.seconds < 2 * fit.scale:
        doubts.append(
            f"watched for {log.seconds / 86_400:,.0f} days, less than twice a unit's"
            f" scale of {fit.scale / 86_400:,.0f} days: the tail of its lifetimes is extrapolated"
        )
    if over_weeks > 1.5:
        doubts.append(
            f"failures scatter {over_weeks:.1f} times as much over weeks as a steady rate would:"
            " it changed, or failures had causes in common; intervals are widened for it"
        )
    if not log.units_told:
        doubts.append(
            "the number of units watched is not known (--units): those that never failed are"
            " missing, so a unit seems worse than it is; the whole cluster's rate does not depend"
            " on it"
        )
    if len(log.names) == 1:
        doubts.append("all faults are of one unit: nothing can be said of how units differ")
    unended = sum(not math.isfinite(fault.end) for fault in log.faults)
    if unended:
        doubts.append(f"{counted(unended, 'fault')} without an end: repair times are of the others")
    if fit.simultaneous > 3 * fit.by_chance and fit.largest > 2:
        where = "" if log.domains else "; without racks or zones (domain) it does not say where"
        doubts.append(
            f"failures come together more often than independent ones"
            f" ({fit.simultaneous:.0%} and not {fit.by_chance:.1%} within {fit.within:.0f} s of"
            f" another): how such bunches grow with the cluster is not in the log{where}"
        )
    values = {name: getattr(fit, name) for name in fit.__dataclass_fields__}
    return Fit(**{**values, "doubts": tuple(doubts)})

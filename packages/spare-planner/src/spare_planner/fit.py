"""What a failure log says about a cluster, and what it does not.

Lifetimes of units are fitted in `spare_planner.lifetimes`. Here are the mean time between failures,
with an interval of counts and their overdispersion, repairs, failures that come together, and the
doubts that the log leaves.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from spare_planner.durations import counted
from spare_planner.failure_log import FailureLog
from spare_planner.lifetimes import (
    Lifetimes,
    Range,
    fit_weibull,
    lifetimes,
    log_likelihood,
    misfit,
    unequal_log_likelihood,
)

__all__ = ["Fit", "fit_log"]

Numbers = NDArray[np.float64]

_FEW = 30  # failures below which little can be said


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
        """Return everything as a JSON-ready dictionary."""
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

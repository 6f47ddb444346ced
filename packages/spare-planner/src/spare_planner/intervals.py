"""Checkpoints and time to train, in closed form.

All times are in one unit, seconds say. *m* is the mean time between two failures of the whole
system with all groups alive. What ends in a restart is a wipe-out, on average every *T_f*; between
two restarts a checkpoint that takes *T_s* is saved every *T_c*, the save included, and a restart
takes *T_r*. Each function names its source, as in `spare_planner.theory`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from spare_planner.errors import QuantityError
from spare_planner.theory import endurable_failures, stacks_per_step_paper

__all__ = [
    "availability",
    "checkpoint_interval",
    "daly_interval",
    "expected_maximum",
    "normalized_time",
    "rejoin_interval",
    "rejoin_overhead",
    "straggler_step",
    "time_between_wipe_outs",
    "young_interval",
]

Numbers = NDArray[np.float64]


def checkpoint_interval(*, save: ArrayLike, mtbf: ArrayLike, restart: ArrayLike) -> Numbers:
    """Return T_c*, the interval with the highest `availability`.

    ``T_s + sqrt(T_s^2 + 2 T_s (T_f + T_r))``; Young's interval when T_s << T_r << T_f. Source:
    Saxena, Hukerikar, Blaz, Raj (arXiv 2410.18124, 2024), which the paper uses.

    >>> checkpoint_interval(save=60, mtbf=76_200, restart=3600).round().tolist()
    3155.0

    Args:
        save: T_s.
        mtbf: T_f, mean time between failures that end in a restart; mu * m for SPARe.
        restart: T_r.
    """
    s, f, r = _times(save=save, mtbf=mtbf, restart=restart)
    return np.asarray(s + np.sqrt(s * s + 2 * s * (f + r)))


def young_interval(*, save: ArrayLike, mtbf: ArrayLike) -> Numbers:
    """Return ``sqrt(2 T_s T_f)``, the work between two saves. Source: Young (1974)."""
    s, f = _times(save=save, mtbf=mtbf)
    return np.asarray(np.sqrt(2 * s * f))


def daly_interval(*, save: ArrayLike, mtbf: ArrayLike, restart: ArrayLike) -> Numbers:
    """Return ``sqrt(2 T_s (T_f + T_r)) - T_s``, the work between two saves. Source: Daly (2003)."""
    s, f, r = _times(save=save, mtbf=mtbf, restart=restart)
    return np.asarray(np.sqrt(2 * s * (f + r)) - s)


def availability(
    *, interval: ArrayLike, save: ArrayLike, mtbf: ArrayLike, restart: ArrayLike
) -> Numbers:
    """Return the share of time that is spent on work that is kept.

    ``(1 - T_s/T_c) T_f / (T_f + T_r + T_c/2)``: saves, restarts, and half an interval of work that
    is done again after each. `checkpoint_interval` is where it is highest. Source: derived from
    that interval.

    Args:
        interval: T_c, from the start of one save to the next.
        save: T_s.
        mtbf: T_f.
        restart: T_r.
    """
    c, s, f, r = _times(interval=interval, save=save, mtbf=mtbf, restart=restart)
    if (c < s).any():
        raise QuantityError("the interval includes the save, so it cannot be shorter than that")
    return np.asarray((1 - s / c) * f / (f + r + c / 2))


def time_between_wipe_outs(
    groups: ArrayLike, failures: ArrayLike, *, mtbf: ArrayLike, dead_fail: bool = False
) -> Numbers:
    """Return T_f, the mean time until that many failures have happened.

    The dead do not fail again, so failures come slower and slower:
    ``T_f = m N (H_N - H_(N-mu)) ~ -m N ln(1 - mu/N)``, where H are harmonic numbers. Source:
    derived; the paper has ``mu * m``, which `dead_fail` gives.

    Args:
        groups: N.
        failures: mu, as `endurable_failures` or `masked_failures` give it.
        mtbf: m, mean time between two failures with all N groups alive.
        dead_fail: Take the rate of failures to stay what it was.
    """
    (m,) = _times(mtbf=mtbf)
    n, mu = np.asarray(groups, dtype=np.float64), np.asarray(failures, dtype=np.float64)
    if ((mu < 0) | (mu > n)).any():
        raise QuantityError("failures must be from 0 to the number of groups")
    if dead_fail:
        return np.asarray(mu * m)
    return np.asarray(m * n * (special.digamma(n + 1) - special.digamma(n - mu + 1)))


def normalized_time(
    groups: ArrayLike,
    redundancy: ArrayLike,
    *,
    mtbf: ArrayLike,
    save: ArrayLike,
    restart: ArrayLike,
    stacks: ArrayLike | None = None,
) -> Numbers:
    """Return J = S / A*, time to train over the time of a run without failures.

    With a checkpoint every `checkpoint_interval` and T_f = mu * m. Minimise it over r. Source:
    paper.

    >>> r = np.arange(2, 13)
    >>> j = normalized_time(600, r, mtbf=300, save=60, restart=3600)
    >>> int(r[j.argmin()])
    10

    Args:
        groups: N.
        redundancy: r.
        mtbf: m.
        save: T_s.
        restart: T_r.
        stacks: S; `stacks_per_step_paper`, without patches, if None.
    """
    m, s, r = _times(mtbf=mtbf, save=save, restart=restart)
    if stacks is None:
        stacks = stacks_per_step_paper(groups, redundancy)
    between = endurable_failures(groups, redundancy) * m
    interval = checkpoint_interval(save=s, mtbf=between, restart=r)
    best = availability(interval=interval, save=s, mtbf=between, restart=r)
    return np.asarray(np.asarray(stacks, dtype=np.float64) / best)


def expected_maximum(groups: ArrayLike) -> Numbers:
    """Return z_N, the expected largest of N standard normal numbers.

    ``int_0^inf (1 - F^N) dx - int_-inf^0 F^N dx`` with F the normal distribution. Source: textbook.

    >>> expected_maximum([200, 600, 1000]).round(2).tolist()
    [2.75, 3.09, 3.24]
    """
    n = np.asarray(groups, dtype=np.float64)
    if (n < 1).any():
        raise QuantityError("groups must be at least 1")
    x = np.linspace(0, 10, 1001)
    power = n[..., None] * special.log_ndtr(np.stack([-x, x])[:, *([None] * n.ndim)])
    integrand = -np.expm1(power[1]) - np.exp(power[0])
    ends = (integrand[..., 0] + integrand[..., -1]) / 2
    return np.asarray((integrand.sum(axis=-1) - ends) * x[1])


def straggler_step(
    groups: ArrayLike,
    stacks: ArrayLike,
    *,
    stack: ArrayLike,
    allreduce: ArrayLike,
    jitter: ArrayLike = 0.0,
) -> Numbers:
    """Return the mean time of a step that waits for the slowest of N groups.

    ``t (S + sigma z_N sqrt(S)) + T_a``, where each stack takes t times a normal number of mean 1
    and deviation sigma, and z_N is `expected_maximum`. Source: derived.

    Args:
        groups: N.
        stacks: S.
        stack: t, the mean time to compute one stack.
        allreduce: T_a.
        jitter: sigma, relative.
    """
    t, a, sigma = _times(stack=stack, allreduce=allreduce, jitter=jitter)
    s = np.asarray(stacks, dtype=np.float64)
    return np.asarray(t * (s + sigma * expected_maximum(groups) * np.sqrt(s)) + a)


def rejoin_interval(
    groups: ArrayLike, redundancy: ArrayLike, *, mtbf: ArrayLike, save: ArrayLike
) -> Numbers:
    """Return the best checkpoint interval when the dead rejoin at every checkpoint.

    ``(T_s (r+1) / (r^2 N lambda^r))^(1/(r+1))`` with lambda = 1/(m N), where `rejoin_overhead` is
    least. Source: derived, in the manner of Benoit, Herault, Le Fevre, Robert (SC 2019).
    """
    m, s = _times(mtbf=mtbf, save=save)
    n, r = np.asarray(groups, dtype=np.float64), np.asarray(redundancy, dtype=np.float64)
    return np.asarray((s * (r + 1) / (r * r * n) * (m * n) ** r) ** (1 / (r + 1)))


def rejoin_overhead(
    groups: ArrayLike,
    redundancy: ArrayLike,
    *,
    interval: ArrayLike,
    mtbf: ArrayLike,
    save: ArrayLike,
) -> Numbers:
    """Return the share of time lost to saves and wipe-outs when the dead rejoin at checkpoints.

    ``T_s/T + r/(r+1) N (T/(m N))^r``: a wipe-out loses r/(r+1) of an interval on average. Without
    the restart itself, for intervals much shorter than m N. Source: as `rejoin_interval`.
    """
    t, m, s = _times(interval=interval, mtbf=mtbf, save=save)
    n, r = np.asarray(groups, dtype=np.float64), np.asarray(redundancy, dtype=np.float64)
    return np.asarray(s / t + r / (r + 1) * n * (t / (m * n)) ** r)


def _times(**times: ArrayLike) -> list[Numbers]:
    """Return the times as arrays, all of them checked.

    Raises:
        QuantityError: One is negative, or no number.
    """
    arrays = []
    for name, value in times.items():
        array = np.asarray(value, dtype=np.float64)
        if not (array >= 0).all():
            raise QuantityError(f"{name} must not be negative, got {array.min():g}")
        arrays.append(array)
    return arrays

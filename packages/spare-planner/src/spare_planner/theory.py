"""SPARe in closed form: how many failures, how many stacks, which redundancy.

N groups host r of N shard types each, k of them have failed, one at a time and any one as likely as
another. All functions take numbers or arrays and broadcast them. Each names its source: *paper* is
SPARe (arXiv 2603.00357), *derived* means derived for this package and compared with its own Monte
Carlo (`spare_planner.montecarlo`). Checkpoints and time are in `spare_planner.intervals`.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from spare_planner.errors import QuantityError

__all__ = [
    "depth_bound",
    "dwell_weighted_stacks",
    "endurable_failures",
    "endurable_failures_by_replication",
    "masked_failures",
    "optimal_redundancy",
    "patch_probability",
    "patches_per_failure",
    "patches_per_step",
    "stacks_per_step",
    "stacks_per_step_paper",
    "survival_probability",
]

Numbers = NDArray[np.float64]


def endurable_failures(groups: ArrayLike, redundancy: ArrayLike) -> Numbers:
    """Return mu, the mean number of failures before one that loses a type.

    ``mu = Gamma(1/r)/r * N^(1 - 1/r)``. A type is dead after k failures with probability
    ``(k/N)^r``; if types die independently of each other, the wipe-out comes later than k with
    probability ``exp(-N (k/N)^r)``, whose integral over k this is. Source: paper.

    >>> endurable_failures(600, [8, 20]).round(1).tolist()
    [254.0, 424.2]
    """
    n, r = _shape(groups, redundancy)
    return np.asarray(special.gamma(1 + 1 / r) * n ** (1 - 1 / r))


def survival_probability(groups: ArrayLike, redundancy: ArrayLike, failures: ArrayLike) -> Numbers:
    """Return the probability that every type still has a host after k failures.

    ``exp(-N C(k, r) / C(N, r))``: r given hosts are all among k of N groups with probability
    ``C(k, r)/C(N, r)``, and types that share few hosts die nearly independently. Sharper than the
    power ``(k/N)^r`` in `endurable_failures`. Source: derived.
    """
    n, r = _shape(groups, redundancy)
    k = np.asarray(failures, dtype=np.float64)
    if ((k < 0) | (k > n)).any():
        raise QuantityError("failures must be from 0 to the number of groups")
    # C(k, r)/C(N, r), which is 0 for k < r.
    logs = (
        special.gammaln(k + 1)
        - special.gammaln(np.maximum(k - r, 0) + 1)
        - special.gammaln(n + 1)
        + special.gammaln(n - r + 1)
    )
    return np.asarray(np.exp(-n * np.where(k >= r, np.exp(logs), 0.0)))


def masked_failures(groups: ArrayLike, redundancy: ArrayLike) -> Numbers:
    """Return the mean number of failures before the fatal one, summed instead of integrated.

    The sum of `survival_probability` over k = 1, 2, ...: sharper than `endurable_failures`, most of
    all for few groups. Source: derived.

    >>> masked_failures(200, 9).round(1).tolist()
    106.5
    """
    return _per_shape(lambda n, r: float(_survival(n, r)[1:].sum()), groups, redundancy)


def endurable_failures_by_replication(groups: ArrayLike, redundancy: ArrayLike) -> Numbers:
    """Return what `endurable_failures` is for plain replication: N/r sets of r equal groups.

    ``r^(1/r) mu(N, r)``, by the same argument with N/r sets in place of N types. So for the same r
    replication endures up to 1.44 times as many failures, at r stacks in every step. Source:
    derived; the exact sums for r = 2 are in Casanova, Robert, Vivien, Zaidouni (INRIA RR-7951,
    2012).
    """
    n, r = _shape(groups, redundancy)
    return np.asarray(r ** (1 / r) * endurable_failures(n, r))


def depth_bound(groups: ArrayLike, failures: ArrayLike) -> Numbers:
    """Return c(k) = ceil(N / (N - k)), the fewest stacks that can hold N types in N - k groups.

    With a Golomb or a random placement it is nearly always enough, too. Source: paper.
    """
    n, k = np.broadcast_arrays(
        np.asarray(groups, dtype=np.float64), np.asarray(failures, dtype=np.float64)
    )
    if ((n < 1) | (k < 0) | (k >= n)).any():
        raise QuantityError("failures must be from 0 to one less than the number of groups")
    return np.asarray(np.ceil(n / (n - k)))


def patch_probability(groups: ArrayLike, redundancy: ArrayLike, failures: ArrayLike) -> Numbers:
    """Return rho_k, the probability that the next failure takes a type that nobody else computes.

    After k failures ``N - k`` groups compute ``c = c(k)`` stacks each. If no type is computed more
    than twice, ``2N - c (N - k)`` of those stacks are the only one of their type, a share p of
    them; the next group to die has one among its c with probability ``1 - (1 - p)^c``. With c = r
    everything that is hosted is computed and a patch finds no host: 0. Source: derived, as the
    paper's form is not public in full.
    """
    n, r = _shape(groups, redundancy)
    k = np.asarray(failures, dtype=np.float64)
    c = depth_bound(n, k)
    computed = c * (n - k)
    alone = np.clip((2 * n - computed) / computed, 0, 1)
    return np.asarray(np.where(c >= r, 0.0, 1 - (1 - alone) ** c))


def patches_per_failure(groups: ArrayLike, redundancy: ArrayLike) -> Numbers:
    """Return the mean of `patch_probability` over the failures up to the wipe-out.

    Source: derived.
    """

    def mean(n: int, r: int) -> float:
        return _mean_until_wipe_out(n, r, patch_probability(n, r, np.arange(n)))

    return _per_shape(mean, groups, redundancy)


def patches_per_step(
    groups: ArrayLike, redundancy: ArrayLike, *, step: float, mtbf: float
) -> Numbers:
    """Return the mean number of patches in a step: `patch_probability` times that of a failure.

    With k groups dead a step of t seconds sees a failure with probability
    ``1 - exp(-t (N - k) / (N m))``; states are weighted as in `dwell_weighted_stacks`. Source:
    derived.

    Args:
        groups: N.
        redundancy: r.
        step: t, seconds a step takes.
        mtbf: m, mean seconds between two failures with all N groups alive.
    """
    if not (step >= 0 and mtbf > 0):
        raise QuantityError(f"step must not be negative and mtbf positive, got {step} and {mtbf}")

    def mean(n: int, r: int) -> float:
        k = np.arange(n)
        weight = _survival(n, r)[:n] / (n - k)
        failing = -np.expm1(-step * (n - k) / (n * mtbf))
        return float((weight * failing * patch_probability(n, r, k)).sum() / weight.sum())

    return _per_shape(mean, groups, redundancy)


def stacks_per_step(groups: ArrayLike, redundancy: ArrayLike, *, patches: bool = False) -> Numbers:
    """Return S, the mean number of stacks between two failures, over all failures up to a wipe-out.

    The mean of `depth_bound` over k = 0, ..., T - 1, where failure T is the fatal one, averaged
    over T with the distribution of `survival_probability`. Cut off at mu instead, as
    `stacks_per_step_paper` is, the mean misses the long runs, which are the deep ones. Source:
    derived.

    >>> stacks_per_step([200, 600, 1000], [9, 8, 9]).round(2).tolist()
    [2.07, 2.0, 2.0]

    Args:
        groups: N.
        redundancy: r.
        patches: Count the stack that a failure adds to its step with `patch_probability`, as if
            there were one failure a step.
    """

    def mean(n: int, r: int) -> float:
        depth = np.minimum(depth_bound(n, np.arange(n)), r)
        added = patch_probability(n, r, np.arange(n)) if patches else 0.0
        return _mean_until_wipe_out(n, r, depth + added)

    return _per_shape(mean, groups, redundancy)


def stacks_per_step_paper(
    groups: ArrayLike, redundancy: ArrayLike, *, patches: bool = False
) -> Numbers:
    """Return S as the paper writes it: the mean of c(k) over k = 0, ..., floor(mu) - 1.

    A lower bound of the simulated mean. Source: paper; the form of the patch term is
    `patch_probability`.

    >>> stacks_per_step_paper([200, 600, 1000], [9, 8, 9]).round(3).tolist()
    [2.029, 1.996, 1.998]

    Args:
        groups: N.
        redundancy: r.
        patches: Add the mean of `patch_probability`.
    """

    def mean(n: int, r: int) -> float:
        k = np.arange(max(1, int(endurable_failures(n, r))))
        added = patch_probability(n, r, k) if patches else 0.0
        return float((depth_bound(n, k) + added).mean())

    return _per_shape(mean, groups, redundancy)


def dwell_weighted_stacks(groups: ArrayLike, redundancy: ArrayLike) -> Numbers:
    """Return the mean number of stacks over time, where the dead no longer fail.

    With k groups dead the next failure takes N/(N - k) times as long to come, so deep states last
    longer: states are weighted by ``P(T > k) / (N - k)``. Source: derived.
    """

    def mean(n: int, r: int) -> float:
        k = np.arange(n)
        weight = _survival(n, r)[:n] / (n - k)
        return float((weight * np.minimum(depth_bound(n, k), r)).sum() / weight.sum())

    return _per_shape(mean, groups, redundancy)


def optimal_redundancy(groups: ArrayLike) -> NDArray[np.int64]:
    """Return r* = floor(log2 N + 0.833), the redundancy with the shortest time to train.

    It is where mu reaches N/2: beyond that a third stack is needed, so more redundancy buys
    failures at a higher price. From ``N^(-1/r) Gamma(1 + 1/r) = 1/2`` follows
    ``r = (ln N + gamma) / ln 2`` to first order, with Euler's gamma = 0.5772. At most N. Source:
    paper; the derivation is this package's.

    >>> optimal_redundancy([200, 600, 1000]).tolist()
    [8, 10, 10]
    """
    n = np.asarray(groups, dtype=np.float64)
    if (n < 1).any():
        raise QuantityError("groups must be at least 1")
    best = np.floor(np.log2(n) + np.euler_gamma / math.log(2)).astype(np.int64)
    return np.asarray(np.clip(best, 1, n.astype(np.int64)))


def _shape(groups: ArrayLike, redundancy: ArrayLike) -> tuple[Numbers, Numbers]:
    n, r = np.asarray(groups, dtype=np.float64), np.asarray(redundancy, dtype=np.float64)
    if (n < 1).any():
        raise QuantityError(f"groups must be at least 1, got {n.min():g}")
    if ((r < 1) | (r > n)).any():
        raise QuantityError("redundancy must be from 1 to the number of groups")
    return n, r


def _per_shape(
    function: Callable[[int, int], float], groups: ArrayLike, redundancy: ArrayLike
) -> Numbers:
    """Apply a function of one N and one r to all pairs."""
    n, r = np.broadcast_arrays(*_shape(groups, redundancy))
    values = [function(int(a), int(b)) for a, b in zip(n.flat, r.flat, strict=True)]
    return np.asarray(values, dtype=np.float64).reshape(n.shape)


def _survival(n: int, r: int) -> Numbers:
    """Return P(T > k) for k = 0, ..., N; nobody is left after N failures."""
    survival = survival_probability(n, r, np.arange(n + 1))
    survival[n] = 0.0
    return survival


def _mean_until_wipe_out(n: int, r: int, values: Numbers) -> float:
    """Return the mean over T of the mean of values[0], ..., values[T - 1]."""
    fatal = -np.diff(_survival(n, r))  # P(T = k + 1)
    means = np.cumsum(values) / np.arange(1, n + 1)
    return float((fatal * means).sum())

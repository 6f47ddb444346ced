"""The closed forms: the paper's numbers, limits that must hold, and the Monte Carlo."""

import itertools
import math

import numpy as np
import pytest

from spare_planner import QuantityError, intervals, place, theory
from spare_planner.montecarlo import run_trials

TIMES = {"mtbf": 300.0, "save": 58.8, "restart": 3600.0}


@pytest.mark.parametrize(
    ("groups", "redundancy", "mu", "stacks"),
    [
        (200, 3, 30.5, 1.967),
        (200, 4, 48.2, 1.979),
        (200, 9, 105.1, 2.029),
        (600, 3, 63.5, 1.984),
        (600, 8, 254.0, 1.996),
        (600, 20, 424.2, 2.342),
        (1000, 3, 89.3, 1.989),
        (1000, 9, 439.5, 1.998),
    ],
)
def test_the_papers_figures(groups: int, redundancy: int, mu: float, stacks: float) -> None:
    assert float(theory.endurable_failures(groups, redundancy)) == pytest.approx(mu, abs=0.06)
    assert float(theory.stacks_per_step_paper(groups, redundancy)) == pytest.approx(
        stacks, abs=0.0006
    )


def test_optimal_redundancy() -> None:
    assert theory.optimal_redundancy([200, 600, 1000]).tolist() == [8, 10, 10]
    assert theory.optimal_redundancy([1, 2, 3]).tolist() == [1, 1, 2]
    # It is where mu is closest to half of the groups from below.
    for groups in (200, 600, 1000, 100_000):
        r = int(theory.optimal_redundancy(groups))
        assert float(theory.endurable_failures(groups, r)) <= 0.51 * groups
        assert float(theory.endurable_failures(groups, r + 1)) > 0.49 * groups


@pytest.mark.parametrize(("groups", "best"), [(200, 8), (600, 10), (1000, 10)])
def test_normalized_time_is_least_at_the_optimum(groups: int, best: int) -> None:
    r = np.arange(2, 27)
    assert r[intervals.normalized_time(groups, r, **TIMES).argmin()] == best


def test_everything_broadcasts() -> None:
    groups, redundancy = np.array([[50], [200]]), np.array([3, 4, 5])
    for function in (
        theory.endurable_failures,
        theory.masked_failures,
        theory.endurable_failures_by_replication,
        theory.patches_per_failure,
        theory.stacks_per_step,
        theory.stacks_per_step_paper,
        theory.dwell_weighted_stacks,
    ):
        table = function(groups, redundancy)
        assert table.shape == (2, 3)
        for (i, n), (j, r) in itertools.product(enumerate((50, 200)), enumerate((3, 4, 5))):
            assert float(table[i, j]) == pytest.approx(float(function(n, r)))


@pytest.mark.parametrize("redundancy", [2, 3, 5])
def test_survival_for_few_groups_by_counting(redundancy: int) -> None:
    """Exact survival of one type among N, to the power of N, is what the exponential stands for."""
    groups = 30
    for failures in range(groups + 1):
        lost = math.comb(failures, redundancy) / math.comb(groups, redundancy)
        value = float(theory.survival_probability(groups, redundancy, failures))
        assert value == pytest.approx(math.exp(-groups * lost), abs=1e-12)


def test_replication_is_counted_exactly_for_pairs() -> None:
    """Casanova et al.: n_fail(2b) = 1 + 4^b / C(2b, b), of which the last is fatal."""
    b = 300
    # Theirs counts hits on the dead, too; without them the closed form is sqrt(pi b) - 1/2.
    exact = 4**b / math.comb(2 * b, b)
    mu = float(theory.endurable_failures_by_replication(2 * b, 2))
    assert mu == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("groups", "redundancy", "trials"), [(200, 4, 900), (200, 8, 700)])
def test_against_the_monte_carlo(groups: int, redundancy: int, trials: int) -> None:
    measured = run_trials(place(groups, redundancy), trials=trials, seed=3)
    mu = measured.masked.mean()
    assert float(theory.endurable_failures(groups, redundancy)) == pytest.approx(mu, rel=0.025)
    assert float(theory.masked_failures(groups, redundancy)) == pytest.approx(mu, rel=0.02)
    stacks, patches = measured.stacks.mean(), measured.patches.mean()
    assert float(theory.stacks_per_step(groups, redundancy)) == pytest.approx(stacks, rel=0.01)
    assert float(theory.patches_per_failure(groups, redundancy)) == pytest.approx(patches, rel=0.04)
    assert float(theory.stacks_per_step(groups, redundancy, patches=True)) == pytest.approx(
        stacks + patches, rel=0.03
    )
    assert measured.above_bound.mean() < 0.01


def test_trials_reproduce() -> None:
    placement = place(50, 4)
    first, again, other = (run_trials(placement, trials=20, seed=s) for s in (1, 1, 2))
    assert (first.masked == again.masked).all()
    assert (first.masked != other.masked).any()


def test_patches() -> None:
    # The first failure always takes a type that nobody else computes.
    assert float(theory.patch_probability(200, 8, 0)) == 1.0
    # Where all that is hosted is computed there is nothing to patch.
    assert float(theory.patch_probability(200, 2, 50)) == 0.0
    never = float(theory.patches_per_step(200, 8, step=0, mtbf=300))
    always = float(theory.patches_per_step(200, 8, step=1e9, mtbf=300))
    assert never == 0.0
    assert 0.4 < always < 1.0


def test_checkpoint_interval_is_where_availability_is_highest() -> None:
    best = float(intervals.checkpoint_interval(save=60, mtbf=76_200, restart=3600))
    around = best * np.array([0.9, 0.99, 1.0, 1.01, 1.1])
    values = intervals.availability(interval=around, save=60, mtbf=76_200, restart=3600)
    assert values.argmax() == 2
    short = intervals.checkpoint_interval(save=1e-3, mtbf=1e7, restart=1)
    assert float(short) == pytest.approx(
        float(intervals.young_interval(save=1e-3, mtbf=1e7)), rel=0.01
    )
    daly = float(intervals.daly_interval(save=60, mtbf=76_200, restart=3600))
    assert daly == pytest.approx(math.sqrt(2 * 60 * 79_800) - 60)


def test_the_dead_do_not_fail_again() -> None:
    paper = float(intervals.time_between_wipe_outs(600, 254, mtbf=300, dead_fail=True))
    assert paper == 254 * 300
    by_hand = sum(300 * 600 / (600 - k) for k in range(254))
    corrected = float(intervals.time_between_wipe_outs(600, 254, mtbf=300))
    assert corrected == pytest.approx(by_hand)


def test_stragglers() -> None:
    z = intervals.expected_maximum([1, 2, 200])
    assert z.tolist() == pytest.approx([0.0, 1 / math.sqrt(math.pi), 2.746], abs=1e-3)
    step = intervals.straggler_step(600, 2, stack=64, allreduce=6, jitter=0.05)
    assert float(step) == pytest.approx(128 + 6 + 64 * 0.05 * 3.0917 * math.sqrt(2), abs=1e-2)


def test_rejoining_at_checkpoints() -> None:
    best = float(intervals.rejoin_interval(600, 3, mtbf=300, save=58.8))
    assert best == pytest.approx(3993, abs=10)
    times = best * np.array([0.9, 1.0, 1.1])
    overheads = intervals.rejoin_overhead(600, 3, interval=times, mtbf=300, save=58.8)
    assert overheads.argmin() == 1
    assert float(overheads[1]) == pytest.approx(0.020, abs=5e-4)


def test_deep_states_last_longer() -> None:
    assert float(theory.dwell_weighted_stacks(600, 20)) == pytest.approx(2.571, abs=0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.endurable_failures(0, 1), "groups must be at least 1, got 0"),
        (lambda: theory.stacks_per_step(10, [2, 11]), "redundancy must be from 1 to the number"),
        (lambda: theory.depth_bound(10, 10), "failures must be from 0 to one less"),
        (lambda: theory.survival_probability(10, 2, 11), "failures must be from 0 to the number"),
        (lambda: theory.patches_per_step(10, 2, step=1, mtbf=0), "mtbf positive, got 1 and 0"),
        (lambda: theory.optimal_redundancy(0), "groups must be at least 1"),
        (lambda: intervals.young_interval(save=-1, mtbf=1), "save must not be negative, got -1"),
        (
            lambda: intervals.availability(interval=1, save=2, mtbf=3, restart=4),
            "the interval includes the save",
        ),
        (lambda: run_trials(place(5, 2), trials=1), "trials must be at least 2, got 1"),
    ],
)
def test_what_has_no_meaning(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(QuantityError, match=message):
        call()

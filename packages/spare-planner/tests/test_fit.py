"""Estimates from logs that were made with known numbers."""

import math

import numpy as np
import pytest
from scipy import integrate

from spare_planner.failure_log import FailureLog, Fault
from spare_planner.fit import fit_log
from spare_planner.lifetimes import fit_weibull, lifetimes, log_likelihood
from spare_planner.simulation.clocks import FailureModel

DAY = 86_400.0


def made(
    *,
    shape: float,
    units: int = 400,
    mean: float = 100 * DAY,
    seconds: float = 350 * DAY,
    repair: float = DAY,
    seed: int = 0,
    units_told: bool = True,
    factor: float = 1.0,
    domains: bool = False,
) -> FailureLog:
    """Make a log of a stationary cluster; with a factor one unit in four is so much worse."""
    rng = np.random.default_rng(seed)
    model = FailureModel.of_system(mean / units, groups=units, shape=shape)
    faults = []
    for unit in range(units):
        scale = 1 / factor if unit % 4 == 0 else 1.0
        now = float(model.residuals(1, rng)[0]) * scale
        while now < seconds:
            end = now + float(rng.exponential(repair))
            faults.append(Fault(unit, now, end if end < seconds else math.inf, "GPU"))
            now = end + float(model.lifetimes(1, rng)[0]) * scale
    return log_of(faults, units=units, seconds=seconds, told=units_told, domains=domains)


def log_of(
    faults: list[Fault], *, units: int, seconds: float, told: bool = True, domains: bool = False
) -> FailureLog:
    return FailureLog(
        name="log",
        units=units,
        seconds=seconds,
        faults=tuple(sorted(faults, key=lambda fault: fault.start)),
        names=tuple(str(unit) for unit in sorted({fault.unit for fault in faults})),
        domains=tuple(f"rack {unit // 4}" for unit in range(units)) if domains else (),
        resolution=1.0,
        excluded=0,
        units_told=told,
    )


@pytest.mark.parametrize("shape", [0.6, 1.0, 1.8])
def test_the_numbers_come_back(shape: float) -> None:
    fit = fit_log(made(shape=shape))
    assert fit.shape.low < shape < fit.shape.high
    assert fit.shape.high - fit.shape.low < 0.25 * shape
    assert fit.scale * math.gamma(1 + 1 / fit.shape.value) == pytest.approx(100 * DAY, rel=0.12)
    assert fit.unit_mtbf.value == pytest.approx(101 * DAY, rel=0.1)  # repairs count in
    assert fit.mtbf.low < 101 * DAY / 400 < fit.mtbf.high
    assert fit.repair is not None
    assert fit.repair.low < DAY < fit.repair.high


def test_the_interval_of_the_shape_holds_it_in_95_of_100_logs() -> None:
    held = 0
    for seed in range(60):
        times = lifetimes(made(shape=0.8, units=60, seed=seed))
        _, shape = fit_weibull(times)
        held += shape.low <= 0.8 <= shape.high
    assert 52 <= held <= 60  # 57 expected; fewer than 52 is a chance of 1 in 100


def test_units_that_never_failed_are_evidence() -> None:
    log = made(shape=1.0)
    failed = {fault.unit for fault in log.faults}
    rest = [Fault(sorted(failed).index(f.unit), f.start, f.end, f.kind) for f in log.faults]
    blind = fit_log(log_of(rest, units=len(failed), seconds=log.seconds, told=False))
    assert blind.unit_mtbf.value < fit_log(log).unit_mtbf.value
    assert blind.mtbf.value == fit_log(log).mtbf.value
    assert any("--units" in doubt for doubt in blind.doubts)


def test_the_likelihood_of_a_window_adds_up_to_one() -> None:
    # One unit watched for T: it fails at no time, or first at t and then never again, or oftener.
    # The density of the first failure alone must integrate to one.
    from spare_planner.lifetimes import Lifetimes

    none = np.zeros(0)
    shape, scale, window = 0.7, 3.0, 5.0
    never = math.exp(
        log_likelihood(
            Lifetimes(rests=none, whole=none, cut=none, never=np.asarray([window])), shape, scale
        )
    )
    grid = np.linspace(1e-6, window, 4001)
    first = [
        math.exp(
            log_likelihood(
                Lifetimes(rests=np.asarray([t]), whole=none, cut=none, never=none), shape, scale
            )
        )
        for t in grid
    ]
    assert never + float(integrate.trapezoid(first, grid)) == pytest.approx(1.0, abs=1e-3)


def test_overlapping_faults_are_one_failure() -> None:
    faults = [Fault(0, 100, 200, ""), Fault(0, 150, 160, ""), Fault(0, 400, 500, "")]
    times = lifetimes(log_of(faults, units=2, seconds=1000))
    assert times.rests.tolist() == [100]
    assert times.whole.tolist() == [200]
    assert times.cut.tolist() == [500]
    assert times.never.tolist() == [1000]
    assert (times.failures, times.service) == (2, 1800)


def test_doubts_of_few_failures() -> None:
    fit = fit_log(made(shape=0.7, units=10, mean=300 * DAY, seed=4))
    text = " ".join(fit.doubts)
    assert f"only {fit.failures} failures" in text
    assert "has 1 in it" in text


def test_no_doubt_where_the_log_carries_it() -> None:
    fit = fit_log(made(shape=0.6, mean=30 * DAY, units=200))
    assert not [doubt for doubt in fit.doubts if "shape" in doubt or "only" in doubt]


def test_unequal_units_are_told_from_ageing() -> None:
    fit = fit_log(made(shape=1.0, factor=8.0))
    assert fit.shape.high < 1
    assert any("some units are worse than others" in doubt for doubt in fit.doubts)


def test_a_changing_rate_widens_the_interval() -> None:
    steady = made(shape=1.0)
    # The same failures, all in the first third.
    early = [Fault(f.unit, f.start / 3, f.start / 3 + 60, f.kind) for f in steady.faults]
    fit = fit_log(log_of(early, units=400, seconds=steady.seconds))
    calm = fit_log(steady)
    assert any("scatter" in doubt and "weeks" in doubt for doubt in fit.doubts)
    assert fit.mtbf.high / fit.mtbf.low > 1.3 * calm.mtbf.high / calm.mtbf.low


def test_failures_that_come_together() -> None:
    calm = made(shape=1.0, units=200, domains=True)
    bunch = [
        Fault(4 * rack + i, day * DAY, day * DAY + 600, "power")
        for rack, day in ((3, 40), (9, 90), (20, 200))
        for i in range(4)
    ]
    log = log_of([*calm.faults, *bunch], units=200, seconds=calm.seconds, domains=True)
    fit, before = fit_log(log), fit_log(calm)
    assert fit.simultaneous > before.simultaneous + 0.01
    assert fit.largest >= 4
    assert fit.same_domain is not None
    assert fit.same_domain > 0.8
    assert sum(size * count for size, count in fit.bunches.items()) == fit.failures
    assert before.simultaneous == pytest.approx(before.by_chance, abs=0.01)


def test_one_fault_alone_is_not_too_few_to_answer() -> None:
    fit = fit_log(log_of([Fault(0, 50, math.inf, "")], units=4, seconds=1000))
    assert fit.mtbf.value == 1000
    assert fit.repair is None
    assert any("only 1 failure" in doubt for doubt in fit.doubts)
    assert fit.to_dict()["repair"] is None


def test_scaling_is_by_gpus() -> None:
    fit = fit_log(made(shape=1.0), gpus_per_unit=8)
    assert fit.scaled_mtbf(3200).value == pytest.approx(fit.mtbf.value)
    assert fit.scaled_mtbf(600_000).value == pytest.approx(fit.mtbf.value * 3200 / 600_000)

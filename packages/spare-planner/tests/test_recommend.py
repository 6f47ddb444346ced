"""Forecasts against simulations, and what is made of them."""

import dataclasses

import pytest

from spare_planner.errors import QuantityError
from spare_planner.forecast import forecast
from spare_planner.reasons import caveats, reasons
from spare_planner.recommendation import Cluster, forecasts, recommend
from spare_planner.simulation.clocks import FailureModel
from spare_planner.simulation.experiment import Experiment, simulate
from spare_planner.simulation.scenario import Scenario

JOB = Scenario(groups=200, steps=3000)


def cluster(job: Scenario = JOB, mtbf: float = 300.0, **changes: object) -> Cluster:
    failures = FailureModel.of_system(mtbf, groups=job.groups)
    return Cluster(scenario=job, failures=failures, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "redundancy", "mtbf", "changes", "tolerance"),
    [
        ("checkpoint", 1, 3000.0, {"restart_seconds": 300.0}, 0.06),
        ("elastic", 1, 300.0, {}, 0.04),
        ("elastic", 1, 300.0, {"repair_seconds": 3600.0}, 0.04),
        ("elastic", 1, 900.0, {"job_mtbf": 30_000.0}, 0.06),
        ("replication", 2, 600.0, {}, 0.06),
        ("replication", 3, 300.0, {}, 0.05),
        ("spare", 4, 300.0, {}, 0.06),
        ("spare", 9, 300.0, {}, 0.05),
        ("spare", 9, 300.0, {"repair_seconds": 7200.0}, 0.05),
        ("spare", 3, 50_000.0, {"restart_seconds": 600.0}, 0.06),
    ],
)
def test_a_forecast_is_near_the_simulation(
    strategy: str, redundancy: int, mtbf: float, changes: dict[str, float], tolerance: float
) -> None:
    job = dataclasses.replace(JOB, steps=6000, **changes)  # type: ignore[arg-type]
    expected = forecast(strategy, job, mtbf=mtbf, redundancy=redundancy)
    suited = dataclasses.replace(
        job, checkpoint_every=expected.checkpoint_every, restart_below=expected.restart_below
    )
    experiment = Experiment(
        strategy=strategy,
        scenario=suited,
        failures=FailureModel.of_system(mtbf, groups=200),
        redundancy=redundancy,
    )
    found = simulate(experiment, trials=4).statistics
    assert found["ttt_ratio"].mean == pytest.approx(expected.ttt_ratio, rel=tolerance)
    assert found["availability_strict"].mean == pytest.approx(
        expected.availability_strict, abs=0.03
    )


@pytest.mark.parametrize("strategy", ["elastic", "spare"])
def test_the_restart_on_purpose_is_near_its_best(strategy: str) -> None:
    # Neither half as many dead nor twice as many may be clearly better.
    expected = forecast(strategy, JOB, mtbf=300.0, redundancy=9 if strategy == "spare" else 1)
    results = []
    for factor in (0.5, 1.0, 2.0):
        dead = (1 - expected.restart_below) * factor
        job = dataclasses.replace(
            JOB,
            steps=10_000,
            checkpoint_every=expected.checkpoint_every,
            restart_below=max(0.0, 1 - dead),
        )
        experiment = Experiment(
            strategy=strategy,
            scenario=job,
            failures=FailureModel.of_system(300.0, groups=200),
            redundancy=9,
            reordering="estimate",
        )
        results.append(simulate(experiment, trials=6).statistics["ttt_ratio"].mean or 0.0)
    assert results[1] <= 1.01 * min(results)


def test_a_calm_cluster_needs_no_redundancy() -> None:
    made = recommend(cluster(mtbf=14 * 3600.0), trials=2)
    assert made.best.strategy in {"elastic", "checkpoint"}
    assert made.best.ttt_ratio < 1.3


def test_stacks_where_only_the_paper_s_strategies_are_possible() -> None:
    made = recommend(cluster(strategies=("spare", "replication", "checkpoint")), trials=2)
    assert made.best.strategy == "spare"
    assert 4 <= made.best.forecast.redundancy <= 10
    assert made.runner_up is not None
    assert made.runner_up.strategy == "replication"
    text = " ".join(reasons(made))
    assert "less time than replication" in text
    assert "within 1% of the best" in text
    assert "8 shares" in " ".join(caveats(made)) or "shares of a step's" in " ".join(caveats(made))


def test_one_microbatch_a_group_takes_elastic_s_advantage() -> None:
    fine = recommend(cluster(), trials=0)
    assert fine.best.strategy == "elastic"
    coarse = recommend(cluster(microbatches=1), trials=0)
    assert coarse.best.strategy == "spare"


def test_costs_are_of_all_gpus_all_the_time() -> None:
    made = recommend(cluster(gpus_per_group=8, price=2.0, strategies=("elastic",)), trials=2)
    hours = made.best.seconds / 3600 * 1600
    assert made.best.gpu_hours == pytest.approx(hours)
    assert made.best.cost == pytest.approx(2 * hours)
    assert made.runner_up is None


def test_trials_decide_and_are_told_from_chance() -> None:
    made = recommend(cluster(strategies=("spare", "elastic"), microbatches=1), trials=3)
    assert all(candidate.summary is not None for candidate in made.candidates)
    ratios = [candidate.ttt_ratio for candidate in made.candidates]
    assert ratios[0] <= 1.01 * min(ratios)


def test_what_is_hopeless_is_not_simulated() -> None:
    made = recommend(cluster(mtbf=60.0), trials=1)
    last = made.candidates[-1]
    assert (last.strategy, last.summary) == ("checkpoint", None)


def test_a_repair_asks_for_a_pool() -> None:
    job = dataclasses.replace(JOB, repair_seconds=3600.0)
    made = recommend(cluster(job, strategies=("elastic",), gpus_per_group=8), trials=1)
    text = " ".join(caveats(made))
    # 12 under repair on average, Poisson: 99% of the time 21 or fewer.
    assert "12.0 failures are under repair" in text
    assert "21 groups (168 GPUs)" in text


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_the_smallest_clusters_have_an_answer(groups: int) -> None:
    job = dataclasses.replace(JOB, groups=groups, steps=200)
    made = recommend(cluster(job, mtbf=3600.0), trials=1)
    assert made.best.ttt_ratio < 10
    assert list(reasons(made))
    assert list(caveats(made))


def test_a_hundred_thousand_groups() -> None:
    job = dataclasses.replace(JOB, groups=100_000, steps=500)
    made = recommend(cluster(job, strategies=("spare", "elastic")), trials=1)
    assert {candidate.strategy for candidate in made.candidates} == {"spare", "elastic"}


def test_every_forecast_is_of_an_allowed_strategy() -> None:
    known = list(forecasts(cluster(strategies=("spare",), redundancies=(5,))))
    assert [(one.strategy, one.redundancy) for one in known] == [("spare", 5)]


@pytest.mark.parametrize(
    "changes", [{"strategies": ("luck",)}, {"strategies": ()}, {"price": -1.0}]
)
def test_wrong_clusters_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(QuantityError):
        cluster(**changes)  # type: ignore[arg-type]


def test_what_is_not_possible_is_said() -> None:
    job = dataclasses.replace(JOB, groups=1)
    with pytest.raises(QuantityError, match="not possible"):
        recommend(cluster(job, strategies=("spare",)))

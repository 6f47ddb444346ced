"""Trials, and what they say together."""

import dataclasses

import pytest
from scipy import stats

from spare_planner.errors import QuantityError
from spare_planner.simulation.clocks import FailureModel
from spare_planner.simulation.experiment import Experiment, Statistic, simulate
from spare_planner.simulation.scenario import Scenario

JOB = Scenario(groups=50, steps=300, checkpoint_every=20)


def experiment(**changes: object) -> Experiment:
    values: dict[str, object] = {
        "strategy": "spare",
        "scenario": JOB,
        "failures": FailureModel.of_system(200.0, groups=50, shape=0.8),
        "redundancy": 4,
    }
    return Experiment(**(values | changes))  # type: ignore[arg-type]


def test_the_same_whatever_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spare_planner.simulation.experiment._WORTH_A_POOL", -1.0)
    pooled = simulate(experiment(), trials=5, seed=3, processes=2)
    monkeypatch.undo()
    alone = simulate(experiment(), trials=5, seed=3, processes=1)
    assert pooled.to_dict() == alone.to_dict()
    assert pooled.trials == alone.trials


def test_more_trials_begin_with_the_same() -> None:
    few, many = (simulate(experiment(), trials=count, seed=3, processes=1) for count in (2, 4))
    assert many.trials[:2] == few.trials
    assert len({trial.seconds for trial in many.trials}) == 4


def test_another_seed_is_another_run() -> None:
    one, other = (simulate(experiment(), trials=1, seed=seed) for seed in (3, 4))
    assert one.trials != other.trials


def test_progress_is_told() -> None:
    told: list[int] = []
    simulate(experiment(), trials=3, processes=1, progress=told.append)
    assert told == [1, 2, 3]


def test_the_interval_is_student_s() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    found = Statistic.of(values)
    low, high = stats.t.interval(0.95, 3, loc=3.75, scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((3.75, low, high))
    assert Statistic.of([2.0]) == Statistic(mean=2.0, low=None, high=None)
    assert Statistic.of([2.0, float("inf")]).mean is None


def test_the_parts_make_up_the_whole() -> None:
    for strategy in ("spare", "replication", "checkpoint", "elastic"):
        job = dataclasses.replace(JOB, detection_seconds=3.0)
        failures = FailureModel.of_system(2000.0, groups=50)
        for trial in simulate(
            experiment(strategy=strategy, scenario=job, failures=failures), trials=3
        ).trials:
            assert trial.finished
            parts = (
                trial.restart_seconds
                + trial.shrink_seconds
                + trial.checkpoint_seconds
                + trial.rework_seconds
            )
            assert trial.availability_strict == pytest.approx(1 - parts / trial.seconds)
            assert 0 < trial.availability_strict <= trial.availability <= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "hope"},
        {"redundancy": 0},
        {"redundancy": 51},
        {"reordering": "perhaps"},
        {"microbatches": 0, "strategy": "elastic"},
    ],
)
def test_wrong_experiments_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(QuantityError):
        simulate(experiment(**changes), trials=1)


@pytest.mark.parametrize("changes", [{"trials": 0}, {"seed": -1}, {"processes": 0}])
def test_wrong_numbers_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(QuantityError):
        simulate(experiment(), **({"trials": 1} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": 0},
        {"steps": 0},
        {"stack_seconds": 0.0},
        {"stack_seconds": float("nan")},
        {"restart_seconds": -1.0},
        {"restart_below": 1.0},
        {"job_mtbf": 0.0},
        {"checkpoint_every": 0},
    ],
)
def test_wrong_jobs_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(QuantityError):
        dataclasses.replace(JOB, **changes)  # type: ignore[arg-type]

"""The engine against closed forms, where there are some."""

import math

import numpy as np
import pytest

from spare_planner import place
from spare_planner.simulation.clocks import Clocks, FailureModel
from spare_planner.simulation.engine import Trial, run_trial
from spare_planner.simulation.experiment import Experiment, Summary, simulate
from spare_planner.simulation.scenario import Scenario
from spare_planner.simulation.strategies import (
    CheckpointOnly,
    Elastic,
    EstimatedSpare,
    Replication,
    Spare,
)
from spare_planner.theory import endurable_failures, patch_probability


def scenario(**changes: object) -> Scenario:
    values: dict[str, object] = {
        "groups": 60,
        "steps": 2000,
        "stack_seconds": 10.0,
        "allreduce_seconds": 2.0,
        "checkpoint_seconds": 5.0,
        "checkpoint_every": 10,
        "restart_seconds": 300.0,
        "shrink_seconds": 0.0,
        "jitter": 0.0,
    }
    return Scenario(**(values | changes))  # type: ignore[arg-type]


class Scripted:
    """Failures at given times, for single runs."""

    def __init__(self, *events: tuple[float, int]) -> None:
        self.events = sorted(events)
        self.revived: list[int] = []
        self.stood: list[tuple[float, float]] = []

    def pending(self) -> float:
        return self.events[0][0] if self.events else math.inf

    def until(self, time: float) -> list[int]:
        dead = [group for when, group in self.events if when <= time]
        self.events = [event for event in self.events if event[0] > time]
        return dead

    def revive(self, groups: object, time: float) -> None:
        self.revived += list(groups)  # type: ignore[call-overload]

    def down(self, begin: float, end: float) -> None:
        self.stood.append((begin, end))

    def repair_seconds(self, group: int) -> float | None:
        return None


def run(strategy: object, failures: object, **changes: object) -> Trial:
    return run_trial(
        scenario(**changes),
        strategy,  # type: ignore[arg-type]
        failures,  # type: ignore[arg-type]
        rng=np.random.default_rng(0),
    )


def repeated(strategy: str, job: Scenario, mtbf: float, **how: object) -> Summary:
    model = FailureModel.of_system(mtbf, groups=job.groups)
    experiment = Experiment(strategy=strategy, scenario=job, failures=model, **how)  # type: ignore[arg-type]
    return simulate(experiment, trials=20, seed=1, processes=1)


@pytest.mark.parametrize(
    ("strategy", "stacks"),
    [
        (CheckpointOnly(60), 1),
        (Elastic(60), 1),
        (Replication(60, redundancy=3), 3),
        (Spare(place(60, 4)), 1),
    ],
)
def test_without_failures_only_checkpoints_cost(strategy: object, stacks: int) -> None:
    trial = run(strategy, Scripted())
    saves = 2000 // 10 - 1  # none at the very end
    assert trial.seconds == pytest.approx(2000 * (10 * stacks + 2) + saves * 5)
    assert (trial.restarts, trial.losses, trial.rework_seconds) == (0, 0, 0)
    assert trial.availability == 1
    assert trial.availability_strict == pytest.approx(1 - saves * 5 / trial.seconds)


def test_a_failure_without_redundancy_goes_back_to_the_checkpoint() -> None:
    # 12 s a step and 5 s a checkpoint: the first is done at 125 s, two more steps at 149 s.
    failures = Scripted((150.0, 7))
    trial = run(CheckpointOnly(60), failures, steps=20, detection_seconds=4.0)
    assert trial.restarts == 1
    assert failures.stood == [(154.0, 454.0)]
    assert trial.rework_seconds == pytest.approx(154 - 125)
    assert trial.seconds == pytest.approx(454 + 10 * 12)


def test_a_failure_in_a_checkpoint_takes_it_along() -> None:
    trial = run(CheckpointOnly(60), Scripted((123.0, 7)), steps=20)
    assert trial.seconds == pytest.approx(123 + 300 + 20 * 12 + 5)


def test_spare_patches_the_step_of_the_failure() -> None:
    trial = run(Spare(place(60, 4)), Scripted((5.0, 7)), steps=3, shrink_seconds=0.5)
    # The sum fails half way; then the repair, one stack, and a whole sum.
    first = 10 + 1 + 0.5 + 10 + 2
    assert trial.seconds == pytest.approx(first + 2 * 22)
    assert (trial.patches, trial.stacks, trial.losses) == (1, 1 + 2 + 2, 1)
    assert trial.missing_seconds == pytest.approx(2 * 22)


def test_a_wipe_out_restarts_everybody() -> None:
    placement = place(60, 2)
    first, second = placement.hosts[0].tolist()
    failures = Scripted((5.0, first), (5.5, second))
    trial = run(Spare(placement), failures, steps=2)
    assert trial.seconds == pytest.approx(11 + 300 + 24)
    assert (trial.restarts, sorted(failures.revived)) == (1, sorted([first, second]))


def test_elastic_deals_out_what_was_lost() -> None:
    trial = run(Elastic(4), Scripted((5.0, 0)), groups=4, steps=2)
    assert trial.seconds == pytest.approx((10 + 1 + 10 / 3 + 2) + (10 * 4 / 3 + 2))


@pytest.mark.parametrize(("microbatches", "stacks"), [(1, 2.0), (2, 1.5), (3, 4 / 3), (8, 11 / 8)])
def test_only_whole_microbatches_can_be_dealt_out(microbatches: int, stacks: float) -> None:
    strategy = Elastic(4, microbatches=microbatches)
    strategy.lose([0])
    assert strategy.stacks == pytest.approx(stacks)


def test_repaired_groups_come_back_at_a_checkpoint_or_a_step() -> None:
    for at_checkpoints, missing in ((True, 4), (False, 1)):
        trial = run(
            Elastic(4),
            Scripted((5.0, 0)),
            groups=4,
            steps=10,
            checkpoint_every=5,
            repair_seconds=20.0,
            rejoin_at_checkpoints=at_checkpoints,
        )
        later = trial.stacks - 1  # of the steps after that of the failure
        assert later == pytest.approx(9 + missing * (4 / 3 - 1))


def test_restart_on_purpose_loses_no_work() -> None:
    trial = run(Elastic(4), Scripted((5.0, 0)), groups=4, steps=20, restart_below=0.9)
    assert (trial.restarts, trial.planned_restarts, trial.rework_seconds) == (1, 1, 0)
    assert trial.stacks == pytest.approx(1 + 9 * 4 / 3 + 10)


def test_the_whole_job_fails_whatever_is_redundant() -> None:
    job = scenario(job_mtbf=4000.0, restart_seconds=100.0)
    summary = repeated("replication", job, 1e12, redundancy=2)
    trials = summary.trials
    up = sum(t.seconds - t.restart_seconds for t in trials)
    assert sum(t.restarts for t in trials) == pytest.approx(up / 4000, rel=0.2)


def test_a_job_that_gets_nowhere_is_given_up() -> None:
    job = scenario(give_up=3.0, checkpoint_every=2000)
    summary = repeated("checkpoint", job, 20.0)
    assert summary.finished == 0
    assert summary.statistics["ttt_ratio"].mean is None
    assert summary.to_dict()["ttt_ratio"] == {"mean": None, "low": None, "high": None}


@pytest.mark.parametrize("every", [3, 10, 40])
def test_checkpoints_alone_take_what_daly_says(every: int) -> None:
    # (m + R) (e^((u + s)/m) - 1) from one checkpoint to the next; none at the end.
    m, segments = 600.0, 2000 // every
    job = scenario(checkpoint_every=every, steps=segments * every)
    u = every * 12.0
    expected = (segments - 1) * math.expm1((u + 5) / m) + math.expm1(u / m)
    mean = repeated("checkpoint", job, m).statistics["seconds"].mean
    assert mean == pytest.approx((m + 300) * expected, rel=0.02)


def test_elastic_takes_its_harmonic_mean() -> None:
    # Work flows at (N - k)/N for m N/(N - k) seconds with k dead: as much in each state, so the
    # mean of N/(N - k) over states, weighted by steps, is that over k = 0, ..., K - 1.
    job = scenario(allreduce_seconds=0.0, checkpoint_seconds=0.0, stack_seconds=1.0, steps=20_000)
    trials = repeated("elastic", job, 500.0).trials
    stacks = sum(t.stacks for t in trials) / sum(t.attempted for t in trials)
    lost = sum(t.losses for t in trials) / len(trials)
    share = lost / 60
    assert stacks == pytest.approx(-math.log1p(-share) / share, rel=0.03)


def test_spare_is_wiped_out_when_theory_says() -> None:
    job = scenario(groups=200, steps=6000, restart_seconds=0.0)
    trials = repeated("spare", job, 30.0, redundancy=5).trials
    per_cycle = sum(t.losses for t in trials) / sum(t.restarts for t in trials)
    # The last cycle of a trial has failures and no restart; a step can see several at once.
    assert per_cycle == pytest.approx(float(endurable_failures(200, 5)) + 0.5, rel=0.07)


def test_the_estimate_is_the_reordering_on_average() -> None:
    job = scenario(groups=200, steps=4000)
    exact, estimate = (
        repeated("spare", job, 40.0, redundancy=7, reordering=how) for how in ("exact", "estimate")
    )
    for name, tolerance in (("ttt_ratio", 0.02), ("stacks_per_step", 0.01)):
        one, other = (s.statistics[name].mean for s in (exact, estimate))
        assert one == pytest.approx(other, rel=tolerance)
    patches = [s.statistics["patches_per_step"].mean for s in (exact, estimate)]
    assert patches[0] == pytest.approx(patches[1], rel=0.1)


def test_an_estimated_patch_is_as_likely_as_theory_says() -> None:
    placement, hits = place(200, 7), 0
    rng = np.random.default_rng(3)
    strategy = EstimatedSpare(placement, rng=rng)
    for _ in range(1000):
        strategy.reset()
        strategy.lose(range(0, 120, 3))  # 40 dead: N/(N - k) = 1.25
        hits += strategy.lose([1]).patch > 0
    assert hits / 1000 == pytest.approx(float(patch_probability(200, 7, 40)), abs=0.05)


@pytest.mark.parametrize(("groups", "redundancy"), [(10, 3), (11, 3), (12, 3), (7, 5), (5, 5)])
def test_replication_lives_while_every_set_does(groups: int, redundancy: int) -> None:
    strategy = Replication(groups, redundancy=redundancy)
    sets = max(1, round(groups / redundancy))
    members = [
        [group for group in range(groups) if strategy._set_of[group] == one] for one in range(sets)
    ]
    assert sorted(group for mine in members for group in mine) == list(range(groups))
    for mine in members:
        assert not strategy.lose(mine[:-1]).fatal
        assert strategy.lose(mine[-1:]).fatal
        strategy.reset()


def test_the_slowest_of_many_groups() -> None:
    # z_600 = 3.09 and z_200 = 2.75 standard deviations above the mean.
    for groups, z in ((200, 2.746), (600, 3.091)):
        model = FailureModel.of_system(1e15, groups=groups)
        job = scenario(groups=groups, jitter=0.05, allreduce_seconds=0.0, checkpoint_seconds=0.0)
        rng = np.random.default_rng(1)
        trial = run_trial(
            job,
            Replication(groups, redundancy=4),
            Clocks(model, groups=groups, rng=rng),
            rng=rng,
        )
        step = trial.seconds / 2000
        assert step == pytest.approx(10 * (4 + 0.05 * z * math.sqrt(4)), rel=0.002)

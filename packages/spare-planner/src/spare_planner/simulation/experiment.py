"""Trials of one strategy, in as many processes as there are, and what they say together."""

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy import stats

from spare_planner.errors import QuantityError
from spare_planner.placement import place
from spare_planner.simulation.clocks import Clocks, FailureModel, Failures
from spare_planner.simulation.engine import Trial, run_trial
from spare_planner.simulation.scenario import Scenario
from spare_planner.simulation.strategies import (
    CheckpointOnly,
    Elastic,
    EstimatedSpare,
    Replication,
    Spare,
    Strategy,
)

__all__ = ["REORDERINGS", "STRATEGIES", "Experiment", "Statistic", "Summary", "simulate"]

STRATEGIES = ("spare", "replication", "checkpoint", "elastic")
"""Names of the strategies."""

REORDERINGS = ("auto", "exact", "estimate")
"""How SPARe's reordering is simulated: as it is, or by its lower bound on the stacks."""

_EXACT_UP_TO = 2_000  # groups, with "auto": beyond that the matchings take most of the time
_WORTH_A_POOL = 2.0  # seconds of work that starting processes must save


class FailureSource(Protocol):
    """Something that makes the failures of a trial, such as a log to replay."""

    def failures(self, *, groups: int, rng: np.random.Generator) -> Failures:
        """Return the failures of one trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One strategy on one job under one kind of failures.

    Attributes:
        strategy: One of `STRATEGIES`.
        scenario: The job.
        failures: How groups fail.
        redundancy: r, for ``spare`` and ``replication``.
        microbatches: Microbatches in a stack, for ``elastic``; None if they can be as small as one
            likes.
        one_draw: A replica's straggling is drawn once a step, as in the authors' simulator.
        reordering: One of `REORDERINGS`; ``auto`` is exact up to 2,000 groups.
    """

    strategy: str
    scenario: Scenario
    failures: FailureModel | FailureSource
    redundancy: int = 1
    microbatches: int | None = None
    one_draw: bool = False
    reordering: str = "auto"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise QuantityError(
                f"no strategy is named {self.strategy!r}: choose from {', '.join(STRATEGIES)}"
            )
        if self.reordering not in REORDERINGS:
            raise QuantityError(
                f"no reordering is named {self.reordering!r}: choose from {', '.join(REORDERINGS)}"
            )
        if not 1 <= self.redundancy <= self.scenario.groups:
            raise QuantityError(
                f"redundancy must be from 1 to {self.scenario.groups}, the number of groups,"
                f" got {self.redundancy}"
            )
        if self.scenario.timers and not isinstance(self.failures, FailureModel):
            raise QuantityError("the restarts of the paper need its failure clocks, not a trace")

    def run(self, seed: int, trial: int) -> Trial:
        """Run one trial; the same seed and number give the same one, wherever it runs."""
        rng = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(trial,)))
        groups, source = self.scenario.groups, self.failures
        failures = (
            Clocks(source, groups=groups, rng=rng)
            if isinstance(source, FailureModel)
            else source.failures(groups=groups, rng=rng)
        )
        return run_trial(self.scenario, self._strategy(rng), failures, rng=rng)

    def _strategy(self, rng: np.random.Generator) -> Strategy:
        groups = self.scenario.groups
        if self.strategy == "checkpoint":
            return CheckpointOnly(groups)
        if self.strategy == "elastic":
            return Elastic(groups, microbatches=self.microbatches)
        if self.strategy == "replication":
            return Replication(groups, redundancy=self.redundancy, one_draw=self.one_draw)
        placement = place(groups, self.redundancy)
        exact = self.reordering == "exact" or (self.reordering == "auto" and groups <= _EXACT_UP_TO)
        return Spare(placement) if exact else EstimatedSpare(placement, rng=rng)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistic:
    """A mean over trials with its 95% interval (Student's t).

    Attributes:
        mean: The mean; None if some trial got nowhere, so that there is none.
        low: Lower end; None with a single trial.
        high: Upper end; None with a single trial.
    """

    mean: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, values: list[float]) -> "Statistic":
        """Return the statistic of one value a trial."""
        if not all(map(math.isfinite, values)):
            return cls(mean=None, low=None, high=None)
        mean = math.fsum(values) / len(values)
        if len(values) == 1:
            return cls(mean=mean, low=None, high=None)
        margin = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
        return cls(mean=mean, low=mean - margin, high=mean + margin)

    def to_dict(self) -> dict[str, float | None]:
        """Return a JSON-ready dictionary."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Summary:
    """What the trials of an experiment say together.

    Attributes:
        experiment: What was run.
        trials: The trials, in order.
    """

    experiment: Experiment
    trials: tuple[Trial, ...]

    @cached_property
    def statistics(self) -> dict[str, Statistic]:
        """The statistics, by name.

        ``ttt_ratio``, ``availability``, ``availability_strict``, ``restarts``: as in `Trial`.
        ``stacks_per_step`` and ``patches_per_step``: over all steps begun. ``missing_groups``: mean
        number of groups missing while the job ran. ``seconds``: time to train.
        """

        def of(value: Callable[[Trial], float]) -> Statistic:
            return Statistic.of([value(trial) for trial in self.trials])

        return {
            "ttt_ratio": of(lambda t: t.ttt_ratio),
            "availability": of(lambda t: t.availability),
            "availability_strict": of(lambda t: t.availability_strict),
            "restarts": of(lambda t: t.restarts),
            "stacks_per_step": of(lambda t: t.stacks / t.attempted),
            "patches_per_step": of(lambda t: t.patches / t.attempted),
            "seconds": of(lambda t: t.ttt_ratio * t.ideal_seconds),
            "losses": of(lambda t: t.losses),
            "missing_groups": of(
                lambda t: t.missing_seconds / max(t.seconds - t.restart_seconds, 1e-9)
            ),
        }

    @property
    def finished(self) -> int:
        """How many trials came to their end; the others were given up."""
        return sum(trial.finished for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a JSON-ready dictionary."""
        experiment = self.experiment
        redundant = experiment.strategy in {"spare", "replication"}
        return {
            "strategy": experiment.strategy,
            "groups": experiment.scenario.groups,
            "redundancy": experiment.redundancy if redundant else 1,
            **{name: value.to_dict() for name, value in self.statistics.items()},
            "trials": len(self.trials),
            "finished": self.finished,
            "checkpoint_every": experiment.scenario.checkpoint_every,
        }


def simulate(
    experiment: Experiment,
    *,
    trials: int,
    seed: int = 0,
    processes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Run trials and put them together.

    The result depends on the seed and the number of trials, and not on the number of processes.

    Args:
        experiment: What to run.
        trials: How often, at least once.
        seed: Seed of all random numbers, not negative.
        processes: How many at most; None for as many as there are processors. More than one are
            started only if that can save time.
        progress: Called with the number of trials done, after each.

    Raises:
        QuantityError: A number is out of range.
    """
    if trials < 1:
        raise QuantityError(f"trials must be at least 1, got {trials}")
    if seed < 0:
        raise QuantityError(f"the seed must not be negative, got {seed}")
    if processes is not None and processes < 1:
        raise QuantityError(f"processes must be at least 1, got {processes}")
    done: dict[int, Trial] = {}
    for index, trial in _run_all(experiment, trials, seed, processes or os.cpu_count() or 1):
        done[index] = trial
        if progress:
            progress(len(done))
    return Summary(experiment, tuple(done[index] for index in range(trials)))


def _run_all(
    experiment: Experiment, trials: int, seed: int, processes: int
) -> Iterator[tuple[int, Trial]]:
    """Run trials, the first one here: it says whether more processes are worth it."""
    begin = time.perf_counter()
    yield 0, experiment.run(seed, 0)
    left = range(1, trials)
    saved = (time.perf_counter() - begin) * len(left) * (1 - 1 / processes)
    if saved < _WORTH_A_POOL:
        for index in left:
            yield index, experiment.run(seed, index)
        return
    with ProcessPoolExecutor(min(processes, len(left))) as pool:
        running = {pool.submit(experiment.run, seed, index): index for index in left}
        for future in as_completed(running):
            yield running[future], future.result()

"""Which strategy a cluster needs: forecasts choose candidates, simulations decide.

All strategies and redundancies are forecast in closed form. The best of each strategy is simulated,
and ranked by simulated time to train. More redundancy than one needs costs data to read, so of
SPARe it is the least redundant one that is within 1% of the best.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spare_planner.errors import QuantityError
from spare_planner.forecast import Forecast, forecast
from spare_planner.simulation.clocks import FailureModel
from spare_planner.simulation.experiment import (
    STRATEGIES,
    Experiment,
    Statistic,
    Summary,
    simulate,
)
from spare_planner.simulation.replay import Replay
from spare_planner.simulation.scenario import Scenario
from spare_planner.theory import optimal_redundancy

__all__ = ["Candidate", "Cluster", "Recommendation", "forecasts", "recommend"]

_HOPELESS = 20.0  # times the failure-free time from which on nothing is simulated
_AS_GOOD = 1.01  # times the best: the difference is not worth more redundancy
_NAMES = {
    "spare": "redundant stacks (SPARe)",
    "replication": "replication",
    "checkpoint": "checkpoints alone",
    "elastic": "elastic redistribution",
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is known of a cluster and its job.

    Attributes:
        scenario: The job; checkpoints are chosen here.
        failures: How groups fail.
        gpus_per_group: GPUs of a group; None if unknown.
        price: Price of one GPU for one hour; None if unknown.
        strategies: Which strategies are possible.
        redundancies: Redundancies of spare to look at; None for all that make sense.
        microbatches: Microbatches of a group in a step, for elastic; None if unknown.
    """

    scenario: Scenario
    failures: FailureModel | Replay
    gpus_per_group: int | None = None
    price: float | None = None
    strategies: tuple[str, ...] = STRATEGIES
    redundancies: tuple[int, ...] | None = None
    microbatches: int | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.strategies) - set(STRATEGIES)):
            raise QuantityError(
                f"no strategy is named {unknown[0]!r}: choose from {', '.join(STRATEGIES)}"
            )
        if not self.strategies:
            raise QuantityError("there is no strategy to choose from")
        if self.price is not None and not (math.isfinite(self.price) and self.price >= 0):
            raise QuantityError(f"the price must not be negative, got {self.price}")

    @property
    def gpus(self) -> int | None:
        """All GPUs in groups."""
        each = self.gpus_per_group
        return None if each is None else each * self.scenario.groups

    @property
    def mtbf(self) -> float:
        """Mean seconds between two failures anywhere."""
        if isinstance(self.failures, Replay):
            return self.failures.mtbf(self.scenario.groups)
        return self.failures.mean / self.scenario.groups

    @property
    def lost_at_once(self) -> float:
        """Mean number of groups that a failure takes."""
        if isinstance(self.failures, Replay):
            return 1.0
        block = min(self.failures.domain, self.scenario.groups)
        return 1 + self.failures.correlated * (block - 1)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to run the job.

    Attributes:
        cluster: Where.
        forecast: What is expected in closed form.
        summary: What was simulated; None if that seemed pointless.
    """

    cluster: Cluster
    forecast: Forecast
    summary: Summary | None

    @property
    def strategy(self) -> str:
        """Its strategy."""
        return self.forecast.strategy

    @property
    def name(self) -> str:
        """Its name, for people."""
        redundant = self.strategy in {"spare", "replication"}
        return _NAMES[self.strategy] + (f", r = {self.forecast.redundancy}" if redundant else "")

    @property
    def ttt_ratio(self) -> float:
        """Time-to-train over the failure-free time: simulated, or else forecast."""
        mean = None if self.summary is None else self.summary.statistics["ttt_ratio"].mean
        return self.forecast.ttt_ratio if mean is None else mean

    @property
    def seconds(self) -> float:
        """Time to train."""
        return self.ttt_ratio * self.cluster.scenario.ideal_seconds

    @property
    def checkpoint_seconds_apart(self) -> float:
        """From one checkpoint to the next, as long as nothing fails for good."""
        scenario, every = self.cluster.scenario, self.forecast.checkpoint_every
        if self.summary is None:
            return every * (scenario.stack_seconds + scenario.allreduce_seconds)
        trials = self.summary.trials
        down = sum(t.restart_seconds + t.checkpoint_seconds for t in trials)
        busy = (sum(t.seconds for t in trials) - down) / sum(t.attempted for t in trials)
        return every * busy + scenario.checkpoint_seconds

    @property
    def gpu_hours(self) -> float | None:
        """GPU hours of the whole run; all GPUs count all the time, working or not."""
        gpus = self.cluster.gpus
        return None if gpus is None else gpus * self.seconds / 3600

    @property
    def cost(self) -> float | None:
        """What they cost."""
        hours, price = self.gpu_hours, self.cluster.price
        return None if hours is None or price is None else hours * price

    @property
    def missing_groups(self) -> float | None:
        """Mean number of groups that are missing while the job runs."""
        return None if self.summary is None else self.summary.statistics["missing_groups"].mean

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary."""
        known = {} if self.summary is None else self.summary.statistics
        nothing = Statistic(mean=None, low=None, high=None)
        seconds = self.seconds
        return {
            "strategy": self.strategy,
            "redundancy": self.forecast.redundancy,
            "checkpoint_every": self.forecast.checkpoint_every,
            "checkpoint_interval": self.checkpoint_seconds_apart,
            "restart_below": self.forecast.restart_below,
            "forecast_ttt_ratio": _finite(self.forecast.ttt_ratio),
            **{
                key: known.get(key, nothing).to_dict()
                for key in (
                    "ttt_ratio",
                    "availability",
                    "availability_strict",
                    "restarts",
                    "stacks_per_step",
                    "patches_per_step",
                    "missing_groups",
                )
            },
            "days": _finite(seconds / 86_400),
            "gpu_hours": _finite(self.gpu_hours),
            "cost": _finite(self.cost),
            "trials": 0 if self.summary is None else len(self.summary.trials),
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to do, and why.

    Attributes:
        cluster: Where.
        candidates: What was looked at, the best first: by time to train, and of one strategy the
            least redundant that is within 1% of its best.
        all_forecasts: Every strategy and redundancy in closed form.
    """

    cluster: Cluster
    candidates: tuple[Candidate, ...]
    all_forecasts: tuple[Forecast, ...]

    @property
    def best(self) -> Candidate:
        """What to do."""
        return self.candidates[0]

    @property
    def runner_up(self) -> Candidate | None:
        """The best with another strategy; None if there is no other."""
        others = (c for c in self.candidates if c.strategy != self.best.strategy)
        return next(others, None)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON has them; the words are in `spare_planner.reasons`."""
        cluster, scenario = self.cluster, self.cluster.scenario
        gpus = cluster.gpus
        runner_up = self.runner_up
        return {
            "groups": scenario.groups,
            "gpus": gpus,
            "mtbf": cluster.mtbf,
            "gpu_mtbf": None if gpus is None else cluster.mtbf * gpus,
            "job": {
                "steps": scenario.steps,
                "step": scenario.stack_seconds,
                "allreduce": scenario.allreduce_seconds,
                "checkpoint": scenario.checkpoint_seconds,
                "restart": scenario.restart_seconds,
                "jitter": scenario.jitter,
                "repair": scenario.repair_seconds,
                "ideal_days": scenario.ideal_seconds / 86_400,
            },
            **self.best.to_dict(),
            "runner_up": None if runner_up is None else runner_up.to_dict(),
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }


def forecasts(cluster: Cluster, *, mtbf: float | None = None) -> Iterator[Forecast]:
    """Forecast every strategy and redundancy that the cluster allows.

    Args:
        cluster: The cluster.
        mtbf: Another mean time between failures than its own.
    """
    groups = cluster.scenario.groups
    for strategy in cluster.strategies:
        for redundancy in _redundancies(cluster, strategy, groups):
            yield forecast(
                strategy,
                cluster.scenario,
                mtbf=cluster.mtbf if mtbf is None else mtbf,
                redundancy=redundancy,
                microbatches=cluster.microbatches,
                lost_at_once=cluster.lost_at_once,
            )


def _redundancies(cluster: Cluster, strategy: str, groups: int) -> Sequence[int]:
    if strategy == "replication":
        return [r for r in (2, 3, 4) if r <= groups]
    if strategy != "spare":
        return [1]
    if cluster.redundancies is not None:
        return cluster.redundancies
    most = min(groups, int(optimal_redundancy(groups)) + 4)
    return range(2, most + 1)


def recommend(
    cluster: Cluster,
    *,
    trials: int = 8,
    seed: int = 0,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Choose a strategy for a cluster.

    Args:
        cluster: The cluster and its job.
        trials: How often each candidate is simulated; 0 to trust the forecasts.
        seed: Seed of the simulations.
        processes: How many at most; None for as many as there are processors.
        progress: Called with how many candidates are done, and how many there are.

    Raises:
        QuantityError: A number is out of range, or no strategy is possible.
    """
    if trials < 0:
        raise QuantityError(f"trials must not be negative, got {trials}")
    known = tuple(forecasts(cluster))
    if not known:
        raise QuantityError(
            f"{', '.join(cluster.strategies)} is not possible with {cluster.scenario.groups} groups"
        )
    chosen = _worth_simulating(known, cluster.scenario.groups)
    candidates = []
    for done, one in enumerate(chosen):
        candidates.append(_candidate(cluster, one, trials, seed, processes))
        if progress:
            progress(done + 1, len(chosen))
    return Recommendation(
        cluster=cluster, candidates=tuple(_ranked(candidates)), all_forecasts=known
    )


def _worth_simulating(known: Sequence[Forecast], groups: int) -> list[Forecast]:
    """Return the best of each strategy; of spare the least redundant good one, and the theory's."""
    chosen = []
    for strategy in dict.fromkeys(one.strategy for one in known):
        mine = [one for one in known if one.strategy == strategy]
        least = min(one.ttt_ratio for one in mine)
        good = [one for one in mine if one.ttt_ratio <= least * _AS_GOOD] or mine
        first = min(good, key=lambda one: one.redundancy)
        chosen.append(first)
        if strategy == "replication":
            # What fails together decides here, and no forecast knows of that.
            chosen += [one for one in mine if one is not first and one.ttt_ratio < 1.3 * least]
        if strategy == "spare":
            star = int(optimal_redundancy(groups))
            chosen += [one for one in mine if one.redundancy == star != first.redundancy]
    return sorted(chosen, key=lambda one: one.ttt_ratio)


def _ranked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates by time to train; of a strategy, less redundancy first if it is as good."""
    ranked = sorted(candidates, key=lambda candidate: candidate.ttt_ratio)
    for index, one in enumerate(ranked):
        good = [
            other
            for other in ranked[index:]
            if other.strategy == one.strategy and other.ttt_ratio <= one.ttt_ratio * _AS_GOOD
        ]
        if good:
            least = min(good, key=lambda other: other.forecast.redundancy)
            ranked.remove(least)
            ranked.insert(index, least)
    return ranked


def _candidate(
    cluster: Cluster, one: Forecast, trials: int, seed: int, processes: int | None
) -> Candidate:
    if not trials or one.ttt_ratio > _HOPELESS:
        return Candidate(cluster=cluster, forecast=one, summary=None)
    experiment = Experiment(
        strategy=one.strategy,
        scenario=dataclasses.replace(
            cluster.scenario,
            checkpoint_every=one.checkpoint_every,
            restart_below=one.restart_below,
            give_up=2 * _HOPELESS,
        ),
        failures=cluster.failures,
        redundancy=one.redundancy,
        microbatches=cluster.microbatches,
    )
    summary = simulate(experiment, trials=trials, seed=seed, processes=processes)
    return Candidate(cluster=cluster, forecast=one, summary=summary)

"""A recommendation in words: why, what it takes for granted, what has to stand by."""

import math
from collections.abc import Iterator

from scipy import stats

from spare_planner.durations import spoken
from spare_planner.forecast import forecast
from spare_planner.recommendation import Candidate, Recommendation, forecasts
from spare_planner.simulation.clocks import FailureModel

__all__ = ["caveats", "reasons"]


def reasons(made: Recommendation) -> Iterator[str]:
    """Yield why the best candidate is that."""
    cluster, best, second = made.cluster, made.best, made.runner_up
    scenario = cluster.scenario
    step = scenario.stack_seconds + scenario.allreduce_seconds
    per_restart = scenario.restart_seconds / cluster.mtbf
    yield (
        f"something fails every {spoken(cluster.mtbf)}, once in {cluster.mtbf / step:,.1f} steps;"
        f" a restart takes {spoken(scenario.restart_seconds)}, in which"
        f" {per_restart:,.2g} more failures would fall"
    )
    if second is not None:
        yield _comparison(best, second)
    told = {best.strategy} | ({second.strategy} if second else set())
    for other in made.candidates:
        if other.strategy not in told:
            told.add(other.strategy)
            yield f"{other.name} takes {_ratio(other.ttt_ratio)}: {_because(other)}"
    yield f"{best.name} takes {_ratio(best.ttt_ratio)}: {_because(best)}"
    if best.strategy == "spare":
        yield _flatness(made)
    plain = next((one for one in made.candidates if one.strategy == "checkpoint"), best)
    more = plain.ttt_ratio / best.ttt_ratio - 1
    if plain is not best and more < 0.05:
        yield (
            f"checkpoints alone take only {more:.1%} more time: redundancy is hardly worth its"
            " trouble on this cluster"
        )
    yield _stability(made)


def _comparison(best: Candidate, second: Candidate) -> str:
    ahead = 1 - best.ttt_ratio / second.ttt_ratio if math.isfinite(second.ttt_ratio) else 1.0
    if abs(ahead) < 0.005:
        return f"{best.name} and {second.name} take the same time: take what is simpler"
    text = f"{best.name} takes {ahead:.1%} less time than {second.name}"
    ends = [
        candidate.summary.statistics["ttt_ratio"] if candidate.summary else None
        for candidate in (best, second)
    ]
    one, other = ends
    if (
        one is not None
        and other is not None
        and one.high is not None
        and other.low is not None
        and one.high >= other.low
    ):
        return text + ", which the trials do not tell apart from chance: take what is simpler"
    return f"{text} ({_ratio(second.ttt_ratio)}: {_because(second)})"


def _because(candidate: Candidate) -> str:
    """Say where the time of a candidate goes."""
    cluster, one, summary = candidate.cluster, candidate.forecast, candidate.summary
    if summary is None or summary.statistics["ttt_ratio"].mean is None:
        if one.strategy == "checkpoint":
            return f"every failure costs a restart, every {spoken(cluster.mtbf)} of work"
        return "it hardly gets anywhere"
    trials = summary.trials
    total = sum(t.seconds for t in trials)
    restarts = sum(t.restart_seconds for t in trials) / total
    rework = sum(t.rework_seconds for t in trials) / total
    saving = sum(t.checkpoint_seconds for t in trials) / total
    stacks = sum(t.stacks + t.patches for t in trials) / sum(t.attempted for t in trials)
    planned = sum(t.planned_restarts for t in trials)
    how = f"each group computes {stacks:.2f} times its share" if stacks > 1.005 else ""
    lost = (
        f"{restarts:.1%} of the time goes to restarts, {rework:.1%} to work done again,"
        f" {saving:.1%} to checkpoints"
    )
    purpose = (
        f"; restarts on purpose once fewer than {one.restart_below:.1%} of the groups live"
        if planned
        else ""
    )
    return ", ".join(part for part in (how, lost) if part) + purpose


def _flatness(made: Recommendation) -> str:
    spare = [one for one in made.all_forecasts if one.strategy == "spare"]
    least = min(one.ttt_ratio for one in spare)
    near = [one.redundancy for one in spare if one.ttt_ratio <= 1.01 * least]
    return (
        f"redundancies from {min(near)} to {max(near)} are within 1% of the best one by forecast;"
        " the smallest needs the least data"
    )


def _stability(made: Recommendation) -> str:
    """Say for which mean times between failures the choice stays the same, by forecast."""
    cluster = made.cluster
    same = []
    factors = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    for factor in factors:
        best = min(forecasts(cluster, mtbf=cluster.mtbf * factor), key=lambda one: one.ttt_ratio)
        same.append(best.strategy == made.best.strategy)
    middle = factors.index(1.0)
    low = high = middle
    while low > 0 and same[low - 1]:
        low -= 1
    while high < len(factors) - 1 and same[high + 1]:
        high += 1
    if low == high:
        return "with failures twice as frequent, or half as frequent, another strategy would win"
    ends = f"{spoken(cluster.mtbf * factors[low])} to {spoken(cluster.mtbf * factors[high])}"
    return f"by forecast this stays the best strategy for a failure every {ends}"


def caveats(made: Recommendation) -> Iterator[str]:
    """Yield what a recommendation takes for granted, and what it needs."""
    cluster, best = made.cluster, made.best
    scenario, groups = cluster.scenario, cluster.scenario.groups
    if best.strategy == "elastic":
        worse = forecast(
            "elastic",
            scenario,
            mtbf=cluster.mtbf,
            microbatches=1,
            lost_at_once=cluster.lost_at_once,
        )
        split = (
            "the batch is taken to split as finely as one likes"
            if cluster.microbatches is None
            else f"a group has {cluster.microbatches} microbatches in a step"
        )
        yield (
            f"elastic: {split}; with one microbatch a group in a step it would take"
            f" {_ratio(worse.ttt_ratio)} by forecast. Any group must be able to read any part of"
            " the data, and the trainer must deal it out again within a step"
        )
    if best.strategy == "spare":
        yield (
            f"spare: every group must be able to read {best.forecast.redundancy} shares of a step's"
            f" data and not 1; its memory does not grow, as it computes one after the other. Any"
            f" {best.forecast.redundancy - 1} groups may be lost at once for certain, more by luck"
        )
        yield (
            "spare: if the trainer can deal the batch out again within a step, compare with"
            " --strategies elastic"
            if "elastic" not in cluster.strategies
            else "spare: nothing moves between groups when one is lost"
        )
    if best.strategy == "replication":
        yield "replication: the groups of a set must not share a node, a rack or a power feed"
    yield from _spares(made, groups)
    if isinstance(cluster.failures, FailureModel) and not cluster.failures.correlated:
        yield "failures are taken to be independent: --correlated and --domain, or --trace"
    if scenario.job_mtbf is None:
        yield (
            "failures of the whole job (software, storage, power) are not counted: --job-mtbf;"
            " keep the checkpoints for them, whatever the strategy"
        )


def _spares(made: Recommendation, groups: int) -> Iterator[str]:
    """Say what capacity has to stand by."""
    best, cluster = made.best, made.cluster
    scenario = cluster.scenario
    each = cluster.gpus_per_group

    def counted(number: float) -> str:
        gpus = "" if each is None else f" ({number * each:,.0f} GPUs)"
        return f"{number:,.0f} groups{gpus}"

    missing = best.missing_groups
    if missing:
        yield (
            f"capacity: on average {missing:,.1f} of {groups:,} groups are missing while the job"
            " runs; they are paid for all the same"
        )
    if scenario.repair_seconds is not None:
        away = scenario.repair_seconds / cluster.mtbf * cluster.lost_at_once
        pool = float(stats.poisson.ppf(0.99, away))
        yield (
            f"capacity: {away:,.1f} failures are under repair at a time; {counted(pool)} standing"
            " by would replace them at once in 99% of all moments"
        )
    else:
        lost = best.forecast.endured * cluster.lost_at_once
        yield (
            f"capacity: a restart is taken to bring all groups back, so about {counted(lost)} must"
            f" be repaired or replaced between two of them, every"
            f" {spoken(best.forecast.restart_seconds_apart)}"
        )


def _ratio(value: float) -> str:
    return f"{value:.2f} times the failure-free time" if math.isfinite(value) else "for ever"

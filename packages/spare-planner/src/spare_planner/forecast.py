"""What a simulation will measure, in closed form and to some percent: to choose, not to promise.

Between two restarts a job passes through states with k = 0, 1, 2, ... groups dead. State k lasts
``m N / (N - k)`` on average, a step in it takes f(k) times the failure-free one, and it is reached
with probability P(T > k), where failure T is the fatal one. A cycle ends with a restart: at the
wipe-out, or on purpose once K groups are dead, where K is chosen so that a cycle makes the most of
its time. Sums over these states give time to train and availability; the interval between
checkpoints is that of Saxena et al. (`spare_planner.intervals.checkpoint_interval`) for the mean
length of a cycle. Source: derived, and compared with the simulation in the tests.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from spare_planner.errors import QuantityError
from spare_planner.intervals import checkpoint_interval, expected_maximum
from spare_planner.simulation.scenario import Scenario
from spare_planner.theory import depth_bound, patch_probability, survival_probability

__all__ = ["Forecast", "forecast"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What is expected of a strategy.

    Attributes:
        strategy: Its name.
        redundancy: r; 1 where nothing is redundant.
        checkpoint_every: Steps from one checkpoint to the next that suit it.
        restart_below: Share of living groups below which a restart on purpose pays; 0 for never.
        ttt_ratio: Time-to-train over the failure-free time; infinity if it gets nowhere.
        availability_strict: Share of the time on steps that count.
        restart_seconds_apart: Mean time from one restart to the next.
        endured: Mean number of groups lost in that time.
    """

    strategy: str
    redundancy: int
    checkpoint_every: int
    restart_below: float
    ttt_ratio: float
    availability_strict: float
    restart_seconds_apart: float
    endured: float


def forecast(
    strategy: str,
    scenario: Scenario,
    *,
    mtbf: float,
    redundancy: int = 1,
    microbatches: int | None = None,
    lost_at_once: float = 1.0,
) -> Forecast:
    """Return what to expect of a strategy with clean restarts.

    Args:
        strategy: One of `spare_planner.simulation.experiment.STRATEGIES`.
        scenario: The job; its `checkpoint_every` and `restart_below` are what this chooses anew.
        mtbf: Mean seconds between two failures of the whole system.
        redundancy: r, for ``spare`` and ``replication``.
        microbatches: Microbatches in a stack, for ``elastic``.
        lost_at_once: Mean number of groups that a failure takes.

    Raises:
        QuantityError: A number is out of range.
    """
    if not (math.isfinite(mtbf) and mtbf > 0):
        raise QuantityError(f"the mean time between failures must be above 0 s, got {mtbf}")
    if not 1 <= redundancy <= scenario.groups:
        raise QuantityError(
            f"redundancy must be from 1 to {scenario.groups}, the number of groups,"
            f" got {redundancy}"
        )
    if microbatches is not None and microbatches < 1:
        raise QuantityError(f"a stack has at least 1 microbatch, got {microbatches}")
    if strategy == "checkpoint":
        return _checkpoint_only(scenario, mtbf=mtbf)
    n = scenario.groups
    dead = np.arange(n)
    apart = mtbf / lost_at_once * n / (n - dead)  # seconds a state lasts
    share = np.zeros(n)
    if strategy == "elastic":
        redundancy = 1
        stacks = n / (n - dead)
        share = np.minimum(stacks / (n - dead), 1.0)  # of one dead group, dealt over all others
        patch = share
        if microbatches is not None:
            stacks = np.ceil(stacks * microbatches - 1e-9) / microbatches
            patch = np.ceil(patch * microbatches - 1e-9) / microbatches
        survival = np.ones(n)
    elif strategy == "replication":
        stacks = np.full(n, float(redundancy))
        patch = np.zeros(n)
        survival = np.exp(-(n / redundancy) * (dead / n) ** redundancy)
    elif strategy == "spare":
        stacks = np.minimum(depth_bound(n, dead), redundancy)
        patch = patch_probability(n, redundancy, dead)
        survival = survival_probability(n, redundancy, dead)
    else:
        raise QuantityError(f"there is no forecast for a strategy named {strategy!r}")
    slowdown = _slowdown(scenario, stacks, patch, apart, share=share)
    if scenario.repair_seconds is None:
        return _without_returns(strategy, scenario, redundancy, apart, slowdown, survival)
    return _with_returns(
        strategy, scenario, redundancy, apart, slowdown, survival, apart_at_first=float(apart[0])
    )


def _slowdown(
    scenario: Scenario, stacks: Numbers, patch: Numbers, apart: Numbers, *, share: Numbers
) -> Numbers:
    """Return f(k): the mean time of a step over the failure-free one.

    A step in which something fails has a second round: the repair, the patch if it needs one, and
    the sum again. That round may see a failure as well, and so on.

    Args:
        scenario: The job.
        stacks: What a step computes.
        patch: Stacks to compute again in a round in which one failure happened, on average.
        apart: Mean seconds between two failures.
        share: Stacks to compute again for each of many failures in one round.
    """
    stack, allreduce = scenario.stack_seconds, scenario.allreduce_seconds
    spread = scenario.jitter * float(expected_maximum(scenario.groups))
    step = stack * (stacks + spread * np.sqrt(stacks)) + allreduce
    repair = scenario.detection_seconds + scenario.shrink_seconds + allreduce / 2

    def again(seconds: Numbers) -> tuple[Numbers, Numbers]:
        """Return the probability of another round, and the mean patch in it."""
        failures = seconds / apart
        return -np.expm1(-failures), np.maximum(-np.expm1(-failures * patch), failures * share)

    second, patched = again(step)
    third, patched_again = again(np.asarray(allreduce + np.minimum(patch, 1.0) * stack))
    rounds = second / np.maximum(1 - third, 1e-3)  # beyond the first
    total = step + rounds * repair + (patched + rounds * patched_again) * stack
    return np.asarray(total / _ideal_step(scenario))


def _ideal_step(scenario: Scenario) -> float:
    return scenario.stack_seconds + scenario.allreduce_seconds


def _without_returns(
    strategy: str,
    scenario: Scenario,
    redundancy: int,
    apart: Numbers,
    slowdown: Numbers,
    survival: Numbers,
) -> Forecast:
    """Forecast a job in which the dead come back with a restart only."""
    spent = survival * apart
    time = np.cumsum(spent)  # until K = 1, 2, ... are dead, or the wipe-out
    done = np.cumsum(spent / slowdown)  # in seconds of failure-free steps
    wiped = 1 - np.append(survival[1:], 0.0)  # the cycle has ended by itself before K were dead
    if scenario.job_mtbf is not None:
        # What ends the whole job shortens the later states of a cycle.
        share = np.exp(-time / scenario.job_mtbf)
        wiped = 1 - (1 - wiped) * share
        time, done = _cut(spent, slowdown, time, scenario.job_mtbf)
    interval = _interval(scenario, time)
    half = interval / 2
    # A wipe-out throws away half an interval; a restart on purpose comes half an interval late.
    late = np.append(slowdown[1:], slowdown[-1])
    cycle = time + scenario.restart_seconds + (1 - wiped) * half
    kept = done - wiped * np.minimum(half / slowdown, done) + (1 - wiped) * half / late
    kept = kept * (1 - scenario.checkpoint_seconds / interval)
    with np.errstate(divide="ignore"):
        ratio = np.where(kept > 0, cycle / kept, np.inf)
    best = int(ratio.argmin())
    never = len(ratio) - 1
    # Restarts on purpose have to pay for themselves clearly, or they are not worth the trouble.
    if strategy == "replication" or ratio[never] <= ratio[best] * 1.001:
        best = never
    mean_step = float(time[best] / done[best]) * _ideal_step(scenario)
    rework = float(wiped[best] * min(half[best], time[best]))
    up = 1 - (scenario.restart_seconds + rework) / float(cycle[best])
    return Forecast(
        strategy=strategy,
        redundancy=redundancy,
        checkpoint_every=_steps(scenario, float(interval[best]), mean_step),
        restart_below=0.0 if best == never else (scenario.groups - best - 0.5) / scenario.groups,
        ttt_ratio=float(ratio[best]),
        availability_strict=up * (1 - scenario.checkpoint_seconds / float(interval[best])),
        restart_seconds_apart=float(cycle[best]),
        endured=float(survival[: best + 1].sum()),
    )


def _cut(
    spent: Numbers, slowdown: Numbers, time: Numbers, job_mtbf: float
) -> tuple[Numbers, Numbers]:
    """Return times and work up to each state when the job may end at any moment before it."""
    begun = np.concatenate([[0.0], time[:-1]])
    mean = job_mtbf * (np.exp(-begun / job_mtbf) - np.exp(-time / job_mtbf))
    mean = np.minimum(mean, spent)
    return np.cumsum(mean), np.cumsum(mean / slowdown)


def _with_returns(
    strategy: str,
    scenario: Scenario,
    redundancy: int,
    apart: Numbers,
    slowdown: Numbers,
    survival: Numbers,
    *,
    apart_at_first: float,
) -> Forecast:
    """Forecast a job to which the dead come back one by one, after their repair.

    The number of dead is nearly Poisson. A failure is fatal if the other hosts of a type of the
    failed group are all dead.
    """
    assert scenario.repair_seconds is not None
    n, save = scenario.groups, scenario.checkpoint_seconds
    endless = float((survival * apart).sum())  # without any returns
    best, least = None, math.inf
    for interval in _intervals(scenario):
        away = scenario.repair_seconds
        if scenario.rejoin_at_checkpoints:
            away += interval / 2
        gone = away / (away + apart_at_first * n)
        spread = 10 * math.sqrt(gone * n) + 10
        states = np.arange(max(0, int(gone * n - spread)), min(n, int(gone * n + spread)))
        weights = stats.poisson.pmf(states, gone * n)
        mean = float((weights * slowdown[states]).sum() / weights.sum())
        between = math.inf
        if strategy != "elastic":
            sets = redundancy if strategy == "spare" else 1
            fatal = sets * gone ** (redundancy - 1) / apart_at_first
            between = max(endless, 1 / fatal)
        if scenario.job_mtbf is not None:
            between = 1 / (1 / between + 1 / scenario.job_mtbf)
        saving = 1 - save / interval
        up = 1 / (1 + (scenario.restart_seconds + interval / 2) / between)
        ratio = mean / saving / up
        if ratio < least:
            least = ratio
            best = Forecast(
                strategy=strategy,
                redundancy=redundancy,
                checkpoint_every=_steps(scenario, interval, mean * _ideal_step(scenario)),
                restart_below=0.0,
                ttt_ratio=ratio,
                availability_strict=up * saving,
                restart_seconds_apart=between,
                endured=between / apart_at_first,
            )
    assert best is not None
    return best


def _intervals(scenario: Scenario) -> list[float]:
    """Return intervals between checkpoints to choose from, from one step to one day."""
    step, save = _ideal_step(scenario), scenario.checkpoint_seconds
    longest = max(86_400.0, 2 * (save + step))
    return [float(t) for t in np.geomspace(save + step, longest, 60)]


def _checkpoint_only(scenario: Scenario, *, mtbf: float) -> Forecast:
    """Forecast a job that every failure sends back, exactly for exponential failures.

    With u seconds between two checkpoints, saved in s, it takes ``(m + R) (e^((u+s)/m) - 1)`` on
    average to get from one to the next, R the restart (Daly, without failures during restarts).
    """
    if scenario.job_mtbf is not None:
        mtbf = 1 / (1 / mtbf + 1 / scenario.job_mtbf)
    spread = scenario.jitter * float(expected_maximum(scenario.groups))
    step = scenario.stack_seconds * (1 + spread) + scenario.allreduce_seconds
    every = np.unique(np.geomspace(1, max(1, scenario.steps), 400).astype(np.int64))
    # Runs that take ages are equally bad.
    power = np.minimum((every * step + scenario.checkpoint_seconds) / mtbf, 500.0)
    down = scenario.restart_seconds + scenario.detection_seconds
    each = (mtbf + down) * np.expm1(power)
    ratio = each / (every * _ideal_step(scenario))
    best = int(ratio.argmin())
    finite = ratio[best] < 1e6
    return Forecast(
        strategy="checkpoint",
        redundancy=1,
        checkpoint_every=int(every[best]),
        restart_below=0.0,
        ttt_ratio=float(ratio[best]) if finite else math.inf,
        availability_strict=float(every[best] * step / each[best]),
        restart_seconds_apart=mtbf + down,
        endured=1.0,
    )


def _interval(scenario: Scenario, between: Numbers) -> Numbers:
    """Return the seconds from the start of one checkpoint to the next, its saving included."""
    best = checkpoint_interval(
        save=scenario.checkpoint_seconds, mtbf=between, restart=scenario.restart_seconds
    )
    # At least one step. A checkpoint that costs nothing is made at every step.
    return np.maximum(best, scenario.checkpoint_seconds + _ideal_step(scenario))


def _steps(scenario: Scenario, interval: float, step: float) -> int:
    """Return an interval in steps."""
    return max(1, round((interval - scenario.checkpoint_seconds) / step))

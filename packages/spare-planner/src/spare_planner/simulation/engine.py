"""One run of a job, from its first step to its last, through all failures on the way.

Groups fail at moments of their own. What a failure does shows where the job meets it: when the
gradients are summed, or at once if the strategy has no redundancy. Then the communicator is
repaired, the strategy says what has to be computed on top, and the sum is tried again, until it
succeeds or the job has to go back to its last checkpoint.
"""

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from spare_planner.simulation.clocks import Clocks, Failures
from spare_planner.simulation.scenario import Scenario
from spare_planner.simulation.straggling import Straggling
from spare_planner.simulation.strategies import Strategy

__all__ = ["Trial", "run_trial"]


@dataclass(kw_only=True, slots=True)
class Trial:
    """What one run was like. Times in seconds.

    Attributes:
        ideal_seconds: The run without failures, redundancy, checkpoints or stragglers.
        steps: Steps asked for.
        committed: Steps done at the end; fewer than `steps` if the run was given up.
        seconds: All of it.
        restart_seconds: In restarts.
        shrink_seconds: In detection and repair of the communicator.
        checkpoint_seconds: In checkpoints.
        rework_seconds: In work that a restart threw away.
        restarts: How many, planned ones included.
        planned_restarts: Those made on purpose, right after a checkpoint.
        attempted: Steps begun.
        stacks: Stacks computed by each group, over all steps begun; without patches.
        patches: Stacks computed on top of that.
        losses: Groups lost.
        missing_seconds: Sum over groups of the time that they were missing while the job ran.
    """

    ideal_seconds: float
    steps: int
    committed: int = 0
    seconds: float = 0.0
    restart_seconds: float = 0.0
    shrink_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    rework_seconds: float = 0.0
    restarts: int = 0
    planned_restarts: int = 0
    attempted: int = 0
    stacks: float = 0.0
    patches: float = 0.0
    losses: int = 0
    missing_seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.committed >= self.steps

    @property
    def ttt_ratio(self) -> float:
        """Time-to-train over the failure-free time; of what was done, if the run was given up.

        Infinity if that is less than one step in a hundred.
        """
        if self.committed * 100 < self.steps:
            return math.inf
        return self.seconds / (self.ideal_seconds * self.committed / self.steps)

    @property
    def availability(self) -> float:
        """Share of the time outside restarts and repairs; rework and checkpoints count as up.

        This is what the authors' simulator calls availability.
        """
        return 1 - (self.restart_seconds + self.shrink_seconds) / self.seconds

    @property
    def availability_strict(self) -> float:
        """Share of the time spent on steps that count: rework and checkpoints are down time too.

        This is the availability of the formulas.
        """
        lost = (self.checkpoint_seconds + self.rework_seconds) / self.seconds
        return max(0.0, self.availability - lost)  # no less, whatever rounding does


@dataclass(slots=True)
class _Run:
    """The state of a run in progress."""

    scenario: Scenario
    strategy: Strategy
    failures: Failures
    rng: np.random.Generator
    trial: Trial
    now: float = 0.0
    saved: int = 0  # steps in the last checkpoint
    saved_at: float = 0.0  # when work since then began
    lost_shrink: float = 0.0  # repairs since then: down already, so not rework as well
    disaster: float = math.inf  # when the whole job fails next
    dead: set[int] = field(default_factory=set)
    repairs: list[tuple[float, int]] = field(default_factory=list)  # a heap: when, who


def run_trial(
    scenario: Scenario,
    strategy: Strategy,
    failures: Failures,
    *,
    rng: np.random.Generator,
) -> Trial:
    """Run a job once.

    Args:
        scenario: What runs.
        strategy: How it lives with failures; as new.
        failures: When groups fail; as new.
        rng: Draws straggling and disasters.
    """
    trial = Trial(ideal_seconds=scenario.ideal_seconds, steps=scenario.steps)
    run = _Run(scenario, strategy, failures, rng, trial)
    _next_disaster(run)
    straggling = Straggling(scenario.jitter, rng=rng)
    limit = scenario.give_up * scenario.ideal_seconds
    stack, allreduce = scenario.stack_seconds, scenario.allreduce_seconds
    while trial.committed < scenario.steps and run.now < limit:
        if run.repairs and not scenario.rejoin_at_checkpoints:
            _rejoin(run)
        trial.attempted += 1
        trial.stacks += strategy.stacks
        missing, begin = len(run.dead), run.now
        longest = straggling.slowest(strategy.alive, stacks=strategy.stacks, draws=strategy.draws)
        done = run.now + longest * stack + allreduce
        committed = (failures.pending() > done and run.disaster > done) or _survived(
            run, done, straggling
        )
        if committed:
            run.now = max(done, run.now)
            trial.committed += 1
        trial.missing_seconds += missing * (run.now - begin)
        if not committed:
            _restart(run)
        elif trial.committed % scenario.checkpoint_every == 0 and trial.committed < scenario.steps:
            _checkpoint(run)
    trial.seconds = run.now
    return trial


def _survived(run: _Run, done: float, straggling: Straggling) -> bool:
    """Live through the failures of a step that would be done by then; False for a restart.

    Leaves the clock at the end of the step, or at the moment at which it is given up.
    """
    scenario, strategy, trial = run.scenario, run.strategy, run.trial
    while True:
        first = min(run.failures.pending(), run.disaster)
        if run.disaster <= done and (strategy.at_once or run.disaster <= first):
            # Nothing of the job is left that could notice anything later.
            run.now = run.disaster + scenario.detection_seconds
            return False
        groups = run.failures.until(first if strategy.at_once else done)
        if not groups:
            run.now = done
            return True
        trial.losses += len(groups)
        if strategy.at_once:
            run.now = max(first, run.now) + scenario.detection_seconds
            _bury(run, groups, first)
            return False
        down = scenario.detection_seconds + scenario.shrink_seconds
        # On average a sum that fails has come half way.
        run.now = done - scenario.allreduce_seconds / 2 + down
        _bury(run, groups, run.now)
        loss = strategy.lose(groups)
        trial.shrink_seconds += down
        run.lost_shrink += down
        if loss.fatal:
            return False
        if not loss.patch and scenario.timers:
            return True
        done = run.now + scenario.allreduce_seconds
        if loss.patch:
            trial.patches += loss.patch
            longest = straggling.slowest(loss.patchers, stacks=loss.patch, draws=loss.patch)
            done += longest * scenario.stack_seconds


def _bury(run: _Run, groups: list[int], now: float) -> None:
    """Note who is dead, and when it will have been repaired."""
    run.dead.update(groups)
    if run.scenario.repair_seconds is None:
        return
    for group in groups:
        known = run.failures.repair_seconds(group)
        seconds = run.scenario.repair_seconds if known is None else known
        heapq.heappush(run.repairs, (now + seconds, group))


def _rejoin(run: _Run) -> None:
    """Take back the groups whose repair is over."""
    back = []
    while run.repairs and run.repairs[0][0] <= run.now:
        back.append(heapq.heappop(run.repairs)[1])
    if back:
        run.dead.difference_update(back)
        run.strategy.rejoin(back)
        run.failures.revive(back, run.now)


def _checkpoint(run: _Run) -> None:
    scenario, trial = run.scenario, run.trial
    done = run.now + scenario.checkpoint_seconds
    first = min(run.failures.pending(), run.disaster)
    if first <= done and (run.strategy.at_once or run.disaster == first):
        # The checkpoint dies with the job. Otherwise the next step will notice.
        if run.disaster > first:
            groups = run.failures.until(first)
            trial.losses += len(groups)
            _bury(run, groups, first)
        run.now = first + scenario.detection_seconds
        _restart(run)
        return
    run.now = done
    trial.checkpoint_seconds += scenario.checkpoint_seconds
    _save(run)
    if scenario.repair_seconds is not None:
        _rejoin(run)
    if run.strategy.alive < scenario.restart_below * scenario.groups:
        trial.planned_restarts += 1
        _restart(run)


def _save(run: _Run) -> None:
    run.saved, run.saved_at, run.lost_shrink = run.trial.committed, run.now, 0.0


def _restart(run: _Run) -> None:
    """Go back to the last checkpoint with all groups."""
    scenario, trial, failures = run.scenario, run.trial, run.failures
    trial.restarts += 1
    trial.rework_seconds += run.now - run.saved_at - run.lost_shrink
    begin = run.now
    if scenario.timers and isinstance(failures, Clocks):
        run.now = failures.restart_on_timers(begin, scenario.restart_seconds)
    else:
        run.now = begin + scenario.restart_seconds
        failures.down(begin, run.now)
        failures.revive(sorted(run.dead), run.now)
    trial.restart_seconds += run.now - begin
    run.dead.clear()
    run.repairs.clear()
    run.strategy.reset()
    trial.committed = run.saved
    _save(run)
    _next_disaster(run)


def _next_disaster(run: _Run) -> None:
    if run.scenario.job_mtbf is not None:
        run.disaster = run.now + run.rng.exponential(run.scenario.job_mtbf)

"""Failures as a real cluster had them.

The log of U units is laid over the cluster that is simulated, whatever its size: as many copies as
it takes, each with a random start within the log (which begins anew at its end) and with its units
in random places. Failures that came together stay together. Within one copy nothing changes but
who stands where, so a cluster of the log's own size is the log itself.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spare_planner.errors import QuantityError
from spare_planner.failure_log import FailureLog

__all__ = ["Replay", "ReplayedFailures"]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How a log is laid over a cluster.

    Attributes:
        log: What happened.
        gpus_per_unit: GPUs that fail as one in the log.
        gpus_per_group: GPUs in a simulated group.
        own_repairs: Groups that come back take as long as the log says.
        from_start: Every copy starts with the beginning of the log.
    """

    log: FailureLog
    gpus_per_unit: int
    gpus_per_group: int
    own_repairs: bool = False
    from_start: bool = False

    def __post_init__(self) -> None:
        for name in ("gpus_per_unit", "gpus_per_group"):
            if getattr(self, name) < 1:
                raise QuantityError(f"{name} must be at least 1, got {getattr(self, name)}")

    def units(self, groups: int) -> int:
        """Return how many units that many groups stand on."""
        return max(1, -(-groups * self.gpus_per_group // self.gpus_per_unit))

    def mtbf(self, groups: int) -> float:
        """Return mean seconds between two faults of units under that many groups."""
        log = self.log
        return log.seconds / len(log.faults) * log.units / self.units(groups)

    def failures(self, *, groups: int, rng: np.random.Generator) -> "ReplayedFailures":
        """Return the failures of one trial."""
        log, units = self.log, self.units(groups)
        starts = np.asarray([fault.start for fault in log.faults])
        of_unit = np.asarray([fault.unit for fault in log.faults])
        lengths = np.asarray([fault.seconds for fault in log.faults])
        copies = -(-units // log.units)
        places = np.concatenate(
            [rng.permutation(log.units)[of_unit] + copy * log.units for copy in range(copies)]
        )
        shifts = np.zeros(copies) if self.from_start else rng.random(copies) * log.seconds
        times = ((starts + shifts[:, None]) % log.seconds).ravel()
        first = places * self.gpus_per_unit // self.gpus_per_group
        last = ((places + 1) * self.gpus_per_unit - 1) // self.gpus_per_group
        lengths = np.tile(lengths, copies)
        parts = []  # a unit may stand under several groups
        for offset in range(int((last - first).max()) + 1):
            here = (first + offset <= last) & (first + offset < groups) & (places < units)
            parts.append((times[here], first[here] + offset, lengths[here]))
        when, who, length = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((who, when))
        return ReplayedFailures(
            list(
                zip(when[order].tolist(), who[order].tolist(), length[order].tolist(), strict=True)
            ),
            groups=groups,
            span=log.seconds,
            own_repairs=self.own_repairs,
        )


class ReplayedFailures:
    """Failures from a list, which is repeated for ever; see `Failures`.

    Args:
        events: When which group fails and for how long, sorted, times in [0, span].
        groups: How many groups there are, all alive.
        span: Length of the list in seconds.
        own_repairs: Tell how long repairs take.
    """

    def __init__(
        self,
        events: list[tuple[float, int, float]],
        *,
        groups: int,
        span: float,
        own_repairs: bool,
    ) -> None:
        self._events = events
        self._alive = [True] * groups
        self._span = span
        self._own_repairs = own_repairs
        self._next = 0  # index of the first event to come, in this round
        self._before = 0.0  # length of all rounds before
        self._lengths: dict[int, float] = {}

    def pending(self) -> float:
        """Return when the next group that lives now fails."""
        events, alive = self._events, self._alive
        for index in range(self._next, len(events)):
            if alive[events[index][1]]:
                return events[index][0] + self._before
        for when, group, _ in events[: self._next]:  # in the round after this one
            if alive[group]:
                return when + (self._before + self._span)
        return math.inf

    def until(self, time: float) -> list[int]:
        """Return the groups that fail up to a time."""
        dead = []
        while self._events:
            if self._next == len(self._events):
                self._next = 0
                self._before += self._span
            when, group, length = self._events[self._next]
            if when + self._before > time:
                break
            self._next += 1
            if self._alive[group]:
                self._alive[group] = False
                self._lengths[group] = length
                dead.append(group)
        return dead

    def revive(self, groups: Iterable[int], time: float) -> None:  # noqa: ARG002 - no clocks here
        """Let groups live again."""
        for group in groups:
            self._alive[group] = True

    def down(self, begin: float, end: float) -> None:  # noqa: ARG002 - all up to the end is skipped
        """Skip what happened while the job stood: a restart replaces what is broken by then."""
        missed = self.until(end)
        self.revive(missed, end)

    def repair_seconds(self, group: int) -> float | None:
        """Return how long the fault that took a group lasted, if that counts and is known."""
        length = self._lengths.get(group, math.inf)
        return length if self._own_repairs and math.isfinite(length) else None

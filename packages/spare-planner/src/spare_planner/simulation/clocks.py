"""When groups fail: a renewal clock for each, on its own or with its neighbours.

A group's time to failure is Weibull or exponential. Dead groups do not fail; a group that comes
back starts a new clock. With `domain` above 1, a share of the failures takes everything in the same
block of neighbouring groups with it: a node, a rack, a power feed.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spare_planner.errors import QuantityError

__all__ = ["Clocks", "FailureModel", "Failures"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureModel:
    """How groups fail.

    Attributes:
        scale: Scale of a group's time to failure, in seconds.
        shape: Shape of the Weibull distribution. 1 is exponential; below 1 a group that has just
            come back is the likeliest to fail again.
        aged: The groups have been in service for long when the run starts, so that failures come
            at their mean rate from the first second. Otherwise all are new, and with a shape below
            1 failures are frequent at first.
        renewed_at_death: A dead group's next clock starts when it dies, unseen, and not when it
            comes back, as in the authors' simulator. Matters to restarts on timers only.
        domain: Groups in a block that can fail as one.
        correlated: Share of the failures that take their whole block.
    """

    scale: float
    shape: float = 1.0
    aged: bool = True
    renewed_at_death: bool = False
    domain: int = 1
    correlated: float = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "shape"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise QuantityError(f"{name} must be a number above 0, got {value}")
        if self.domain < 1:
            raise QuantityError(f"a domain must have at least 1 group, got {self.domain}")
        if not 0 <= self.correlated <= 1:
            raise QuantityError(f"correlated must be a share from 0 to 1, got {self.correlated}")

    @classmethod
    def of_system(
        cls,
        mtbf: float,
        *,
        groups: int,
        shape: float = 1.0,
        aged: bool = True,
        domain: int = 1,
        correlated: float = 0.0,
    ) -> "FailureModel":
        """Return the model of `groups` groups that together fail every `mtbf` seconds.

        Raises:
            QuantityError: A number is out of range.
        """
        if not (math.isfinite(mtbf) and mtbf > 0):
            raise QuantityError(f"the mean time between failures must be above 0 s, got {mtbf}")
        if not (math.isfinite(shape) and shape > 0.05):
            raise QuantityError(f"the Weibull shape must be a number above 0.05, got {shape}")
        return cls(
            scale=mtbf * groups / math.gamma(1 + 1 / shape),
            shape=shape,
            aged=aged,
            domain=domain,
            correlated=correlated,
        )

    @property
    def mean(self) -> float:
        """Mean time to failure of one group, in seconds."""
        return self.scale * math.gamma(1 + 1 / self.shape)

    def lifetimes(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw lifetimes of groups that are new."""
        return self.scale * rng.weibull(self.shape, count)

    def residuals(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw what is left of lifetimes that are looked at, at a random moment.

        The density of the rest is survival(t) / mean, which makes (t / scale)^shape a Gamma
        variable of shape 1/shape (renewal theory).
        """
        left = rng.gamma(1 / self.shape, 1.0, count) ** (1 / self.shape)
        return np.asarray(self.scale * left)


class Failures(Protocol):
    """Where the engine learns who dies when. Times are seconds of wall time since the start."""

    def pending(self) -> float:
        """Return when the next living group dies, at the latest; infinity if none will."""

    def until(self, time: float) -> list[int]:
        """Return the groups that die up to a time, now dead."""

    def revive(self, groups: Iterable[int], time: float) -> None:
        """Let groups live again from a time on."""

    def down(self, begin: float, end: float) -> None:
        """The job stands from one time to the other."""

    def repair_seconds(self, group: int) -> float | None:
        """Return how long the repair of a dead group takes, if that is known."""


class Clocks:
    """Failures drawn from a `FailureModel`.

    Args:
        model: The distribution.
        groups: How many groups there are, all alive.
        rng: Source of all draws.
    """

    def __init__(self, model: FailureModel, *, groups: int, rng: np.random.Generator) -> None:
        self._model = model
        self._groups = groups
        self._rng = rng
        self._stood = 0.0  # how long clocks have stood still; added to what they show
        draw = model.residuals if model.aged else model.lifetimes
        self._clock: list[float] = draw(groups, rng).tolist()  # when each dies; inf if dead
        self._heap = [(time, group) for group, time in enumerate(self._clock)]
        heapq.heapify(self._heap)
        self._unseen: dict[int, float] = {}  # clocks of the dead, if they run

    def pending(self) -> float:
        """Return when the next clock expires."""
        heap, clock = self._heap, self._clock
        while heap and clock[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)  # died otherwise, or has a new clock
        return heap[0][0] + self._stood if heap else math.inf

    def until(self, time: float) -> list[int]:
        """Return the groups that die up to a time, in the order of their deaths."""
        dead: list[int] = []
        heap, clock, model = self._heap, self._clock, self._model
        stood = self._stood
        while heap and heap[0][0] + stood <= time:  # rounded as `pending` does
            when, group = heapq.heappop(heap)
            if clock[group] != when:
                continue
            clock[group] = math.inf
            dead.append(group)
            if model.correlated and self._rng.random() < model.correlated:
                block = group - group % model.domain
                for other in range(block, min(block + model.domain, self._groups)):
                    if clock[other] != math.inf:
                        clock[other] = math.inf
                        dead.append(other)
        if dead and model.renewed_at_death:
            clocks = model.lifetimes(len(dead), self._rng) + time
            self._unseen.update(zip(dead, clocks.tolist(), strict=True))
        return dead

    def revive(self, groups: Iterable[int], time: float) -> None:
        """Start new clocks."""
        ids = list(groups)
        times = self._model.lifetimes(len(ids), self._rng) + (time - self._stood)
        for group, when in zip(ids, times.tolist(), strict=True):
            self._clock[group] = when
            heapq.heappush(self._heap, (when, group))

    def down(self, begin: float, end: float) -> None:
        """Let all clocks stand still for that long."""
        self._stood += end - begin

    def repair_seconds(self, group: int) -> float | None:  # noqa: ARG002 - not this model's matter
        """Return None: the model knows nothing of repairs."""
        return None

    def restart_on_timers(self, time: float, seconds: float) -> float:
        """Restart every group on its own timer and return when the last one is up.

        A group whose clock expires within its restart begins that again, with a new clock. Clocks
        go on running, also those of groups that are up and wait: the authors' simulator, which
        makes a restart about twice as long as its parameter and lets about a restart's worth of
        failures fall into the first step after it.
        """
        clock = np.asarray(self._clock)
        dead = np.flatnonzero(np.isinf(clock))
        clock[dead] = [self._unseen.get(group, time) for group in dead.tolist()]
        self._unseen.clear()
        while len(dead := dead[clock[dead] <= time]):  # so often has it failed while it was dead
            clock[dead] += self._model.lifetimes(len(dead), self._rng)
        begun = np.full(self._groups, time)
        while True:
            again = np.flatnonzero(clock < begun + seconds)
            if not len(again):
                break
            begun[again] = np.maximum(clock[again], begun[again])
            clock[again] = begun[again] + self._model.lifetimes(len(again), self._rng)
        self._clock = clock.tolist()
        self._heap = [(when, group) for group, when in enumerate(self._clock)]
        heapq.heapify(self._heap)
        return float(begun.max()) + seconds

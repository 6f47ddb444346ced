"""Failure schedules that are drawn from a seed, for soak tests and experiments."""

import random
from collections.abc import Mapping

from grad_txn.errors import ScheduleError
from grad_txn.failures.places import At
from grad_txn.failures.schedule import Kill, Schedule, Shape, place_named

__all__ = ["generate"]


def generate(
    shape: Shape,
    *,
    seed: int,
    count: int,
    first_step: int = 0,
    last_step: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> Schedule:
    """Draw a schedule: a pure function of its arguments, so every rank may draw its own copy.

    Each death takes another replica. A death drawn at a place inside a recovery brings the death
    it needs along: another replica in the same step, ``during_sync``; both count.

    Args:
        shape: Replicas, ranks and steps of the job.
        seed: Any integer; the same arguments and seed give the same schedule.
        count: Deaths to draw, 0 to ``shape.replicas - 1``: the last replica is never killed.
        first_step: First step that may be hit.
        last_step: Last step that may be hit; the last of the run by default.
        weights: Relative weight of each place; places left out are never drawn. All places
            weigh the same by default.

    Returns:
        ``count`` entries in the order in which they happen.

    Raises:
        ScheduleError: An argument is out of range; names it, its value and the range.
    """
    last_step = shape.steps - 1 if last_step is None else last_step
    if not 0 <= count < shape.replicas:
        raise ScheduleError(
            f"count is {count}; {shape.replicas} replicas can lose 0 to {shape.replicas - 1}, "
            "one has to survive"
        )
    if not 0 <= first_step <= last_step < shape.steps:
        raise ScheduleError(
            f"steps {first_step} to {last_step} are no range inside 0 to {shape.steps - 1}"
        )
    places = _places(weights)
    outside = {at: weight for at, weight in places.items() if not at.in_recovery}
    rng = random.Random(seed)
    living = list(range(shape.replicas))
    kills: list[Kill] = []

    def kill(step: int, at: At) -> None:
        replica = living.pop(int(rng.random() * len(living)))
        position = int(rng.random() * shape.replica_size)
        kills.append(Kill(step=step, replica=replica, position=position, at=at))

    while len(kills) < count:
        step = first_step + int(rng.random() * (last_step - first_step + 1))
        if count - len(kills) >= 2:
            at = _draw(rng, places)
        else:
            at = _draw(rng, outside or {At.DURING_SYNC: 1.0})
        if at.in_recovery:
            kill(step, At.DURING_SYNC)
        kill(step, at)
    order = list(At)
    return tuple(sorted(kills, key=lambda kill: (kill.step, order.index(kill.at), kill.replica)))


def _places(weights: Mapping[str, float] | None) -> dict[At, float]:
    if weights is None:
        return dict.fromkeys(At, 1.0)
    places = {place_named(name): float(weight) for name, weight in weights.items()}
    for at, weight in places.items():
        if not 0 <= weight < float("inf"):
            raise ScheduleError(f"the weight of {at} is {weight}; it must be a number from 0")
    places = {at: weight for at, weight in places.items() if weight > 0}
    if not places:
        raise ScheduleError("no place has a weight above 0; give at least one")
    return places


def _draw(rng: random.Random, weights: Mapping[At, float]) -> At:
    """Draw with ``random()`` alone: the one sequence Python promises never to change."""
    left = rng.random() * sum(weights.values())
    for at, weight in weights.items():
        left -= weight
        if left < 0:
            return at
    return at

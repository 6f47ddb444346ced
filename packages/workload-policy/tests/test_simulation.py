"""Simulations: schedules that cannot happen, and what a step reports."""

import pytest

from workload_policy import LayoutError, NoSurvivorsError, ScheduleError, StaticWorld, load_policy
from workload_policy.simulation import SimulatedStep, simulate


def static(
    steps: int,
    failures: dict[int, list[int]] | None = None,
    joins: dict[int, int] | None = None,
    replicas: int = 32,
) -> list[SimulatedStep]:
    return list(
        simulate(
            StaticWorld(),
            replicas=replicas,
            grad_accum=8,
            steps=steps,
            failures=failures,
            joins=joins,
        )
    )


def test_the_papers_two_failures() -> None:
    steps = static(4, {1: [31], 2: [28]})
    assert [step.survivors for step in steps] == [32, 31, 30, 30]
    assert [step.entry.boundary for step in steps] == [False, True, False, False]
    assert [step.longest for step in steps] == [8, 9, 9, 9]
    assert [step.computed for step in steps] == [256, 264, 269, 265]
    assert all(step.entry.total == 256 for step in steps)


def test_newcomers_get_new_ids_and_can_die() -> None:
    steps = static(4, {0: [0], 2: [32]}, {1: 1, 2: 2})
    assert [step.joined for step in steps] == [(), (32,), (33, 34), ()]
    assert list(steps[3].entry.contributions) == [*range(1, 32), 33, 34]


def test_what_is_printed_for_a_step() -> None:
    (step,) = static(1, {0: [3, 1]}, replicas=4)
    assert step.to_dict() == {
        "step": 0,
        "survivors": 2,
        "failed": [1, 3],
        "boundary": True,
        "extra": 8,
        "boundary_minors": 0,
        "contributions": [16, 16],
        "total": 32,
    }


@pytest.mark.parametrize(
    ("steps", "failures", "joins", "message"),
    [
        (0, {}, {}, "steps must be at least 1, got 0"),
        (3, {3: [1]}, {}, "step 3 is not simulated: steps are 0 to 2"),
        (3, {-1: [1]}, {}, "step -1 is not simulated"),
        (3, {}, {3: 1}, "step 3 is not simulated"),
        (3, {1: [32]}, {}, "replica 32 cannot fail at step 1: replicas are 0 to 31"),
        (3, {1: [32]}, {2: 1}, "replica 32 cannot fail at step 1"),
        (3, {1: [-1]}, {}, "replica -1 cannot fail"),
        (3, {1: [5], 2: [5]}, {}, "replica 5 cannot fail at step 2: it failed at step 1"),
        (3, {1: [5, 5]}, {}, "replica 5 cannot fail at step 1: it failed at step 1"),
        (3, {}, {1: 0}, "0 replicas cannot join at step 1"),
    ],
)
def test_a_schedule_that_cannot_happen(
    steps: int, failures: dict[int, list[int]], joins: dict[int, int], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        static(steps, failures, joins)


def test_errors_come_before_the_first_step() -> None:
    with pytest.raises(NoSurvivorsError, match="no replica survives step 1"):
        simulate(StaticWorld(), replicas=2, grad_accum=8, steps=3, failures={1: [0, 1]})
    with pytest.raises(LayoutError):
        simulate(StaticWorld(), replicas=2, grad_accum=0, steps=3)


@pytest.mark.parametrize("name", ["static", "exact", "adaptive"])
def test_a_large_world(name: str) -> None:
    steps = list(
        simulate(
            load_policy(name), replicas=1000, grad_accum=16, steps=10, failures={2: [7], 5: [1, 2]}
        )
    )
    totals = {step.entry.total for step in steps}
    assert totals == ({16000, 15984, 15952} if name == "adaptive" else {16000})

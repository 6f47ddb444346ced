"""Steady-state splits against the paper's numbers and an oracle that counts instead of dividing."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload_policy import (
    AdaptiveWorld,
    ExactBatch,
    Layout,
    LayoutError,
    Policy,
    Role,
    StaticWorld,
)

SMALL_SHAPES = list(itertools.product(range(1, 9), range(1, 6), range(1, 12)))


def counts(layout: Layout) -> tuple[int, ...]:
    return (
        layout.grad_accum,
        layout.majors,
        layout.minors,
        layout.minor_quota,
        layout.major_spares,
        layout.minor_spares,
    )


def algorithm_7(batch: int, survivors: int) -> tuple[int, ...]:
    """The paper's pseudo-code, one increment at a time."""
    accum = 1
    while survivors * accum < batch:
        accum += 1
    majors = 0
    while (majors + 1) * accum <= batch:
        majors += 1
    quota = batch - majors * accum
    minors = 1 if quota > 0 else 0
    rest = survivors - majors - minors
    minor_spares = 1 if minors == 1 and rest >= 2 else 0
    return accum, majors, minors, quota, rest - minor_spares, minor_spares


def test_the_papers_example_after_one_failure() -> None:
    layout = StaticWorld().layout(replicas=32, grad_accum=8, survivors=31)
    assert counts(layout) == (9, 28, 1, 4, 1, 1)
    assert layout.global_batch == 256
    assert layout.contributions == (9,) * 28 + (4, 0, 0)
    assert layout.quotas == (9,) * 28 + (4, 9, 4)
    assert layout.roles[28:] == (Role.MINOR, Role.MAJOR_SPARE, Role.MINOR_SPARE)


def test_static_follows_algorithm_7() -> None:
    for replicas, grad_accum, survivors in SMALL_SHAPES:
        layout = StaticWorld().layout(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
        assert counts(layout) == algorithm_7(replicas * grad_accum, survivors), layout


@pytest.mark.property
@given(st.integers(1, 300), st.integers(1, 200), st.integers(1, 700))
def test_static_layout_of_any_shape(replicas: int, grad_accum: int, survivors: int) -> None:
    layout = StaticWorld().layout(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
    assert counts(layout) == algorithm_7(replicas * grad_accum, survivors)
    assert sum(layout.contributions) == layout.total == replicas * grad_accum


def test_exact_is_the_even_split() -> None:
    for replicas, grad_accum, survivors in SMALL_SHAPES:
        layout = ExactBatch().layout(replicas=replicas, grad_accum=grad_accum, survivors=survivors)
        shares = [0] * survivors
        for microbatch in range(replicas * grad_accum):
            shares[microbatch % survivors] += 1
        assert layout.contributions == layout.quotas == tuple(shares)
        assert layout.major_spares == layout.minor_spares == 0


def test_adaptive_keeps_the_share_and_loses_batch() -> None:
    layout = AdaptiveWorld().layout(replicas=32, grad_accum=8, survivors=31)
    assert layout.contributions == (8,) * 31
    assert (layout.total, layout.global_batch) == (248, 256)


def test_more_replicas_than_microbatches() -> None:
    static = StaticWorld().layout(replicas=2, grad_accum=2, survivors=7)
    assert static.contributions == (1, 1, 1, 1, 0, 0, 0)
    assert static.major_spares == 3
    exact = ExactBatch().layout(replicas=2, grad_accum=2, survivors=7)
    assert exact.quotas == (1, 1, 1, 1, 0, 0, 0)


def test_a_single_spare_beside_a_minor_is_a_major_spare() -> None:
    layout = StaticWorld().layout(replicas=4, grad_accum=3, survivors=4)
    assert counts(layout) == (3, 4, 0, 0, 0, 0)
    layout = StaticWorld().layout(replicas=9, grad_accum=1, survivors=6)  # 4 * 2 + 1, one left
    assert counts(layout) == (2, 4, 1, 1, 1, 0)


@pytest.mark.parametrize("policy", [StaticWorld(), ExactBatch(), AdaptiveWorld()])
@pytest.mark.parametrize("wrong", ["replicas", "grad_accum", "survivors"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_shape_without_work_is_an_error(policy: Policy, wrong: str, value: int) -> None:
    shape = {"replicas": 4, "grad_accum": 2, "survivors": 3, wrong: value}
    with pytest.raises(LayoutError, match=f"{wrong} must be at least 1, got {value}") as caught:
        policy.layout(**shape)
    assert isinstance(caught.value, ValueError)


def test_round_trip_through_json() -> None:
    layout = StaticWorld().layout(replicas=32, grad_accum=8, survivors=31)
    assert Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout


@pytest.mark.parametrize(
    "damage", [{"majors": -1}, {"majors": "28"}, {"majors": 27}, {"colour": 1}, {"minors": True}]
)
def test_a_damaged_layout_is_an_error(damage: dict[str, object]) -> None:
    layout = StaticWorld().layout(replicas=32, grad_accum=8, survivors=31)
    with pytest.raises(LayoutError, match="not a layout"):
        Layout.from_dict({**layout.to_dict(), **damage})

"""When groups fail."""

import math

import numpy as np
import pytest

from spare_planner.errors import QuantityError
from spare_planner.simulation.clocks import Clocks, FailureModel


def count(model: FailureModel, *, seconds: float, groups: int = 400) -> int:
    """Count failures of groups that come back at once."""
    clocks = Clocks(model, groups=groups, rng=np.random.default_rng(5))
    total, now = 0, 0.0
    while (now := clocks.pending()) <= seconds:
        dead = clocks.until(now)
        total += len(dead)
        clocks.revive(dead, now)
    return total


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.0])
def test_aged_groups_fail_at_their_mean_rate_from_the_start(shape: float) -> None:
    model = FailureModel.of_system(100.0, groups=400, shape=shape)
    assert model.mean == pytest.approx(400 * 100)
    assert count(model, seconds=100_000) == pytest.approx(1000, rel=0.12)


def test_new_groups_with_a_shape_below_one_fail_more_at_first() -> None:
    aged = FailureModel.of_system(100.0, groups=400, shape=0.6)
    new = FailureModel.of_system(100.0, groups=400, shape=0.6, aged=False)
    assert count(new, seconds=20_000) > 1.5 * count(aged, seconds=20_000)


def test_the_paper_s_scale_is_that_of_its_mtbf() -> None:
    assert FailureModel.of_system(300.0, groups=600, shape=0.78).scale == pytest.approx(
        155_937, rel=1e-4
    )


def test_a_domain_fails_as_one() -> None:
    model = FailureModel.of_system(10.0, groups=10, domain=4, correlated=1.0)
    clocks = Clocks(model, groups=10, rng=np.random.default_rng(0))
    seen = set()
    while math.isfinite(clocks.pending()):
        seen.add(tuple(sorted(clocks.until(clocks.pending()))))
    assert seen == {(0, 1, 2, 3), (4, 5, 6, 7), (8, 9)}


def test_clocks_stand_while_the_job_does() -> None:
    model = FailureModel.of_system(10.0, groups=5)
    clocks = Clocks(model, groups=5, rng=np.random.default_rng(0))
    first = clocks.pending()
    clocks.down(0.0, 1000.0)
    assert clocks.pending() == pytest.approx(first + 1000)
    assert clocks.until(first + 999) == []
    assert len(clocks.until(clocks.pending())) == 1


def test_large_times_lose_no_failure() -> None:
    # What `pending` says must be found by `until`, however the sums are rounded.
    model = FailureModel.of_system(0.1, groups=50)
    clocks = Clocks(model, groups=50, rng=np.random.default_rng(0))
    for _ in range(5000):
        now = clocks.pending()
        dead = clocks.until(now)
        assert dead
        clocks.down(now, now + 1 / 3)
        clocks.revive(dead, now + 1 / 3)


def test_a_restart_on_timers_takes_about_twice_its_time() -> None:
    model = FailureModel.of_system(300.0, groups=600, aged=False)
    ends = []
    for seed in range(50):
        clocks = Clocks(model, groups=600, rng=np.random.default_rng(seed))
        ends.append(clocks.restart_on_timers(0.0, 3600.0))
    # T_r (1 + x/(x+1)), x = T_r/m, or more: a group can fail again while it restarts.
    assert 3600 * (1 + 12 / 13) < np.mean(ends) < 2.3 * 3600


@pytest.mark.parametrize(
    "changes",
    [
        {"mtbf": 0.0},
        {"mtbf": math.nan},
        {"shape": 0.0},
        {"shape": math.inf},
        {"domain": 0},
        {"correlated": 1.5},
    ],
)
def test_wrong_models_are_refused(changes: dict[str, float]) -> None:
    values = {"mtbf": 300.0, **changes}
    with pytest.raises(QuantityError):
        FailureModel.of_system(values.pop("mtbf"), groups=10, **values)  # type: ignore[arg-type]

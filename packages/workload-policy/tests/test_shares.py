"""Sharing out microbatches, against a loop that looks at everybody each time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload_policy import PlanError, share_out

members = st.dictionaries(st.integers(0, 20), st.integers(0, 9), min_size=1, max_size=6)


@pytest.mark.property
@given(st.integers(0, 60), members)
def test_each_goes_to_whoever_would_be_done_first(count: int, loads: dict[int, int]) -> None:
    speeds = {m: (m % 4 + 1) / 2 for m in loads}
    dealt = dict.fromkeys(loads, 0)
    for _ in range(count):
        first = min(loads, key=lambda m: ((loads[m] + dealt[m] + 1) / speeds[m], m))
        dealt[first] += 1
    assert share_out(count, loads, speeds=speeds) == dealt


def test_without_speeds_all_are_equally_fast() -> None:
    assert share_out(7, {0: 0, 3: 0, 4: 0}) == {0: 3, 3: 2, 4: 2}
    assert share_out(0, {}) == {}


def test_what_cannot_be_shared_out() -> None:
    with pytest.raises(PlanError, match="3 microbatches cannot be shared out: there is no member"):
        share_out(3, {})
    with pytest.raises(PlanError, match="the speed of replica 1 must be above 0, got 0"):
        share_out(3, {0: 0, 1: 0}, speeds={0: 1.0})

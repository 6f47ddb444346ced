"""The stream of ids, against sets that hold all of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workload_policy.stream import remove_ids, take_ids

ids = st.frozensets(st.integers(0, 40))


@pytest.mark.property
@given(st.integers(0, 30), ids, st.integers(0, 60), ids)
def test_taking(count: int, behind: frozenset[int], cursor: int, held: frozenset[int]) -> None:
    queue = tuple(sorted(i for i in behind if i < cursor))
    stream = [*queue, *range(cursor, cursor + 100)]
    expected = [i for i in stream if i not in held][:count]
    assert take_ids(count, queue=queue, cursor=cursor, held=held) == tuple(expected)


@pytest.mark.property
@given(ids, st.integers(0, 30), ids)
def test_counting(behind: frozenset[int], cursor: int, counted: frozenset[int]) -> None:
    queue = tuple(sorted(i for i in behind if i < cursor))
    uncounted = {*queue, *range(cursor, 100)}
    rest = uncounted - counted
    left, end = remove_ids(counted & uncounted, queue=queue, cursor=cursor)
    assert {*left, *range(end, 100)} == rest
    assert list(left) == sorted(left)
    assert all(i < end for i in left)

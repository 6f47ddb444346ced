"""Ids as ranges."""

import pytest

from workload_policy import ranges_of


@pytest.mark.parametrize(
    ("ids", "ranges"),
    [
        ([], ()),
        ([3], ((3, 3),)),
        ([0, 1, 2, 5, 6], ((0, 2), (5, 6))),
        ([5, 6, 0, 1], ((5, 6), (0, 1))),
        ([2, 1, 0], ((2, 2), (1, 1), (0, 0))),
        ([4, 4, 5], ((4, 4), (4, 5))),
    ],
)
def test_ids_become_ranges_in_their_order(
    ids: list[int], ranges: tuple[tuple[int, int], ...]
) -> None:
    assert ranges_of(ids) == ranges

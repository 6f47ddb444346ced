"""The sums that close a step, and whether all ranks were alike."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from grad_txn.sums import MARK_BITS, Sums

marks = st.integers(0, 2**MARK_BITS - 1)


def summed(*own: tuple[Sums, int]) -> Sums:
    sums, row = Sums.from_tensor(torch.stack([one.to_tensor(mark) for one, mark in own]).sum(0))
    assert row == []
    return sums


@given(mark=marks, ranks=st.integers(1, 40))
def test_what_all_hold_the_same_is_alike(mark: int, ranks: int) -> None:
    one = Sums(loss=0.5, weight=3.0, microbatches=2, overflows=1)
    both = summed(*[(one, mark)] * ranks)
    assert both == Sums(
        loss=0.5 * ranks, weight=3.0 * ranks, microbatches=2 * ranks, overflows=ranks, alike=True
    )


@given(mark=marks, other=marks, ranks=st.integers(1, 40))
def test_one_that_differs_is_seen(mark: int, other: int, ranks: int) -> None:
    own = Sums(loss=0.0, weight=0.0, microbatches=0)
    assert summed(*[(own, mark)] * ranks, (own, other)).alike == (mark == other)


def test_a_difference_is_seen_among_as_many_ranks_as_there_will_ever_be() -> None:
    ranks, own = 2**20, Sums(loss=0.0, weight=0.0, microbatches=0)
    most = 2**MARK_BITS - 1
    together = own.to_tensor(most) * ranks
    assert Sums.from_tensor(together)[0].alike
    assert not Sums.from_tensor(together + own.to_tensor(most - 1))[0].alike


def test_rows_are_summed_along() -> None:
    own = Sums(loss=1.0, weight=2.0, microbatches=2)
    together = own.to_tensor(7, [0, 2**52 - 1]) + own.to_tensor(7, [2**52 - 3, 0])
    sums, row = Sums.from_tensor(together)
    assert sums.alike
    assert row == [2**52 - 3, 2**52 - 1]

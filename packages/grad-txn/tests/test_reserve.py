"""Gradients of redundant stacks: kept apart, and added once where they come to count."""

import pytest
import torch

from grad_txn.reserve import Reserve

pytestmark = pytest.mark.torch


def test_what_is_kept_leaves_zeros_and_is_added_once() -> None:
    buckets = [torch.ones(3), torch.full((2,), 2.0)]
    reserve = Reserve(buckets)
    reserve.keep(7)
    assert [bucket.tolist() for bucket in buckets] == [[0, 0, 0], [0, 0]]
    for bucket in buckets:
        bucket.fill_(10.0)
    reserve.complete(0)
    assert buckets[0].tolist() == [10, 10, 10], "nothing counts yet"
    reserve.count([7])
    for _ in range(2):
        for index in range(len(buckets)):
            reserve.complete(index)
    assert [bucket.tolist() for bucket in buckets] == [[11, 11, 11], [12, 12]]


def test_several_types_and_steps_share_the_memory() -> None:
    bucket = torch.zeros(2)
    reserve = Reserve([bucket])
    for step in range(3):
        reserve.clear()
        for shard_type in (3, 5):
            bucket.fill_(float(10 * step + shard_type))
            reserve.keep(shard_type)
        reserve.count([5, 3])
        reserve.complete(0)
        assert bucket.tolist() == [20 * step + 8] * 2
        bucket.zero_()


def test_what_was_not_kept_cannot_count() -> None:
    reserve = Reserve([torch.zeros(2)])
    with pytest.raises(KeyError):
        reserve.count([1])


def test_a_step_that_was_given_up_leaves_nothing_behind() -> None:
    bucket = torch.ones(2)
    reserve = Reserve([bucket])
    reserve.keep(1)
    reserve.count([1])
    reserve.clear()
    reserve.complete(0)
    assert bucket.tolist() == [0, 0]

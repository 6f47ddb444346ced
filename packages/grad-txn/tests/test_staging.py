"""Buckets over ranks that are threads: staged, reduced, restored, divided."""

from collections.abc import Callable

import pytest
import torch

from grad_txn.errors import UsageError
from grad_txn.staging import STAGINGS, Staging, StagingMode
from grad_txn.testing.world import RankThread, ThreadWorld

pytestmark = pytest.mark.torch

SIZES = (5, 1, 7)


def accumulated(rank: int) -> list[torch.Tensor]:
    """What backward left in each bucket of this rank."""
    return [torch.full((size,), 10.0 * index + rank) for index, size in enumerate(SIZES)]


def sums(ranks: list[int]) -> list[torch.Tensor]:
    return [
        torch.stack([accumulated(rank)[index] for rank in ranks]).sum(0)
        for index in range(len(SIZES))
    ]


def on_threads(
    replicas: int, staging: StagingMode, body: Callable[[RankThread, Staging], None]
) -> dict[int, list[torch.Tensor]]:
    """Run a body with a `Staging` over fresh gradients; return each survivor's buckets."""

    def program(rank: RankThread) -> list[torch.Tensor]:
        buckets = accumulated(rank.rank)
        staged = Staging(rank, buckets, mode=staging)
        staged.begin()
        body(rank, staged)
        return buckets

    return ThreadWorld(replicas).run(program)


def reduce_all(rank: RankThread, staged: Staging, *, contribute: bool = True) -> bool:
    for index in range(len(staged)):
        staged.reduce(index, contribute=contribute)
    return staged.drain()


@pytest.mark.parametrize("staging", STAGINGS)
def test_dividing_leaves_the_sums_divided_by_b(staging: StagingMode) -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        assert len(staged) == 3
        assert reduce_all(rank, staged)
        assert staged.stale(rank.epoch) == ()
        staged.divide(8)

    for buckets in on_threads(3, staging, body).values():
        for bucket, total in zip(buckets, sums([0, 1, 2]), strict=True):
            assert torch.equal(bucket, total / 8)


@pytest.mark.parametrize("staging", STAGINGS)
def test_commit_scales_the_sums_that_it_shows(staging: StagingMode) -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        assert reduce_all(rank, staged)
        for mine, total in zip(staged.sums, sums([0, 1, 2]), strict=True):
            assert torch.equal(mine, total)
        staged.divide(8, scale=0.5)

    for buckets in on_threads(3, staging, body).values():
        for bucket, total in zip(buckets, sums([0, 1, 2]), strict=True):
            assert torch.equal(bucket, total / 16)


@pytest.mark.parametrize("staging", STAGINGS)
def test_a_spare_adds_nothing(staging: StagingMode) -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        assert reduce_all(rank, staged, contribute=rank.rank != 1)
        staged.divide(1)

    for buckets in on_threads(3, staging, body).values():
        for bucket, total in zip(buckets, sums([0, 2]), strict=True):
            assert torch.equal(bucket, total)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("staging", STAGINGS)
def test_a_failed_reduction_is_undone(staging: StagingMode, blocking: bool) -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        staged.reduce(0, contribute=True)
        if rank.rank == 1:
            staged.drain()
            rank.die()
        staged.reduce(1, contribute=True)
        staged.reduce(2, contribute=True)
        assert not staged.drain()
        assert not rank.agree(False).all_alive
        rank.repair()
        assert staged.stale(rank.epoch) == (0, 1, 2)
        assert staged.restore(rank.epoch, blocking=blocking) == 3
        seconds = staged.wait_restored()
        assert seconds >= 0
        assert (seconds > 0) == (staging == "snapshot" and not blocking)
        assert staged.wait_restored() == 0.0
        for index, bucket in enumerate(accumulated(rank.rank)):
            assert torch.equal(staged._buckets[index], bucket)
        staged.begin()
        assert reduce_all(rank, staged)
        staged.divide(1)

    ends = on_threads(3, staging, body)
    assert set(ends) == {0, 2}
    for buckets in ends.values():
        for bucket, total in zip(buckets, sums([0, 2]), strict=True):
            assert torch.equal(bucket, total)


@pytest.mark.parametrize("staging", STAGINGS)
def test_only_what_was_posted_is_restored(staging: StagingMode) -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        if rank.rank == 1:
            rank.die()
        staged.reduce(1, contribute=True)
        assert not staged.drain()
        rank.agree(False)
        rank.repair()
        assert staged.stale(rank.epoch) == (1,)
        assert staged.restore(rank.epoch, blocking=True) == 1

    for rank, buckets in on_threads(2, staging, body).items():
        for bucket, before in zip(buckets, accumulated(rank), strict=True):
            assert torch.equal(bucket, before)


def test_a_bucket_left_out_does_not_count_as_reduced() -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        staged.reduce(0, contribute=True)
        staged.reduce(2, contribute=True)
        assert not staged.drain()

    on_threads(2, "no-copy", body)


def test_no_copy_never_writes_the_gradients_before_the_commit() -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        assert reduce_all(rank, staged)
        for mine, before in zip(staged._buckets, accumulated(rank.rank), strict=True):
            assert torch.equal(mine, before)

    on_threads(2, "no-copy", body)


@pytest.mark.parametrize("staging", STAGINGS)
def test_nothing_is_allocated_after_the_first_step(staging: StagingMode) -> None:
    def body(rank: RankThread, staged: Staging) -> None:
        homes = [buffer.data_ptr() for buffer in staged._second]
        for _ in range(3):
            assert reduce_all(rank, staged)
            staged.divide(2)
        assert [buffer.data_ptr() for buffer in staged._second] == homes

    on_threads(2, staging, body)


def test_an_unknown_staging_is_refused() -> None:
    def program(rank: RankThread) -> None:
        Staging(rank, [], mode="copy")  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="'copy' is unknown: use no-copy or snapshot"):
        ThreadWorld(1).run(program)

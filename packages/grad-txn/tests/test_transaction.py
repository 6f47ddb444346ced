"""One transaction over ranks that are threads: staging, reducing, restoring, committing."""

from collections.abc import Callable

import pytest
import torch

from grad_txn.errors import UsageError
from grad_txn.testing_world import RankThread, ThreadWorld
from grad_txn.transaction import STAGINGS, Staging, StepTransaction

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
    replicas: int, staging: Staging, body: Callable[[RankThread, StepTransaction], None]
) -> dict[int, list[torch.Tensor]]:
    """Run a body with a transaction over fresh gradients; return each survivor's buckets."""

    def program(rank: RankThread) -> list[torch.Tensor]:
        buckets = accumulated(rank.rank)
        transaction = StepTransaction(rank, buckets, staging=staging)
        transaction.begin()
        body(rank, transaction)
        return buckets

    return ThreadWorld(replicas).run(program)


def reduce_all(rank: RankThread, transaction: StepTransaction, *, contribute: bool = True) -> bool:
    for index in range(len(transaction)):
        transaction.reduce(index, contribute=contribute)
    return transaction.drain()


@pytest.mark.parametrize("staging", STAGINGS)
def test_commit_leaves_the_sums_divided_by_b(staging: Staging) -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        assert len(transaction) == 3
        assert reduce_all(rank, transaction)
        assert transaction.stale == ()
        transaction.commit(8)

    for buckets in on_threads(3, staging, body).values():
        for bucket, total in zip(buckets, sums([0, 1, 2]), strict=True):
            assert torch.equal(bucket, total / 8)


@pytest.mark.parametrize("staging", STAGINGS)
def test_commit_scales_the_sums_that_it_shows(staging: Staging) -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        assert reduce_all(rank, transaction)
        for mine, total in zip(transaction.sums, sums([0, 1, 2]), strict=True):
            assert torch.equal(mine, total)
        transaction.commit(8, scale=0.5)

    for buckets in on_threads(3, staging, body).values():
        for bucket, total in zip(buckets, sums([0, 1, 2]), strict=True):
            assert torch.equal(bucket, total / 16)


@pytest.mark.parametrize("staging", STAGINGS)
def test_a_spare_adds_nothing(staging: Staging) -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        assert reduce_all(rank, transaction, contribute=rank.rank != 1)
        transaction.commit(1)

    for buckets in on_threads(3, staging, body).values():
        for bucket, total in zip(buckets, sums([0, 2]), strict=True):
            assert torch.equal(bucket, total)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("staging", STAGINGS)
def test_a_failed_reduction_is_undone(staging: Staging, blocking: bool) -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        transaction.reduce(0, contribute=True)
        if rank.rank == 1:
            transaction.drain()
            rank.die()
        transaction.reduce(1, contribute=True)
        transaction.reduce(2, contribute=True)
        assert not transaction.drain()
        assert not rank.agree(False).all_alive
        rank.repair()
        assert transaction.stale == (0, 1, 2)
        assert transaction.restore(blocking=blocking) == 3
        seconds = transaction.wait_restored()
        assert seconds >= 0
        assert (seconds > 0) == (staging == "snapshot" and not blocking)
        assert transaction.wait_restored() == 0.0
        for index, bucket in enumerate(accumulated(rank.rank)):
            assert torch.equal(transaction._buckets[index], bucket)
        transaction.begin()
        assert reduce_all(rank, transaction)
        transaction.commit(1)

    ends = on_threads(3, staging, body)
    assert set(ends) == {0, 2}
    for buckets in ends.values():
        for bucket, total in zip(buckets, sums([0, 2]), strict=True):
            assert torch.equal(bucket, total)


@pytest.mark.parametrize("staging", STAGINGS)
def test_only_what_was_posted_is_restored(staging: Staging) -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        if rank.rank == 1:
            rank.die()
        transaction.reduce(1, contribute=True)
        assert not transaction.drain()
        rank.agree(False)
        rank.repair()
        assert transaction.stale == (1,)
        assert transaction.restore(blocking=True) == 1

    for rank, buckets in on_threads(2, staging, body).items():
        for bucket, before in zip(buckets, accumulated(rank), strict=True):
            assert torch.equal(bucket, before)


def test_a_bucket_left_out_does_not_count_as_reduced() -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        transaction.reduce(0, contribute=True)
        transaction.reduce(2, contribute=True)
        assert not transaction.drain()

    on_threads(2, "no-copy", body)


def test_no_copy_never_writes_the_gradients_before_the_commit() -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        assert reduce_all(rank, transaction)
        for mine, before in zip(transaction._buckets, accumulated(rank.rank), strict=True):
            assert torch.equal(mine, before)

    on_threads(2, "no-copy", body)


@pytest.mark.parametrize("staging", STAGINGS)
def test_nothing_is_allocated_after_the_first_step(staging: Staging) -> None:
    def body(rank: RankThread, transaction: StepTransaction) -> None:
        homes = [buffer.data_ptr() for buffer in transaction._second]
        for _ in range(3):
            assert reduce_all(rank, transaction)
            transaction.commit(2)
        assert [buffer.data_ptr() for buffer in transaction._second] == homes

    on_threads(2, staging, body)


def test_an_unknown_staging_is_refused() -> None:
    def program(rank: RankThread) -> None:
        StepTransaction(rank, [], staging="copy")  # type: ignore[arg-type]

    with pytest.raises(UsageError, match="'copy' is unknown: use no-copy or snapshot"):
        ThreadWorld(1).run(program)

import pytest

from ulfm_core import Membership, Seat, UsageError


def test_a_first_start_is_numbered_replica_by_replica() -> None:
    job = Membership.initial(6, 3)
    assert [job[rank] for rank in job] == [
        Seat(replica=replica, position=position) for replica in (0, 1) for position in (0, 1, 2)
    ]
    assert (job.ranks_of(1), job.group_of(2), job.living) == ((3, 4, 5), (2, 5), (0, 1))
    assert len(job) == 6
    assert 5 in job
    assert 6 not in job


@pytest.mark.parametrize(("size", "replica_size"), [(6, 4), (6, 0), (5, 2)])
def test_replicas_are_whole(size: int, replica_size: int) -> None:
    with pytest.raises(UsageError, match="does not divide"):
        Membership.initial(size, replica_size)


def test_who_is_left() -> None:
    job = Membership.initial(8, 2)
    left = job.without([2])
    assert left.ranks == (0, 1, 3, 4, 5, 6, 7)
    assert left.living == (0, 1, 2, 3), "one of its ranks lives"
    assert left.unbroken().living == (0, 2, 3)
    assert left.unbroken() == job.of([0, 1, 4, 5, 6, 7])
    assert hash(left.unbroken()) == hash(job.without([2, 3]))
    assert job.without(job.ranks_of(0)).leader == 2
    with pytest.raises(KeyError):
        left.replica_of(2)
    with pytest.raises(UsageError, match="nobody is alive"):
        _ = job.without(job.ranks).leader


def test_seats_need_not_follow_the_ranks() -> None:
    # As where a replica was formed again of places on several hosts.
    seats = {
        0: Seat(replica=2, position=1),
        4: Seat(replica=0, position=1),
        7: Seat(replica=2, position=0),
        9: Seat(replica=0, position=0),
    }
    job = Membership.from_seats(seats, replica_size=2)
    assert (job.ranks, job.living, job.leader) == ((0, 4, 7, 9), (0, 2), 9)
    assert (job.ranks_of(2), job.group_of(1)) == ((7, 0), (4, 0))


def test_two_ranks_have_no_common_seat() -> None:
    seats = {0: Seat(replica=0, position=0), 1: Seat(replica=0, position=0)}
    with pytest.raises(UsageError, match="ranks 0 and 1 have one seat"):
        Membership.from_seats(seats, replica_size=1)
    with pytest.raises(UsageError, match="has position 1"):
        Membership.from_seats({0: Seat(replica=0, position=1)}, replica_size=1)

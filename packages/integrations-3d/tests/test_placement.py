import pytest

from integrations_3d.errors import ConfigError
from integrations_3d.placement import devices_of
from ulfm_core import Membership

EIGHT = [str(device) for device in range(8)]


@pytest.mark.parametrize(
    ("rank", "replica_size", "local_rank", "local_size", "expected"),
    [
        # Two replicas of four on one host of eight.
        (0, 4, 0, 8, (0, ("0", "1", "2", "3"))),
        (3, 4, 3, 8, (3, ("0", "1", "2", "3"))),
        (5, 4, 5, 8, (1, ("4", "5", "6", "7"))),
        # A replica of sixteen over two hosts: local ranks begin anew on the second.
        (7, 16, 7, 8, (7, tuple(EIGHT))),
        (9, 16, 1, 8, (1, tuple(EIGHT))),
        # Replicas of six: the second begins on one host and ends on the next.
        (7, 6, 7, 8, (1, ("6", "7"))),
        (8, 6, 0, 8, (0, ("0", "1", "2", "3"))),
        (12, 6, 4, 8, (0, ("4", "5", "6", "7"))),
        # Fewer ranks than devices.
        (3, 2, 3, 4, (1, ("2", "3"))),
    ],
)
def test_a_rank_sees_the_devices_of_its_replica_on_its_host(
    rank: int,
    replica_size: int,
    local_rank: int,
    local_size: int,
    expected: tuple[int, tuple[str, ...]],
) -> None:
    job = Membership.initial(48, replica_size)
    found = devices_of(
        rank,
        peers=job.ranks_of(job.replica_of(rank)),
        local_rank=local_rank,
        local_size=local_size,
        devices=EIGHT,
    )
    assert found == expected


def test_without_devices_ranks_are_counted_all_the_same() -> None:
    assert devices_of(5, peers=range(4, 8), local_rank=5, local_size=8, devices=()) == (1, ())


def test_names_of_devices_are_kept() -> None:
    uuids = ["GPU-a", "GPU-b"]
    found = devices_of(1, peers=[1], local_rank=1, local_size=2, devices=uuids)
    assert found == (0, ("GPU-b",))


def test_ranks_do_not_share_a_device() -> None:
    with pytest.raises(ConfigError, match="8 ranks on a host with 4 GPUs"):
        devices_of(0, peers=range(4), local_rank=0, local_size=8, devices=EIGHT[:4])

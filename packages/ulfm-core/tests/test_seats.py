"""Who sits where, in a world that loses a replica."""

from pathlib import Path

import pytest

from ulfm_core.testing import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "seats.py"

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("replica_size", "victim", "living", "groups"),
    [
        (1, 0, [1, 2, 3, 4, 5], [[1, 2, 3, 4, 5]]),
        (2, 1, [1, 2], [[2, 4], [3, 5]]),
        (3, 4, [0], [[0], [1], [2]]),
    ],
)
def test_the_membership_follows_a_repair(
    replica_size: int, victim: int, living: list[int], groups: list[list[int]]
) -> None:
    job = run_ranks(PROGRAM, 6, [str(replica_size), str(victim)])
    assert job.returncode == 0, job.stderr
    members = sorted(rank for group in groups for rank in group)
    for group in groups:
        for index, rank in enumerate(group):
            assert job.lines[rank] == [
                {
                    "living": living,
                    "members": members,
                    "group": group,
                    "group_rank": index,
                    "leader": members[0],
                }
            ]

"""Subgroups: any ranks among themselves, across a repair."""

from pathlib import Path

import pytest

from ulfm_core.testing import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "subgroups.py"

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(("replica_size", "alive"), [(1, [0, 1, 2, 4, 5]), (2, [0, 1, 4, 5])])
def test_subgroups_go_on_with_those_that_live(replica_size: int, alive: list[int]) -> None:
    job = run_ranks(PROGRAM, 6, [str(replica_size)])
    assert job.returncode == 0, job.stderr
    for rank in alive:
        (said,) = job.lines[rank]
        assert not said["passed"]
        members = [rank for rank in ([0, 2, 4], [5, 3, 1])[rank % 2] if rank in alive]
        assert said["members"] == members
        assert said["index"] == members.index(rank)
        assert [refusal.split(":")[0].split(" is ")[-1] for refusal in said["refused"]] == [
            "not in 0..5",
            f"subgroup [{rank}, {rank}] names a rank twice",
            f"not in [{(rank + 1) % 6}]",
            "not in 0..2",
        ]

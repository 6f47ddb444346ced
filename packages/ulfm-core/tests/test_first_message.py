"""A neighbour that is dead before it was ever sent a message."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ulfm_core.testing import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "seats.py"

pytestmark = pytest.mark.mpi


def test_a_burst_to_a_dead_neighbour_ends_in_a_repair() -> None:
    # Its connection fails amid the burst, after which Open MPI crashes in the next send: in one job
    # of three, with the cores as busy as here, before that was avoided.
    with ThreadPoolExecutor(3) as pool:
        jobs = list(pool.map(lambda _: run_ranks(PROGRAM, 6, ["1", "0"]), range(12)))
    for job in jobs:
        assert job.returncode == 0, job.stderr
        assert sorted(job.lines) == [1, 2, 3, 4, 5]

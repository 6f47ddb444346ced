"""The example does what its text says."""

from pathlib import Path

import pytest

from ulfm_core.testing import run_ranks

JACOBI = Path(__file__).parents[1] / "examples" / "jacobi.py"

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not JACOBI.exists(), reason="examples come with the sources only"),
]


@pytest.mark.parametrize(
    ("kills", "left"),
    [
        ((), 6),
        (("2:40", "0:90"), 4),
        (("1:33", "2:33"), 4),  # a rank and the neighbour with its copy
        (("0:0", "5:149", "3:75", "1:76", "2:76"), 1),
    ],
)
def test_jacobi_ends_with_the_right_answer(kills: tuple[str, ...], left: int) -> None:
    job = run_ranks(JACOBI, 6, [word for kill in kills for word in ("--kill", kill)])
    assert job.returncode == 0, job.stderr
    assert f"{left} of 6 ranks: the same bits as a run without failures" in job.stdout

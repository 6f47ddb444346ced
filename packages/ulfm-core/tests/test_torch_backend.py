"""torch.distributed on ulfm: real jobs, real SIGKILLs."""

import subprocess
import sys
from pathlib import Path

import pytest

from ulfm_core.testing import run_ranks

pytest.importorskip("torch", reason="the [torch] extra is not installed")

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = [pytest.mark.mpi, pytest.mark.torch, pytest.mark.slow]


def test_every_operation() -> None:
    job = run_ranks(PROGRAMS / "torch_collectives.py", 4)
    assert job.returncode == 0, job.stderr
    for rank in range(4):
        first, again, override = job.lines[rank]
        assert (first["backend"], first["cases"]) == ("ulfm", 120)
        assert [refusal.split(":")[0] for refusal in first["refusals"]] == [
            "the ulfm backend has no send",
            "the ulfm backend has no recv",
            "the ulfm backend has no all_to_all_single",
            "the ulfm backend has no reduction BAND",
            "AVG needs floating-point tensors, not torch.int32",
            "bool tensors have no SUM",
            "destination",
            "a tensor of shape (4, 2) is not contiguous",
            "1 outputs for 4 ranks",
            "4 elements do not make 4 parts of 2",
        ]
        assert again == {"again": True}
        assert override == {"override": "ulfm", "right": True}


def test_a_rank_in_gloo_ends_with_its_replica() -> None:
    job = run_ranks(PROGRAMS / "torch_replica.py", 4, options=["--replica-size", "2"])
    assert job.returncode == 0, job.stderr
    assert {"members": [0, 1]} in job.lines[0]
    killed = next(line["killed"] for line in job.lines[2] if "killed" in line)
    ended = next(line["ended"] for line in job.lines[3] if "ended" in line)
    assert ended - killed < 0.5
    assert "rank 3 (replica 1, position 1): rank 2 of its replica died" in job.stderr
    assert "Traceback" not in job.stderr


def test_ddp_trains_as_on_gloo() -> None:
    job = run_ranks(PROGRAMS / "torch_ddp.py", 4)
    assert job.returncode == 0, job.stderr
    for rank in range(4):
        assert len(job.lines[rank]) == 6
        for said in job.lines[rank]:
            # Sums of float16 are rounded at other places: gloo's after every addition.
            assert said["off"] < (1e-3 if said["hook"] == "fp16_compress_hook" else 1e-6), said
            assert said["identical"]
            assert said["moved"] > 0.01


@pytest.mark.parametrize("how", ["hook", "plain"])
def test_ddp_goes_on_without_rank_0_and_another(how: str) -> None:
    job = run_ranks(PROGRAMS / "torch_recovery.py", 4, [how, "0:1", "3:3"])
    assert job.returncode == 0, job.stderr
    assert set(job.lines) == {1, 2, 3}
    for index, rank in enumerate((1, 2)):
        first, second, end = job.lines[rank]
        assert (first["failed"], first["size"], first["rank"]) == ([0], 3, index)
        assert (second["failed"], second["size"], second["rank"]) == ([3], 2, index)
        assert second["records"] == [[3], [3]]
        assert (end["finished"], end["identical"], end["epoch"]) == (5, True, 2)
        assert end["members"] == [1, 2]
        assert end["old"] == ([0, 1, 1.0] if rank == 1 else None)
    errors = [job.lines[rank][0]["error"] for rank in (1, 2)]
    assert any("a peer died" in error and "consensus()" in error for error in errors)


def test_ranks_that_die_together() -> None:
    job = run_ranks(PROGRAMS / "torch_recovery.py", 4, ["hook", "0:2", "1:2"])
    assert job.returncode == 0, job.stderr
    for rank in (2, 3):
        assert job.lines[rank][-1]["members"] == [2, 3]
        assert job.lines[rank][-1]["identical"]


def test_wrong_world_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch.distributed as dist, ulfm_core.torch_backend\n"
        "from ulfm_core.testing import say\n"
        "try: dist.init_process_group('ulfm')\n"
        "except ValueError as error: say(error=str(error))\n"
    )
    job = run_ranks(program, 2, options=["--replica-size", "1"])
    assert "is not the 2 living ranks" in job.lines[0][0]["error"]
    assert "torch's rank 0 is rank 1 of the MPI job" in job.lines[1][0]["error"]


def test_torch_is_loaded_by_its_backend_alone() -> None:
    code = "import sys, ulfm_core; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

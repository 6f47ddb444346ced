"""CUDA memory: host staging on a stand-in for libcuda, the real thing where there is a GPU."""

import subprocess
from pathlib import Path

import pytest

from ulfm_core.testing import run_ranks

TESTS = Path(__file__).parent

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    build = ["g++", "-std=c++17", "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*build, str(TESTS / "standin_cuda.cpp")], check=True, timeout=60)
    return library


def test_host_staging(standin: Path) -> None:
    job = run_ranks(TESTS / "programs" / "device.py", 3, env={"ULFM_CORE_LIBCUDA": str(standin)})
    assert job.returncode == 0, job.stderr
    for rank in range(3):
        said = job.lines[rank][0]
        assert said["transport"] == "host staging"
        assert said["waits"]
        assert said["allocations"] <= 1
        assert said["context_kept"]
        assert said["events"] == 0
        assert [refusal[:50] for refusal in said["refusals"]] == [
            "ValueError: source has 4 elements of float32, dest",
            "TypeError: destination: read-only CUDA memory",
            "ValueError: destination: not contiguous; pass a co",
            "UlfmError: CUDA: could not find the device that th",
            "UsageError: contribute=False with op='max': only a",
            "UlfmError: CUDA: could not create an event: CUDA_E",
        ]
        assert said["broken"] == (
            "CUDA: could not copy 4000 bytes to the host: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
        )
    for rank in (0, 1):
        # A failed operation leaves its destination as it was, unlike one on host memory.
        assert job.lines[rank][1] == {"outcome": "FAILED", "untouched": True, "after": 1.0}


def test_no_driver(tmp_path: Path) -> None:
    """Without a driver there is no transport, and a device buffer says what is missing."""
    program = tmp_path / "program.py"
    program.write_text(
        "import ulfm_core\n"
        "from ulfm_core.testing import say\n"
        "class Array:\n"
        "    def __dlpack_device__(self): return 2, 0\n"
        "    def __dlpack__(self, **_): raise AssertionError\n"
        "world = ulfm_core.init()\n"
        "try: world.all_reduce(Array())\n"
        "except ulfm_core.UlfmError as error:\n"
        "    say(error=str(error), transport=world.device_transport)\n"
    )
    job = run_ranks(program, 1, env={"ULFM_CORE_LIBCUDA": str(tmp_path / "libcuda.so.1")})
    (said,) = job.lines[0]
    assert said["transport"] == "none"
    assert "device memory needs NVIDIA's driver" in said["error"]


@pytest.mark.torch
def test_on_a_gpu() -> None:
    torch = pytest.importorskip("torch", reason="the [torch] extra is not installed")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    job = run_ranks(TESTS / "programs" / "torch_gpu.py", 2)
    assert job.returncode == 0, job.stderr
    for rank in range(2):
        assert job.lines[rank][0]["transport"] in ("cuda-aware MPI", "host staging")
        assert job.lines[rank][0]["right"]

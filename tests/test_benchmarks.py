"""The benchmarks run, and write what they found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("name", ["step", "hsdp", "recovery", "allreduce"])
def test_smoke(name: str, tmp_path: Path) -> None:
    script = str(BENCHMARKS / f"{name}.py")
    command = [sys.executable, script, "--smoke", "--out", str(tmp_path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=360)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads((tmp_path / f"{name}.json").read_text())
    assert (tmp_path / f"{name}.md").read_text().startswith("|")

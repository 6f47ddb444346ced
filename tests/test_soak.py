"""The soak program works; its long runs are for `nox -s soak`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.torch, pytest.mark.slow]


def test_two_runs(tmp_path: Path) -> None:
    soak = Path(__file__).with_name("soak.py")
    done = subprocess.run(
        [sys.executable, str(soak), "--out", str(tmp_path), "--runs", "2", "--seed", "3"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs" in done.stdout
    assert "100.0% carried through" in done.stdout

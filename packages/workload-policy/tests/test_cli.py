"""The command line as scripts and people meet it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workload_policy.cli import main

LAYOUT = ["layout", "--replicas", "32", "--grad-accum", "8"]
SIMULATE = ["simulate", "--replicas", "32", "--grad-accum", "8"]


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workload_policy", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_layout_as_json() -> None:
    done = program(*LAYOUT, "--survivors", "31", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "replicas": 32,
        "survivors": 31,
        "global_batch": 256,
        "grad_accum": 9,
        "majors": 28,
        "minors": 1,
        "minor_quota": 4,
        "major_spares": 1,
        "minor_spares": 1,
        "contributions": [9] * 28 + [4, 0, 0],
    }


def test_simulate_as_json() -> None:
    done = program(*SIMULATE, "--steps", "4", "--fail", "1:31", "--fail", "2:28", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    assert steps[1] == {
        "step": 1,
        "survivors": 31,
        "failed": [31],
        "boundary": True,
        "extra": 1,
        "boundary_minors": 23,
        "contributions": [9] * 8 + [8] * 23,
        "total": 256,
    }
    assert steps[2] == {
        "step": 2,
        "survivors": 30,
        "failed": [28],
        "boundary": False,
        "extra": 0,
        "boundary_minors": 0,
        "contributions": [9] * 28 + [0, 4],
        "total": 256,
    }


def test_the_installed_command_is_this_one() -> None:
    command = Path(sys.executable).with_name("workload-policy")
    done = subprocess.run(
        [command, *LAYOUT, "--survivors", "31", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["grad_accum"] == 9


def test_layout_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LAYOUT, "--survivors", "31"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["role", "replicas", "each", "computed", "counted"]
    assert lines[3].split() == ["major", "28", "9", "252", "252"]
    assert lines[6].split() == ["minor-spare", "1", "4", "4", "0"]
    assert lines[7].split() == ["total", "31", "269", "256"]
    assert lines[3].index("28") + 2 == lines[7].index("31") + 2  # columns line up


def test_simulate_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--steps", "4", "--fail", "1:31", "2:28", "--join", "3:2"]
    assert main([*SIMULATE, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    boundary = ["1", "31", "31", "-", "yes", "1", "23", "9", "256", "8x9", "23x8"]
    assert lines[2].split() == boundary
    assert lines[4].split()[:4] == ["3", "32", "-", "32,33"]
    assert lines[-1].startswith(
        "policy static: 1024 microbatches counted, each once; 1045 computed"
    )


@pytest.mark.parametrize(
    ("policy", "total", "boundary"),
    [("static", 256, True), ("exact", 256, True), ("adaptive", 248, False)],
)
def test_policies(
    capsys: pytest.CaptureFixture[str], policy: str, total: int, *, boundary: bool
) -> None:
    assert main([*SIMULATE, "--steps", "1", "--fail", "0:3", "--policy", policy, "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    assert (step["total"], step["boundary"]) == (total, boundary)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "COMMAND"),
        (["plan"], "invalid choice: 'plan'"),
        (["layout", "--replicas", "32"], "--grad-accum, --survivors"),
        ([*LAYOUT, "--survivors", "0"], "survivors must be at least 1, got 0"),
        ([*LAYOUT, "--survivors", "-3"], "survivors must be at least 1, got -3"),
        ([*LAYOUT, "--survivors", "many"], "'many'"),
        ([*LAYOUT, "--survivors", "31", "--policy", "elastic"], "'elastic'"),
        ([*LAYOUT, "--survivors", "31", "--policy", "elastic.py"], "there is no such file"),
        ([*SIMULATE, "--steps", "3", "--policy", "no.such:Policy"], "there is no module 'no'"),
        (
            ["layout", "--replicas", "4", "--grad-accum", "0", "--survivors", "4"],
            "grad_accum must be at least 1, got 0",
        ),
        (
            ["simulate", "--replicas", "0", "--grad-accum", "8", "--steps", "2"],
            "replicas must be at least 1, got 0",
        ),
        ([*SIMULATE, "--steps", "0"], "steps must be at least 1, got 0"),
        ([*SIMULATE, "--steps", "3", "--fail", "1"], "'1' is not STEP:REPLICA"),
        ([*SIMULATE, "--steps", "3", "--fail", "1:x"], "'1:x' is not STEP:REPLICA"),
        ([*SIMULATE, "--steps", "3", "--fail", "1:32"], "replica 32 cannot fail at step 1"),
        ([*SIMULATE, "--steps", "3", "--fail", "3:1"], "steps are 0 to 2"),
        ([*SIMULATE, "--steps", "3", "--fail", "1:1", "--fail", "2:1"], "it failed at step 1"),
        ([*SIMULATE, "--steps", "3", "--join", "1:0"], "0 replicas cannot join"),
        (
            [*SIMULATE, "--steps", "3", "--fail", *(f"1:{replica}" for replica in range(32))],
            "no replica survives step 1",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert complaint in err


def test_bad_input_from_outside() -> None:
    done = program(*LAYOUT, "--survivors", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "workload-policy layout: error: survivors must be at least 1, got 0\n"


def test_a_reader_that_leaves() -> None:
    arguments = [*SIMULATE, "--steps", "2000", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "workload_policy", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["step"] == 0
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize("command", [[], ["layout"], ["simulate"]])
def test_help_explains_the_policies(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([*command, "--help"])
    assert leaving.value.code == 0
    out = capsys.readouterr().out
    assert "the global batch stays what it was" in out
    assert "module:NAME" in out
    assert "FILE.py" in out
    if command:
        assert "one of static, adaptive, exact" in out


def test_a_policy_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(Path(__file__).parents[1] / "examples" / "slower_gets_less.py")
    shape = ["--replicas", "4", "--grad-accum", "8", "--policy", example, "--json"]
    assert main(["layout", *shape, "--survivors", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["contributions"] == [10, 10, 7, 5]
    assert main(["layout", *shape, "--survivors", "6"]) == 0
    assert json.loads(capsys.readouterr().out)["contributions"] == [6, 6, 5, 3, 6, 6]
    assert main(["simulate", *shape, "--steps", "3", "--fail", "1:0"]) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [step["total"] for step in steps] == [32, 32, 32]
    assert steps[2]["contributions"] == [14, 11, 7]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == "workload-policy 0.1.0\n"

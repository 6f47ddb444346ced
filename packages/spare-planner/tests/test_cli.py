"""The command line as scripts and people meet it."""

import json
import subprocess
import sys

import pytest

from spare_planner.cli import main


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spare_planner", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_layout_as_json() -> None:
    done = program("layout", "--groups", "13", "--redundancy", "4", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "groups": 13,
        "redundancy": 4,
        "offsets": [0, 1, 4, 6],
        "construction": "golomb",
        "guaranteed_failures": 3,
    }


def test_reorder_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--groups", "7", "--redundancy", "3"]
    assert main(["reorder", *shape, "--failed", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"stacks", "moves", "patched", "order", "wiped_out"}
    assert (answer["stacks"], answer["moves"], answer["wiped_out"]) == (2, 0, False)
    assert answer["patched"] == [0, 1, 2, 4, 5, 6]
    assert answer["order"] == {str(g): [g, (g + 1) % 7, (g + 3) % 7] for g in (0, 1, 2, 4, 5, 6)}


def test_wipe_out_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--groups", "7", "--redundancy", "3"]
    assert main(["reorder", *shape, "--failed", "0,4,6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wiped_out"] is True
    assert main(["reorder", *shape, "--failed", "0,4,6"]) == 0
    assert "wipe-out: nobody is left who hosts type 0" in capsys.readouterr().out


def test_theory_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for groups, best in ((200, 8), (600, 10), (1000, 10)):
        assert main(["theory", "--groups", str(groups), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["redundancy"], answer["r_star"]) == (best, best)
    assert main(["theory", "--groups", "600", "--redundancy", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["mu"] == pytest.approx(253.99, abs=0.01)
    assert answer["stacks"] == pytest.approx(2.0, abs=0.005)
    assert (answer["redundancy"], answer["r_star"]) == (8, 10)
    assert "check" not in answer


def test_theory_checked(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["theory", "--groups", "200", "--redundancy", "4", "--check", "--trials", "600"]
    assert main([*command, "--seed", "1", "--json"]) == 0
    check = json.loads(capsys.readouterr().out)["check"]
    assert [row["limit"] for row in check] == [0.015, 0.015, 0.01, 0.03]
    for row in check:
        assert row["holds"] == (abs(row["error"]) <= row["limit"])
        assert row["low"] < row["measured"] < row["high"]


def test_theory_says_when_it_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    """With so few groups the forms do not hold, and that is not hidden."""
    command = ["theory", "--groups", "7", "--redundancy", "3", "--check", "--trials", "200"]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("mu ") and line.endswith("off") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("layout --groups 0 --redundancy 1", "groups must be at least 1, got 0"),
        ("layout --groups 5 --redundancy 6", "redundancy must be from 1 to 5"),
        ("layout --groups five --redundancy 1", "invalid int value: 'five'"),
        ("layout --groups 5", "the following arguments are required: --redundancy"),
        ("layout --groups 5 --redundancy 2 --seed -1 --construction random", "seed must not be"),
        ("layout --groups 6 --redundancy 3 --construction golomb", "it takes 7 groups"),
        ("layout --groups 6 --redundancy 3 --construction best", "invalid choice: 'best'"),
        ("reorder --groups 7 --redundancy 3 --failed 7", "there is no group 7"),
        ("reorder --groups 7 --redundancy 3 --failed 1,1", "group 1 is named twice"),
        ("reorder --groups 7 --redundancy 3 --failed 1;2", "'1;2' is not a list of groups"),
        ("reorder --groups 7 --redundancy 3", "required: --failed"),
        ("theory --groups 0", "groups must be at least 1"),
        ("theory --groups 5 --redundancy 9", "redundancy must be from 1 to"),
        ("theory --groups 5 --redundancy 2 --check --trials 1", "trials must be at least 2, got 1"),
        ("dance", "invalid choice: 'dance'"),
        ("", "required: COMMAND"),
    ],
)
def test_bad_input(arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(arguments.split())
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("spare-planner")
    assert complaint in captured.err


def test_the_reader_may_leave() -> None:
    command = "reorder --groups 20000 --redundancy 9 --failed 1 --json"
    with subprocess.Popen(
        [sys.executable, "-m", "spare_planner", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == "spare-planner 0.1.0\n"

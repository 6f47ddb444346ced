"""How a command line ends, for this package and those beside it."""

import pytest

from workload_policy.command_line import BAD_INPUT, Parser, run


def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        Parser(prog="tool").parse_args(["--colour"])
    assert leaving.value.code == BAD_INPUT == 2
    assert capsys.readouterr().err == "tool: error: unrecognized arguments: --colour\n"


def test_exit_codes() -> None:
    assert run(lambda: None, name="tool", mistakes=ValueError) == 0
    assert run(lambda: 7, name="tool", mistakes=ValueError) == 7


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: int("x"), name="tool act", mistakes=(KeyError, ValueError)) == BAD_INPUT
    err = capsys.readouterr().err
    assert err == "tool act: error: invalid literal for int() with base 10: 'x'\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0, name="tool", mistakes=ValueError)

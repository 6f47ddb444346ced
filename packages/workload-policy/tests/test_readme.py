"""The README's examples, run as they stand."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from workload_policy.cli import main

README = Path(__file__).parents[1] / "README.md"
COMMANDS = re.findall(
    r"```console\n\$ workload-policy (.*)\n((?:.*\n)*?)```", README.read_text(encoding="utf-8")
)


def test_python() -> None:
    outcome = doctest.testfile(str(README), module_relative=False)
    assert outcome.attempted > 10
    assert outcome.failed == 0


def test_the_example_is_shown_as_it_is() -> None:
    example = README.parent / "examples" / "slower_gets_less.py"
    assert f"```python\n{example.read_text(encoding='utf-8')}```" in README.read_text(
        encoding="utf-8"
    )


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize(("arguments", "output"), COMMANDS)
def test_command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    output: str,
) -> None:
    monkeypatch.chdir(README.parent)  # where the example is
    assert main(shlex.split(arguments)) == 0
    assert capsys.readouterr().out == output

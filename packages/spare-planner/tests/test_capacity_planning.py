"""The commands of docs/capacity-planning.md, which say what that page shows.

The page's log is not part of the repository. Without it the commands run on a made-up one of the
same format, for short; with it, named by GPU_FAULT_TRACE, they must print what the page prints, up
to small differences between versions of numpy.
"""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from spare_planner.cli import main

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "capacity-planning.md"
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
LOG = Path(os.environ["GPU_FAULT_TRACE"]) if "GPU_FAULT_TRACE" in os.environ else None

if not PAGE.is_file():
    pytest.skip("the page is in the repository only", allow_module_level=True)

COMMANDS = [
    (shlex.split(command.replace("\\\n", " ")), output)
    for command, output in re.findall(
        r"```console\n\$ spare-planner ((?:.*\\\n)*.*)\n((?:.*\n)*?)```",
        PAGE.read_text(encoding="utf-8"),
    )
]


def title(command: object) -> str:
    """Name a command by what tells it from the others."""
    if not isinstance(command, list):
        return ""
    sizes = [command[i + 1] for i, word in enumerate(command) if word in {"--gpus", "--strategy"}]
    return "-".join([command[0], *sizes])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_decisions_for_three_sizes() -> None:
    asked = {word for command, _ in COMMANDS for word in command}
    assert {"3200", "100000", "600000"} <= asked
    assert {"fit", "recommend", "simulate"} <= asked


@pytest.mark.parametrize(("command", "_output"), COMMANDS, ids=title)
def test_commands_run(
    capsys: pytest.CaptureFixture[str], folder: Path, command: list[str], _output: str
) -> None:
    if "--plot" in command:
        pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    events = [
        {
            "node_id": f"n{rng.integers(200)}",
            "event_time": float(day) + 0.01 * end,
            "event_type": "fault_end" if end else "fault_start",
            "fault_type": {"Level": "Hardware", "Class": "GPU", "Desc": f"fault {number}"},
        }
        for number, day in enumerate(np.sort(rng.random(300) * 349))
        for end in (0, 1)
    ]
    for start, end in zip(events[::2], events[1::2], strict=True):
        end["node_id"] = start["node_id"]
    (folder / "fault_trace.json").write_text(json.dumps(events), encoding="utf-8")
    short = [] if command[0] == "fit" else ["--trials", "1", "--steps", "300"]
    assert main([*command, *short]) == 0
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(LOG is None, reason="needs the log that the page is about")
@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=title)
def test_the_page_shows_what_is_printed(
    capsys: pytest.CaptureFixture[str], folder: Path, command: list[str], output: str
) -> None:
    if "--plot" in command:
        pytest.importorskip("matplotlib")
    assert LOG is not None
    shutil.copy(LOG, folder / "fault_trace.json")
    assert main(command) == 0
    printed = capsys.readouterr().out
    # Numbers apart, word for word, however the lines are wrapped.
    assert NUMBER.sub("#", printed).split() == NUMBER.sub("#", output).split()
    shown, found = (
        [float(number.replace(",", "")) for number in NUMBER.findall(text)]
        for text in (output, printed)
    )
    assert found == pytest.approx(shown, rel=0.02, abs=0.1)

from pathlib import Path

import pytest

from grad_txn.errors import CheckpointError
from integrations_3d.resumption import candidates, read_state, write_state


def seen(directory: Path) -> list[tuple[int, Path]]:
    return sorted((one.step, path) for one, path in candidates(directory).items())


def test_only_complete_ones_are_seen(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        (tmp_path / str(step)).mkdir()
    (tmp_path / "latest.txt").write_text("10")
    assert seen(tmp_path) == []
    write_state(tmp_path / "9", {"plan": {"step": 9}})
    write_state(tmp_path / "2", {"plan": {"step": 2}})
    assert seen(tmp_path) == [(2, tmp_path / "2"), (9, tmp_path / "9")]
    write_state(tmp_path / "10", {"plan": {"step": 10}})
    assert seen(tmp_path)[-1] == (10, tmp_path / "10")
    assert read_state(tmp_path / "10") == {"plan": {"step": 10}}


def test_a_checkpoint_may_be_named_itself(tmp_path: Path) -> None:
    write_state(tmp_path, {"plan": {"step": 3}})
    assert seen(tmp_path) == [(3, tmp_path)]


def test_there_may_be_no_such_directory(tmp_path: Path) -> None:
    assert seen(tmp_path / "none") == []


@pytest.mark.parametrize("state", ["{", "{}", '{"plan": 3}', '{"plan": {"step": "x"}}', "[]"])
def test_a_damaged_one_is_left_out(tmp_path: Path, state: str) -> None:
    for step in (2, 3):
        (tmp_path / str(step)).mkdir()
        write_state(tmp_path / str(step), {"plan": {"step": step}})
    (tmp_path / "3" / "grad_txn.json").write_text(state)
    assert seen(tmp_path) == [(2, tmp_path / "2")]


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    write_state(tmp_path, {})
    (tmp_path / "grad_txn.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_state(tmp_path)

from pathlib import Path

import pytest

from grad_txn.errors import CheckpointError
from integrations_3d.resumption import newest, read_state, write_state


def test_the_newest_is_the_last_complete_one(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        (tmp_path / str(step)).mkdir()
    (tmp_path / "latest.txt").write_text("10")
    assert newest(tmp_path) is None
    write_state(tmp_path / "9", {"plan": {"step": 9}})
    write_state(tmp_path / "2", {"plan": {"step": 2}})
    assert newest(tmp_path) == tmp_path / "9"
    write_state(tmp_path / "10", {"plan": {"step": 10}})
    assert newest(tmp_path) == tmp_path / "10"
    assert read_state(tmp_path / "10") == {"plan": {"step": 10}}


def test_a_checkpoint_may_be_named_itself(tmp_path: Path) -> None:
    write_state(tmp_path, {})
    assert newest(tmp_path) == tmp_path


def test_there_may_be_no_such_directory(tmp_path: Path) -> None:
    assert newest(tmp_path / "none") is None


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    write_state(tmp_path, {})
    (tmp_path / "grad_txn.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_state(tmp_path)

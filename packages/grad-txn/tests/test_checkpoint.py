"""Checkpoints: complete or not there at all."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from grad_txn.checkpoint import Checkpoints, newest
from grad_txn.errors import CheckpointError

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Any:
    """Writing asynchronously needs a torch.distributed world, if only of one."""
    import torch.distributed as dist

    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def state(value: float, size: int = 8) -> dict[str, Any]:
    return {"model": {"weight": torch.full((size,), value)}, "job": f"step of {value}"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    told: list[tuple[int, Path, float]] = []
    checkpoints = Checkpoints(tmp_path, written=lambda *about: told.append(about))
    checkpoints.save(state(1.5), 4)
    checkpoints.wait()
    assert newest(tmp_path) == (4, tmp_path / "step-4")
    [(step, path, seconds)] = told
    assert (step, path) == (4, tmp_path / "step-4")
    assert seconds > 0
    loaded = state(0.0)
    checkpoints.load(loaded, path)
    assert torch.equal(loaded["model"]["weight"], torch.full((8,), 1.5))
    assert loaded["job"] == "step of 1.5"


def test_a_checkpoint_holds_the_state_of_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    values = state(1.0, size=1 << 20)
    checkpoints.save(values, 1)
    values["model"]["weight"].zero_()  # training goes on
    checkpoints.wait()
    loaded = state(0.0, size=1 << 20)
    checkpoints.load(loaded, tmp_path / "step-1")
    assert bool((loaded["model"]["weight"] == 1.0).all())


def test_the_newest_by_number_and_not_by_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (9, 10, 100):
        checkpoints.save(state(step), step)
    checkpoints.wait()
    assert newest(tmp_path) == (100, tmp_path / "step-100")


def test_old_ones_are_dropped(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(8, 12):
        checkpoints.save(state(step), step)
    checkpoints.wait()
    assert names(tmp_path) == ["step-10", "step-11"]


def test_the_same_step_is_written_anew(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for value in (1.0, 2.0):
        checkpoints.save(state(value), 3)
        checkpoints.wait()
    loaded = state(0.0)
    checkpoints.load(loaded, tmp_path / "step-3")
    assert float(loaded["model"]["weight"][0]) == 2.0


def test_poll_completes_what_is_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.poll()  # nothing is pending
    checkpoints.save(state(1.0), 1)
    pending = checkpoints._pending
    assert pending is not None
    pending[0].result()
    checkpoints.poll()
    assert names(tmp_path) == ["step-1"]


@pytest.mark.parametrize("name", [".step-7.partial", "step-7", "step-seven", "step-7.old"])
def test_what_is_not_whole_is_not_found(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"half")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1.0), 3)
    checkpoints.wait()
    assert newest(tmp_path) == (3, tmp_path / "step-3")  # though 7 is more


def test_no_checkpoint_in_an_empty_or_missing_folder(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nowhere") is None


WRITER = """
import os, signal, sys
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from grad_txn.checkpoint import Checkpoints

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save({"weight": torch.zeros(4)}, 1)
checkpoints.wait()

def dies(self, *arguments, **named):  # all data is on disk, the metadata is not
    os.kill(os.getpid(), signal.SIGKILL)
dcp.FileSystemWriter.finish = dies
checkpoints.save({"weight": torch.ones(4)}, 2)
checkpoints.wait()
"""


def test_a_writer_that_is_killed_leaves_nothing_half(tmp_path: Path) -> None:
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    folder = tmp_path / "checkpoints"
    ended = subprocess.run(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=60,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert names(folder) == [".step-2.partial", "step-1"]
    assert newest(folder) == (1, folder / "step-1")
    # The next writer is not in the way of what the dead one left.
    checkpoints = Checkpoints(folder)
    checkpoints.save({"weight": torch.ones(4)}, 2)
    checkpoints.wait()
    assert names(folder) == ["step-1", "step-2"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match=r"no checkpoint can be written in .*file"):
        Checkpoints(blocked).save(state(1.0), 1)


def test_a_checkpoint_of_another_model_is_refused_in_one_line(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1.0), 1)
    checkpoints.wait()
    other = {"model": {"bias": torch.zeros(3)}, "job": ""}
    with pytest.raises(CheckpointError, match=r"Missing key .*same model") as refused:
        checkpoints.load(other, tmp_path / "step-1")
    assert "\n" not in str(refused.value)


# torch's CheckpointException is a BaseException, which `except Exception` lets pass.
def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1.0), 1)
    checkpoints.wait()
    for data in (tmp_path / "step-1").glob("*.distcp"):
        data.write_bytes(data.read_bytes()[:10])
    with pytest.raises(CheckpointError, match="cannot be resumed from"):
        checkpoints.load(state(0.0), tmp_path / "step-1")

"""What a Nanotron checkpoint needs beside Nanotron's files: the job's state, and that it is whole.

A checkpoint is a directory of Nanotron's. The job's state is written into it last, once all ranks
of the replica have written their part, so its presence tells that the rest is there: a writer may
die at any moment.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from grad_txn.errors import CheckpointError

__all__ = ["complete_optimizer", "newest", "read_state", "write_state"]

_STATE = "grad_txn.json"


def newest(directory: str | os.PathLike[str]) -> Path | None:
    """Return the newest complete checkpoint in a directory, or the directory if it is one."""
    directory = Path(directory)
    if (directory / _STATE).is_file():
        return directory
    complete = [
        (int(path.name), path)
        for path in directory.glob("[0-9]*")
        if path.name.isdecimal() and (path / _STATE).is_file()
    ]
    return max(complete)[1] if complete else None


def write_state(checkpoint: Path, state: Mapping[str, Any]) -> None:
    """Add the job's state to a checkpoint, which is complete with it."""
    hidden = checkpoint / f".{_STATE}"
    with hidden.open("w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(checkpoint / _STATE)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return the job's state of a checkpoint.

    Raises:
        CheckpointError: It cannot be read.
    """
    path = checkpoint / _STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    return state


def complete_optimizer(optimizer: Any, scheduler: Any) -> None:
    """Do to a loaded optimizer of Nanotron's what Nanotron leaves undone. Local."""
    base = optimizer.get_base_optimizer()
    # The learning-rate schedule is made after the optimizer is loaded, which leaves that with the
    # rate of the very first step.
    for group, rate in zip(base.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    # Newer versions load to the CPU, and move what they have loaded in their training step.
    for parameter, state in base.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.dim() > 0:
                state[key] = value.to(parameter.device)

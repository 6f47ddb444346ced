"""What a Nanotron checkpoint needs beside Nanotron's files: the job's state, and that it is whole.

A checkpoint is a directory of Nanotron's. The job's state is written into it last, once all ranks
of the replica have written their part, so its presence tells that the rest is there: a writer may
die at any moment.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from grad_txn.communicator import Control
from grad_txn.errors import CheckpointError
from grad_txn.start import Candidate, agree_on_checkpoint, content_of
from integrations_3d.errors import NothingLeftError
from ulfm_core import environment

__all__ = ["candidates", "choose", "complete_optimizer", "read_state", "write_state"]

_STATE = "grad_txn.json"
_log = logging.getLogger(__name__)


def candidates(directory: str | os.PathLike[str]) -> dict[Candidate, Path]:
    """Return the complete checkpoints in a directory; of one that is itself one, that."""
    directory = Path(directory)
    if (directory / _STATE).is_file():
        places = [directory]
    else:
        places = [path for path in directory.glob("[0-9]*") if path.name.isdecimal()]
    found = {}
    for path in places:
        if (path / _STATE).is_file():
            try:
                step = int(read_state(path)["plan"]["step"])
                found[Candidate(step=step, content=content_of(path, read=[_STATE]))] = path
            except (CheckpointError, OSError, KeyError, TypeError, ValueError) as error:
                _log.warning("%s is damaged, and not resumed from: %s", path, error)
    return found


def choose(world: Control, where: Path, *, own: Path, last: int) -> Path | None:
    """Return the checkpoint to go on from, the same on all ranks.

    Collective over the world.

    Args:
        world: The world.
        where: Where they are, or one itself.
        own: Where this run writes its own: a job that was started again before it wrote any begins
            at the beginning.
        last: How many steps there are to be.

    Returns:
        The newest complete checkpoint that all ranks see; None to begin at the beginning.

    Raises:
        CheckpointError: There is none, or none that all ranks see.
        NothingLeftError: It is the state after the last step.
    """
    found = candidates(where)
    chosen = agree_on_checkpoint(world, list(found), where=where)
    if chosen is None:
        if environment.restart() and where == own:
            return None
        raise CheckpointError(
            f"no complete checkpoint in {where}: give the directory that a resilient run wrote its "
            "checkpoints to, or one of them"
        )
    if chosen.step >= last:
        raise NothingLeftError(step=chosen.step, where=found[chosen])
    return found[chosen]


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

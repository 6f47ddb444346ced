"""Checkpoints: written by one replica, beside the training, by `torch.distributed.checkpoint`.

`<directory>/step-<n>` holds the state before step n. A checkpoint is written to a hidden directory
and renamed once it is complete, so that what has a proper name is whole: a writer may die at any
moment.
"""

import contextlib
import logging
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from grad_txn.errors import CheckpointError
from grad_txn.start import Candidate, content_of

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Checkpoints", "candidates", "newest"]

_METADATA = ".metadata"  # written last
_NAME = re.compile(r"step-(\d+)")
_FAILURES = (Exception, CheckpointException)  # the latter is none of the former
_log = logging.getLogger(__name__)


def newest(directory: str | Path) -> tuple[int, Path] | None:
    """Return the step and path of the newest complete checkpoint in `directory`, or None."""
    return max(_complete(Path(directory)), default=None)


def candidates(directory: str | Path) -> dict[Candidate, Path]:
    """Return the complete checkpoints in `directory`, for `grad_txn.start.agree_on_checkpoint`."""
    found = {}
    for step, path in _complete(Path(directory)):
        with contextlib.suppress(OSError):  # dropped meanwhile
            found[Candidate(step=step, content=content_of(path, read=[_METADATA]))] = path
    return found


class Checkpoints:
    """The checkpoints of a run.

    Args:
        directory: Where they go; made when the first is written.
        keep: How many to keep.
        process_group: The replica's; by default this rank is all of it. Making checkpoints is
            collective over the replica.
        written: Called with the step, the path and the seconds when one is complete, from `poll` or
            `wait`, on the rank that has completed it.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int = 2,
        process_group: dist.ProcessGroup | None = None,
        written: Callable[[int, Path, float], None] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._keep = keep
        self._written = written
        self._first = True
        self._group: dist.ProcessGroup | None = None
        if process_group is not None and dist.get_world_size(process_group) > 1:
            # Of its own: it is used beside the training, from another thread.
            ranks = dist.get_process_group_ranks(process_group)
            self._group = dist.new_group(ranks, backend="gloo")
            self._first = dist.get_rank(process_group) == 0
        self._pending: tuple[Future[Any], int, Path, float] | None = None

    @property
    def directory(self) -> Path:
        """Where they go."""
        return self._directory

    def save(self, state: dict[str, Any], step: int) -> None:
        """Start writing `state`, the state before step `step`; return once it is copied.

        The previous checkpoint is completed first. Called by all ranks of one replica.

        Args:
            state: What `torch.distributed.checkpoint` saves: nested dictionaries of tensors and
                plain values.
            step: The step it is the state before.

        Raises:
            CheckpointError: It cannot be written.
        """
        self.wait()
        hidden = self._directory / f".step-{step}.partial"
        try:
            if self._first:  # the others write once it has told them what
                shutil.rmtree(hidden, ignore_errors=True)
                self._directory.mkdir(parents=True, exist_ok=True)
            future = async_save(state, checkpoint_id=str(hidden), process_group=self._group)
        except OSError as error:
            raise _unwritable(self._directory, error) from error
        assert not isinstance(future, dict)
        self._pending = (future, step, hidden, time.perf_counter())  # type: ignore[assignment]

    def poll(self) -> None:
        """Complete the pending checkpoint if it is written by now."""
        if self._pending is not None and self._pending[0].done():
            self.wait()

    def wait(self) -> None:
        """Complete the pending checkpoint.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._pending is None:
            return
        future, step, hidden, begun = self._pending
        self._pending = None
        try:
            future.result()
            if not self._first:
                return
            final = self._directory / f"step-{step}"
            shutil.rmtree(final, ignore_errors=True)
            hidden.rename(final)
        except _FAILURES as error:
            raise _unwritable(self._directory, error) from error
        if self._written is not None:
            self._written(step, final, time.perf_counter() - begun)
        self._drop_old()

    def load(self, state: dict[str, Any], path: Path) -> None:
        """Fill `state` in place from the checkpoint at `path`.

        Raises:
            CheckpointError: It is damaged or does not fit.
        """
        try:
            load(state, checkpoint_id=str(path), process_group=self._group)
        except _FAILURES as error:
            raise CheckpointError(
                f"{path} cannot be resumed from ({_first_line(error)}); is it of the same model?"
            ) from error

    def _drop_old(self) -> None:
        complete = sorted(
            (int(match[1]), path)
            for path in self._directory.glob("step-*")
            if (match := _NAME.fullmatch(path.name))
        )
        for _, path in complete[: -self._keep]:
            shutil.rmtree(path, ignore_errors=True)
            _log.debug("dropped checkpoint %s", path)


def _complete(directory: Path) -> list[tuple[int, Path]]:
    return [
        (int(match[1]), path)
        for path in directory.glob("step-*")
        if (match := _NAME.fullmatch(path.name)) and (path / _METADATA).is_file()
    ]


def _unwritable(directory: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(f"no checkpoint can be written in {directory} ({_first_line(error)})")


def _first_line(error: BaseException) -> str:
    if isinstance(error, CheckpointException):  # by rank, what went wrong and where
        error, _ = next(iter(error.failures.values()))
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__

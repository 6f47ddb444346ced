"""Collectives on their way, as torch waits for them."""

# torch's stubs describe the collectives in all the ways they may be called; torch itself uses one.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ulfm_core.errors import PeerLostError
from ulfm_core.work import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ulfm_core.work import Work

__all__ = ["TorchWork"]


class TorchWork(dist.Work):
    """Collectives on their way, as torch waits for them.

    Attributes:
        epoch: the world epoch they were submitted in.
    """

    def __init__(
        self,
        works: Sequence[Work],
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
    ) -> None:
        """Follow `works`, which end in order.

        `finish` is run on the communication thread if all succeeded.
        """
        super().__init__()
        self.epoch = works[-1].epoch
        self._works = works
        self._tensors = tensors
        self._finish = finish
        self._finish_error: Exception | None = None
        self._finished = threading.Event()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if finish is None:
            self._finished.set()
        else:
            works[-1].when_done(self._run_finish)

    @property
    def outcome(self) -> Outcome:
        """How they ended here. Other ranks may see another outcome: only a consensus is common."""
        if not self.is_completed():
            return Outcome.PENDING
        outcomes = [work.outcome for work in self._works]
        return next((outcome for outcome in outcomes if outcome is not Outcome.OK), Outcome.OK)

    def is_completed(self) -> bool:
        """Whether all have ended, one way or another."""
        return self._works[-1].done() and self._finished.is_set()

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return self.outcome is Outcome.OK and self._finish_error is None

    def exception(self) -> Exception | None:
        """What `wait` would raise, or None."""
        if not self.is_completed():
            return None
        try:
            self._result()
        except Exception as error:  # noqa: BLE001 - handed on, whatever it is
            return error
        return None

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002 - torch's signature
        """Block until all have ended; the results are then in place for every CUDA stream.

        `timeout` is not looked at: this process ends, with a line that says why, when an operation
        takes longer than the time-out of the `init_process_group` that joined the world.

        Raises:
            PeerLostError: a peer died. The group needs a `consensus` to go on.
            UlfmError: something else went wrong (a bug or a misuse).
        """
        self._works[-1].wait()
        self._finished.wait()
        self._result()
        return True

    synchronize = wait

    def result(self) -> list[torch.Tensor]:
        """Block, and return the tensors that were written."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors, completed by the communication thread.

        Its error is a RuntimeError.
        """
        if self._future is None:
            devices: list[int | str | torch.device] = list(
                {tensor.device for tensor in self._tensors if tensor.is_cuda}
            )
            done: torch.futures.Future[None] = torch.futures.Future(devices=devices)
            # What a callback raises is an error to C++ too (DDP's reducer), unlike what is given
            # to Future.set_exception.
            self._future = done.then(lambda _: self._tensors_when_finished())
            self._works[-1].when_done(lambda: done.set_result(None))
        return self._future

    def _tensors_when_finished(self) -> list[torch.Tensor]:
        self._finished.wait()
        self._result()
        return self._tensors

    def _result(self) -> None:
        for work in self._works:
            try:
                work.result()
            except PeerLostError as error:
                message = (
                    f"a peer died (epoch {error.epoch}: {error}); call consensus() of the process "
                    "group on every survivor to repair it"
                )
                raise PeerLostError(message, epoch=error.epoch) from None
        if self._finish_error is not None:
            raise self._finish_error

    def _run_finish(self) -> None:
        try:
            if self._finish is not None and all(work.outcome is Outcome.OK for work in self._works):
                self._finish()
                for device in {tensor.device for tensor in self._tensors if tensor.is_cuda}:
                    torch.cuda.current_stream(device).synchronize()
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            self._finish_error = error
        finally:
            self._finish = None
            self._finished.set()

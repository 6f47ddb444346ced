"""A number for what many tensors hold, computed beside the training.

Each tensor is read once, where it is: its bits as whole numbers, each times an odd weight of its
place, summed. So one bit that differs always shows, and any other difference but for one in about
2**32 of them. Nothing is copied and nothing is waited for until `Fingerprint.value` asks: CUDA
tensors are read on a stream of their own, others by a thread.
"""

import hashlib
import threading
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from grad_txn.gradients import local_part

__all__ = ["FINGERPRINT_BITS", "Fingerprint", "held_by"]

FINGERPRINT_BITS = 52
"""How many bits a fingerprint has; float64 holds it exactly."""

_BLOCK = 1 << 16  # elements that share a sum; on a CPU they stay in its cache
_BLOCKS_AT_A_TIME = {"cuda": 64, "cpu": 1}  # few kernels there, a small working set here
_WHOLE = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def held_by(optimizer: object) -> list[Tensor]:
    """Return this rank's part of what an optimizer holds: its parameters and their state. Local.

    Args:
        optimizer: A `torch.optim.Optimizer`, or anything with its `param_groups` and `state`.

    Returns:
        The tensors in the order of the parameter groups, sharing memory with what they are a part
        of; none of an object that has neither attribute.
    """
    tensors = []
    state: Mapping[Tensor, Mapping[str, object]] = getattr(optimizer, "state", {})
    for group in getattr(optimizer, "param_groups", ()):
        for parameter in group["params"]:
            tensors.append(parameter)
            # Before the first step there is none; state[...] would make one.
            entries = state.get(parameter, {})
            tensors += [one for _, one in sorted(entries.items()) if isinstance(one, Tensor)]
    # An alias of the storage that is there now: FSDP1 puts another one in its place in a forward.
    return [local_part(tensor.detach()) for tensor in tensors]


class Fingerprint:
    """The fingerprint of some tensors, on its way.

    Args:
        tensors: Of any dtype; on one device, or several. They may be read meanwhile, and must not
            be written before `value` has returned.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self._sums: list[Tensor] = []
        self._error: BaseException | None = None
        self._events: list[torch.cuda.Event] = []
        self._thread: threading.Thread | None = None
        devices = {tensor.device for tensor in self._tensors if tensor.is_cuda}
        if devices:
            sides = {device: torch.cuda.Stream(device=device) for device in devices}  # type: ignore[no-untyped-call]
            for device, side in sides.items():
                side.wait_stream(torch.cuda.current_stream(device))
            self._read(sides)
            for side in sides.values():
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(side)
                self._events.append(event)
        else:
            self._thread = threading.Thread(
                target=self._read, name="grad-txn-fingerprint", daemon=True
            )
            self._thread.start()

    def value(self) -> int:
        """Return the fingerprint, below ``2**FINGERPRINT_BITS``, once it is there."""
        if self._thread is not None:
            self._thread.join()
        for event in self._events:
            event.synchronize()
        if self._error is not None:
            raise self._error
        digest = hashlib.sha256()
        for tensor, total in zip(self._tensors, self._sums, strict=True):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype} {total.tolist()};".encode())
        return int.from_bytes(digest.digest()[:8], "big") >> 64 - FINGERPRINT_BITS

    def _read(self, sides: Mapping[torch.device, torch.cuda.Stream] | None = None) -> None:
        try:
            with torch.no_grad():
                weights: dict[tuple[torch.device, torch.dtype], Tensor] = {}
                for tensor in self._tensors:
                    side = None if sides is None else sides.get(tensor.device)
                    with torch.cuda.stream(side):  # does nothing without one
                        self._sums.append(_weighted_sums(tensor, weights))
        except BaseException as error:  # noqa: BLE001 - raised where the value is asked for
            self._error = error


def _weighted_sums(
    tensor: Tensor, weights: dict[tuple[torch.device, torch.dtype], Tensor]
) -> Tensor:
    """Return int64 sums, one for each block of the tensor, on its device."""
    flat = tensor.reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.view(_WHOLE[flat.element_size()])
    kind = torch.int64 if bits.dtype is torch.int64 else torch.int32
    key = (tensor.device, kind)
    if key not in weights:
        weights[key] = _odd(kind, tensor.device)
    blocks = bits.numel() // _BLOCK
    whole, rest = bits[: blocks * _BLOCK], bits[blocks * _BLOCK :]
    parts: list[Tensor] = [rest.reshape(1, -1)] if rest.numel() else []
    if blocks:
        at_a_time = _BLOCKS_AT_A_TIME.get(tensor.device.type, 64)
        parts += torch.split(whole.view(blocks, _BLOCK), at_a_time)
    # Products wrap around, which loses nothing: odd numbers have an inverse.
    sums = [
        (part.to(kind) * weights[key][: part.shape[1]]).sum(1, dtype=torch.int64) for part in parts
    ]
    return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.int64)


def _odd(kind: torch.dtype, device: torch.device) -> Tensor:
    """Return the weights of a block: odd numbers that look like random ones."""
    places = torch.arange(_BLOCK, dtype=torch.int64, device=device)
    mixed = (places + 1) * 0x2545F4914F6CDD1D
    mixed ^= mixed >> 29
    return mixed.to(kind) | 1

"""Where the gradient of each of Nanotron's parameters lies in flat buckets.

The gradients are either pieces of one contiguous float32 buffer of Nanotron's accumulator, or,
where there is none, pieces of buffers made here, one for each type. Either is cut into buckets at
the borders of parameters.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from integrations_3d.errors import ConfigError

__all__ = ["Slot", "cut", "in_accumulator", "in_own_buffers"]

Members = list[tuple[int, str, Any]]
"""Parameters in a buffer: where each begins, its name, and itself; in that order."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Slot:
    """Where a parameter's gradient lies in a bucket.

    Attributes:
        name: Of the parameter.
        parameter: Itself.
        bucket: Index of the bucket.
        begin: First element of the bucket that is its.
        end: The element behind its last.
        view: Those elements, in the parameter's shape.
    """

    name: str
    parameter: Any
    bucket: int
    begin: int
    end: int
    view: Tensor


def in_accumulator(
    accumulator: Any, parameters: Mapping[str, Any]
) -> Iterator[tuple[Tensor, Members]]:
    """Yield the accumulator's buffer, and what lies where in it.

    Raises:
        ConfigError: The accumulator keeps its gradients in another way than is known.
    """
    base = getattr(accumulator, "_contiguous_fp32_grad_buffer", None)
    if base is None:
        raise ConfigError(
            f"{type(accumulator).__name__} has no contiguous buffer of gradients, as "
            "Nanotron's accumulators have: set optimizer.accumulate_grad_in_fp32 to false"
        )
    members = []
    for name, parameter in parameters.items():
        view = accumulator.get_grad_buffer(name)
        offset = (view.data_ptr() - base.data_ptr()) // base.element_size()
        assert 0 <= offset <= base.numel() - view.numel()
        members.append((offset, name, parameter))
    yield base, sorted(members, key=lambda member: member[0])


def in_own_buffers(parameters: Mapping[str, Any]) -> Iterator[tuple[Tensor, Members]]:
    """Yield a new buffer for the parameters of each type, and what lies where in it."""
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters.values()):
        members, length = [], 0
        for name, parameter in parameters.items():
            if parameter.dtype == dtype:
                members.append((length, name, parameter))
                length += parameter.numel()
        yield torch.zeros(length, dtype=dtype, device=members[0][2].device), members


def cut(
    base: Tensor, members: Members, *, limit: float, first_bucket: int
) -> Iterator[tuple[Tensor, list[Slot]]]:
    """Cut a buffer into buckets, at the borders of parameters.

    Args:
        base: The buffer, flat.
        members: What lies in it.
        limit: Bytes that a bucket should reach.
        first_bucket: Index of the first bucket.

    Yields:
        Each bucket, and the slots in it.
    """
    first = 0
    for index, (offset, _, parameter) in enumerate(members):
        end = offset + parameter.numel()
        begin = members[first][0]
        if (end - begin) * base.element_size() < limit and index < len(members) - 1:
            continue
        slots = [
            Slot(
                name=name,
                parameter=member,
                bucket=first_bucket,
                begin=at - begin,
                end=at - begin + member.numel(),
                view=base[at : at + member.numel()].view(member.shape),
            )
            for at, name, member in members[first : index + 1]
        ]
        yield base[begin:end], slots
        first_bucket += 1
        first = index + 1

"""What a failed collective leaves behind cannot be taken for a number."""

import math
from array import array
from typing import Any

import numpy as np
import pytest

from ulfm_core.garbage import spoil


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("shape", [(), (3,), (2, 1000)])
def test_floats_become_nan(dtype: type, shape: tuple[int, ...]) -> None:
    buffer: Any = np.ones(shape, dtype)
    spoil(buffer)
    flat = buffer.reshape(-1)
    assert np.isnan(flat[:1024]).all()
    assert (flat[1024:] == 1).all()
    assert math.isnan(flat.sum())


def test_of_the_standard_library_too() -> None:
    buffer = array("d", [1.0, 2.0])
    spoil(buffer)
    assert all(map(math.isnan, buffer))


@pytest.mark.parametrize("buffer", [np.ones(3, np.int64), array("i", [1, 1]), bytearray(b"\1\1")])
def test_integers_stay(buffer: object) -> None:
    before = bytes(memoryview(buffer))  # type: ignore[arg-type]
    spoil(buffer)
    assert bytes(memoryview(buffer)) == before  # type: ignore[arg-type]


def test_what_has_no_elements_here_is_left_alone() -> None:
    spoil(object())


@pytest.mark.torch
def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    leaf = torch.ones(2, 2, requires_grad=True)
    half = torch.ones(3, dtype=torch.bfloat16)
    whole = torch.ones(3, dtype=torch.int32)
    for buffer in (leaf, half, whole):
        spoil(buffer)
    assert torch.isnan(leaf).all()
    assert torch.isnan(half).all()
    assert whole.tolist() == [1, 1, 1]

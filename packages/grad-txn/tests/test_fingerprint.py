"""Fingerprints of tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grad_txn.fingerprint import FINGERPRINT_BITS, Fingerprint, held_by

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8,
    torch.bool, torch.complex64,
]  # fmt: skip


def value_of(*tensors: torch.Tensor) -> int:
    return Fingerprint(tensors).value()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 7, 65_536, 200_001])
def test_equal_tensors_have_equal_fingerprints(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    tensor = torch.randn(size).to(dtype)
    assert value_of(tensor) == value_of(tensor.clone()) < 2**FINGERPRINT_BITS


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 149_999), bit=st.integers(0, 31), data=st.integers(0, 2**31))
def test_a_flipped_bit_shows(place: int, bit: int, data: int) -> None:
    tensor = torch.randn(150_000, generator=torch.Generator().manual_seed(data))
    before = value_of(tensor)
    flip = 1 << bit if bit < 31 else -(1 << 31)
    tensor.view(torch.int32)[place] ^= flip
    assert value_of(tensor) != before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.uint8], ids=str)
def test_every_bit_of_other_widths_shows(dtype: torch.dtype) -> None:
    tensor = torch.ones(70_000, dtype=dtype)
    before = value_of(tensor)
    octets = tensor.view(torch.uint8)
    for bit in range(8 * tensor.element_size()):
        at = len(octets) - tensor.element_size() + bit // 8
        octets[at] ^= 1 << bit % 8
        assert value_of(tensor) != before
        octets[at] ^= 1 << bit % 8
    assert value_of(tensor) == before


def test_order_shape_and_type_count() -> None:
    one, other = torch.arange(6.0), torch.arange(6.0) + 1
    assert value_of(one, other) != value_of(other, one)
    assert value_of(one) != value_of(one.reshape(2, 3))
    assert value_of(one.view(torch.int32)) != value_of(one)
    swapped = one[torch.tensor([1, 0, 2, 3, 4, 5])]
    assert value_of(swapped) != value_of(one)


def test_a_tensor_that_is_not_contiguous_is_read_by_its_values() -> None:
    matrix = torch.randn(300, 400)
    assert value_of(matrix.t()) == value_of(matrix.t().contiguous())


def test_an_optimizer_holds_its_parameters_and_their_state() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    assert len(held_by(optimizer)) == 2
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    held = held_by(optimizer)
    assert len(held) == 2 * (1 + 3)  # two averages and a step count each
    before = value_of(*held)
    optimizer.state[model.bias]["exp_avg"][1] += 1e-7
    assert value_of(*held_by(optimizer)) != before


def test_what_has_no_parameters_to_show_holds_nothing() -> None:
    assert held_by(object()) == []


def test_an_error_of_the_reading_is_raised_where_the_value_is_asked_for() -> None:
    with pytest.raises((RuntimeError, KeyError, NotImplementedError)):
        Fingerprint([torch.empty(4, device="meta")]).value()

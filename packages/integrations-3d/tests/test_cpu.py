import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from integrations_3d.cpu import Rotary, attention, layer_norm

pytestmark = pytest.mark.torch


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape)))


@pytest.mark.parametrize("causal", [True, False])
def test_attention_stays_within_each_sequence(*, causal: bool) -> None:
    lengths, heads, kv_heads, width = [3, 5], 4, 2, 6
    q, k, v = random(8, heads, width), random(8, kv_heads, width), random(8, kv_heads, 1, width)
    ends = torch.tensor([0, 3, 8], dtype=torch.int32)
    found = attention(q, k, v.transpose(1, 2), ends, ends, 5, 5, causal=causal)
    begin = 0
    for length in lengths:
        for head in range(heads):
            rows = slice(begin, begin + length)
            one, two = q[rows, head], k[rows, head // 2]
            scores = one @ two.T / math.sqrt(width)
            if causal:
                later = torch.ones(length, length).triu(1).bool()
                scores = scores.masked_fill(later, -math.inf)
            expected = scores.softmax(-1) @ v[rows, head // 2, 0]
            torch.testing.assert_close(found[rows, head], expected)
        begin += length


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_turns_pairs_by_an_angle_of_the_position(*, interleaved: bool) -> None:
    queries, kv = random(2, 5, 3, 8), random(2, 5, 2, 3, 8)
    turned, turned_kv = Rotary(8, interleaved=interleaved)(queries, kv=kv)
    assert torch.equal(turned_kv[:, :, 1], kv[:, :, 1])
    for before, after in ((queries, turned), (kv[:, :, 0], turned_kv[:, :, 0])):
        if interleaved:
            pairs = torch.view_as_complex(before.reshape(2, 5, 3, 4, 2))
            got = torch.view_as_complex(after.reshape(2, 5, 3, 4, 2))
        else:
            pairs, got = (torch.complex(x[..., :4], x[..., 4:]) for x in (before, after))
        angles = torch.outer(torch.arange(5.0), 10000 ** (-torch.arange(4.0) / 4))
        expected = pairs * torch.polar(torch.ones(5, 4), angles)[None, :, None]
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("is_rms_norm", [True, False])
def test_norms_with_a_residual(*, is_rms_norm: bool) -> None:
    x, residual, weight = random(4, 8), random(4, 8) + 1, random(8)
    whole = x + residual
    result, passed_on = layer_norm(
        x, weight, None, residual=residual, prenorm=True, is_rms_norm=is_rms_norm
    )
    assert torch.equal(passed_on, whole)
    if is_rms_norm:
        expected = whole / (whole.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    else:
        mean, variance = whole.mean(-1, keepdim=True), whole.var(-1, unbiased=False, keepdim=True)
        expected = (whole - mean) / (variance + 1e-6).sqrt() * weight
    torch.testing.assert_close(result, expected)


def test_it_is_not_for_machines_with_gpus() -> None:
    code = (
        "import torch; torch.cuda.is_available = lambda: True\n"
        "try:\n    import integrations_3d.cpu\n"
        "except ImportError as error:\n    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "this machine has one" in told.stdout


def test_a_missing_nanotron_is_told_with_the_command() -> None:
    code = (
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "from integrations_3d import cpu, errors\n"
        "try:\n    cpu.enable()\n"
        "except errors.NanotronMissingError as error:\n    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'integrations-3d[nanotron]'" in told.stdout
    assert told.stdout.count("\n") == 1

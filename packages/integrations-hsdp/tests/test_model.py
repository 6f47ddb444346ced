import math

import pytest
import torch

from integrations_hsdp.model import Decoder, ModelShape

pytestmark = pytest.mark.torch

SHAPE = ModelShape(layers=2, width=32, heads=2, sequence=16)


def test_an_untrained_model_knows_nothing() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(256, (4, 16))
    loss = Decoder(SHAPE)(tokens, tokens.roll(1, dims=1))
    assert loss.shape == ()
    assert float(loss.detach()) == pytest.approx(math.log(256), abs=0.1)


def test_every_parameter_has_a_gradient() -> None:
    model = Decoder(SHAPE)
    tokens = torch.randint(256, (2, 16))
    model(tokens, tokens).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_no_token_sees_the_future() -> None:
    torch.manual_seed(0)
    model = Decoder(SHAPE)
    heard: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda _module, _inputs, output: heard.append(output))
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 256
    for text in (tokens, changed):
        model(text, text)
    torch.testing.assert_close(heard[0][:, :9], heard[1][:, :9])
    assert not torch.allclose(heard[0][:, 9:], heard[1][:, 9:])


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"layers": 0}, "layers is 0"),
        ({"width": 36, "heads": 4}, "width 36"),
        ({"heads": 0}, "heads"),
    ],
)
def test_impossible_shapes_are_refused(sizes: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ModelShape(**sizes)

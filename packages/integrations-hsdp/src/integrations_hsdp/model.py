"""A small LLaMA-style decoder: RMSNorm, rotary positions, SwiGLU, no biases."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Decoder", "ModelShape"]

ROPE_BASE = 10_000.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The sizes of a decoder."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 256
    sequence: int = 128

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocabulary", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} is no multiple of 2 * heads = {2 * self.heads}, which rotary "
                "positions need"
            )


class Decoder(nn.Module):
    """Predicts the next token; returns the mean cross-entropy of a batch."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.rotation: Tensor
        self.register_buffer("rotation", _rotation(shape), persistent=False)
        self.apply(_initialise)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats per token of int64 `tokens` and `targets`, both (batch, sequence)."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, self.rotation)
        logits = self.head(self.norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Block(nn.Module):
    """Attention and a gated feed-forward, each behind a norm and a residual."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        inner = 8 * ((8 * shape.width // 3 + 7) // 8)
        self.attention_norm = nn.RMSNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.feed_norm = nn.RMSNorm(shape.width)
        self.gate_up = nn.Linear(shape.width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, shape.width, bias=False)

    def forward(self, hidden: Tensor, rotation: Tensor) -> Tensor:
        """Map (batch, sequence, width) to the same shape."""
        batch, sequence, width = hidden.shape
        qkv = self.qkv(self.attention_norm(hidden)).view(batch, sequence, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            _rotate(query, rotation), _rotate(key, rotation), value, is_causal=True
        )
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, sequence, width))
        gate, up = self.gate_up(self.feed_norm(hidden)).chunk(2, dim=-1)
        fed: Tensor = hidden + self.down(functional.silu(gate) * up)
        return fed


def _rotation(shape: ModelShape) -> Tensor:
    """Cosines and sines of the rotary angles: (2, sequence, head width / 2)."""
    half = shape.width // shape.heads // 2
    frequencies = ROPE_BASE ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(shape.sequence, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def _rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn (batch, heads, sequence, head width) by its positions."""
    cos, sin = rotation[:, : heads.shape[-2]].to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)

"""Text as microbatches: a map from a microbatch id to a batch, the same on every replica."""

import importlib
from pathlib import Path

import torch
from torch import Tensor

from grad_txn.programs.flags import OptionError

__all__ = ["ByteText", "read_text"]

DEFAULT_TEXT = "pydoc_data.topics"


def read_text(path: str | None) -> bytes:
    """Return the bytes of a file, or of the English text that ships with CPython.

    Raises:
        OptionError: The file cannot be read.
    """
    if path is None:
        topics: dict[str, str] = importlib.import_module(DEFAULT_TEXT).topics
        return "\n".join(topics[name] for name in sorted(topics)).encode()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"--text {path}: cannot be read: {error.strerror}") from error


class ByteText:
    """Windows of a text, byte-level.

    Which windows make up a microbatch depends on its id and the seed alone, so whoever computes an
    id computes the same.

    Args:
        text: The text.
        batch: Windows in a microbatch.
        sequence: Tokens in a window.
        seed: Of the draw of windows.

    Raises:
        OptionError: The text is shorter than one window.
    """

    def __init__(self, text: bytes, *, batch: int, sequence: int, seed: int) -> None:
        if len(text) < sequence + 2:
            raise OptionError(
                f"the text has {len(text)} bytes, a window needs {sequence + 2}; give a longer "
                "text or a smaller --sequence"
            )
        self._tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._batch = batch
        self._sequence = sequence
        self._seed = seed

    def microbatch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return tokens and next tokens, two int64 tensors of shape (batch, sequence)."""
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + number)
        starts = torch.randint(len(self._tokens) - self._sequence, (self._batch,), generator=draw)
        windows = self._tokens[starts[:, None] + torch.arange(self._sequence + 1)].long()
        return windows[:, :-1], windows[:, 1:]

from pathlib import Path

import pytest
import torch

from grad_txn.programs.flags import OptionError
from grad_txn.programs.text import ByteText, read_text

pytestmark = pytest.mark.torch

TEXT = bytes(range(200))


def test_a_microbatch_depends_on_its_id_and_the_seed_alone() -> None:
    one, other = (ByteText(TEXT, batch=3, sequence=8, seed=5) for _ in range(2))
    other.microbatch(1)
    for mine, yours in zip(one.microbatch(7), other.microbatch(7), strict=True):
        assert torch.equal(mine, yours)
    assert not torch.equal(one.microbatch(7)[0], one.microbatch(8)[0])
    reseeded = ByteText(TEXT, batch=3, sequence=8, seed=6)
    assert not torch.equal(one.microbatch(7)[0], reseeded.microbatch(7)[0])


def test_targets_are_the_next_tokens() -> None:
    tokens, targets = ByteText(TEXT, batch=3, sequence=8, seed=0).microbatch(0)
    assert tokens.shape == targets.shape == (3, 8)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, tokens + 1)


def test_the_shortest_text_that_is_enough() -> None:
    ByteText(bytes(10), batch=1, sequence=8, seed=0).microbatch(0)
    with pytest.raises(OptionError, match="9 bytes, a window needs 10"):
        ByteText(bytes(9), batch=1, sequence=8, seed=0)


def test_the_default_text_is_english() -> None:
    assert b"the" in read_text(None)
    assert len(read_text(None)) > 100_000


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"own words")
    assert read_text(str(path)) == b"own words"
    with pytest.raises(OptionError, match="cannot be read"):
        read_text(str(tmp_path / "missing"))

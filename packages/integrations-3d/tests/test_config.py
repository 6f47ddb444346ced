from pathlib import Path

import pytest

from integrations_3d.config import replica_size_of
from integrations_3d.errors import ConfigError


@pytest.mark.parametrize(
    ("parallelism", "size"),
    [
        ("{dp: 1, pp: 2, tp: 4}", 8),
        ("{dp: 2, pp: 1, tp: 2, expert_parallel_size: 2}", 8),
        ("{dp: 1, pp: 1, tp: 2, context_parallel_size: 3}", 6),
    ],
)
def test_a_replica_has_as_many_ranks_as_the_configuration_says(
    parallelism: str, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"parallelism: {parallelism}\n")
    assert replica_size_of(path) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("parallelism: [", "cannot be read"),
        ("- 1", "no mapping"),
        ("model: {}", "no section parallelism"),
        ("parallelism: {dp: 0, pp: 1, tp: 1}", "dp is 0"),
        ("parallelism: {dp: many}", "dp is 'many'"),
    ],
)
def test_one_that_does_not_say_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as told:
        replica_size_of(path)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)

"""What the tests of whole jobs share: one fork server, and the runs without failures."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from jobs import Case, Trainer
from preload import Preloaded


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    with Preloaded() as server:
        yield server


@pytest.fixture(scope="session")
def references(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> "References":
    return References(Trainer(preloaded, tmp_path_factory.mktemp("references")))


class References:
    """Failure-free runs, one for every shape that is asked for."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._known: dict[Case, dict[int, tuple[float, float]]] = {}

    def __call__(self, case: Case) -> dict[int, tuple[float, float]]:
        """Return loss and gradient norm of every step of this shape, without failures."""
        plain = case.without_failures()
        if plain not in self._known:
            run = self._trainer.run(plain, f"reference-{len(self._known)}")
            assert run.code == 0, run.said
            self._known[plain] = run.trajectory()
        return self._known[plain]


@pytest.fixture
def trainer(preloaded: Preloaded, tmp_path: Path) -> Trainer:
    return Trainer(preloaded, tmp_path)

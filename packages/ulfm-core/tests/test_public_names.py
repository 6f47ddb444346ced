"""What the root of the package offers, and that no variable is named outside its module."""

import importlib.metadata
import re
from pathlib import Path

import ulfm_core
from ulfm_core import environment

NAMES = [
    "Agreement",
    "Consensus",
    "Detection",
    "Membership",
    "NotLaunchedError",
    "Outcome",
    "PeerLostError",
    "Repair",
    "ReplicaCondemnedError",
    "Seat",
    "Subgroup",
    "UlfmError",
    "UnsupportedMPIError",
    "UsageError",
    "Work",
    "World",
    "__version__",
    "init",
    "leave",
]


def test_the_names_are_these() -> None:
    assert sorted(ulfm_core.__all__) == NAMES
    assert all(getattr(ulfm_core, name) is not None for name in NAMES)
    assert ulfm_core.__version__ == importlib.metadata.version("ulfm-core")


def test_every_variable_is_named_in_environment_alone() -> None:
    variables = {
        value
        for name, value in vars(environment).items()
        if name.isupper() and isinstance(value, str)
    }
    assert "OMPI_COMM_WORLD_RANK" in variables
    source = Path(ulfm_core.__file__).parent
    found = [
        (path.name, name)
        for path in source.rglob("*.py")
        if path.name != "environment.py"
        for name in re.findall(r"""["']([A-Za-z_]+)["']""", path.read_text())
        if name in variables
    ]
    assert found == []

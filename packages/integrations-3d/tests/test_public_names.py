"""What the root of the package offers; what needs Nanotron is asked for late."""

import importlib.metadata
import subprocess
import sys

import integrations_3d

NAMES = [
    "ConfigError",
    "NanotronGradients",
    "NanotronMissingError",
    "Resilience",
    "Resilient",
    "ResilientTrainer",
    "__version__",
]


def test_the_names_are_these() -> None:
    assert sorted(integrations_3d.__all__) == NAMES
    assert integrations_3d.__version__ == importlib.metadata.version("integrations-3d")
    assert integrations_3d.Resilience.__name__ == "Resilience"


def test_importing_it_imports_no_nanotron() -> None:
    program = "import integrations_3d, sys; sys.exit('nanotron' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

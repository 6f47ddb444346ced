"""What the root of the package offers."""

import importlib.metadata

import pytest

import integrations_hsdp

pytestmark = pytest.mark.torch

NAMES = ["DDPGradients", "FSDP1Gradients", "FSDP2Gradients", "__version__", "wrap"]


def test_the_names_are_these() -> None:
    assert sorted(integrations_hsdp.__all__) == NAMES
    assert all(getattr(integrations_hsdp, name) is not None for name in NAMES)
    assert integrations_hsdp.__version__ == importlib.metadata.version("integrations-hsdp")

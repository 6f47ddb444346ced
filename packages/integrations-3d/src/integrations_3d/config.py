"""Nanotron configurations: what has to be known of one before Nanotron reads it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from integrations_3d.errors import ConfigError

__all__ = ["read_config", "replica_size_of"]

_SIZES = ("dp", "pp", "tp", "expert_parallel_size", "context_parallel_size")


def read_config(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return a configuration as plain values.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        config = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"Nanotron configuration {path} cannot be read: {reason}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"Nanotron configuration {path} is no mapping of sections")
    return config


def replica_size_of(path: str | os.PathLike[str]) -> int:
    """Return how many ranks a replica has under a configuration.

    Raises:
        ConfigError: It cannot be read, or does not say.
    """
    parallelism = read_config(path).get("parallelism")
    if not isinstance(parallelism, dict):
        raise ConfigError(f"Nanotron configuration {path} has no section parallelism")
    size = 1
    for name in _SIZES:
        value = parallelism.get(name, 1)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"Nanotron configuration {path}: parallelism.{name} is {value!r}; it must be a "
                "whole number of at least 1"
            )
        size *= value
    return size

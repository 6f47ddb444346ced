"""Names that a package's root offers without importing what is behind them.

So that ``import grad_txn`` needs no torch, and a program that verifies a log on a laptop needs none
at all.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from grad_txn.errors import ExtraMissingError

__all__ = ["exporter"]

_TRAINING = ("torch", "ulfm_core", "mpi4py")


def exporter(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` (PEP 562).

    Args:
        package: Name of the package.
        homes: Name that its root offers -> the module that has it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(homes[name])
        except ModuleNotFoundError as error:
            if error.name not in _TRAINING:
                raise
            raise ExtraMissingError(
                f"{package}.{name}", library=str(error.name), extra="train"
            ) from error
        return getattr(module, name)

    return get

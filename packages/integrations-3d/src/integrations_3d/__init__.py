"""Forward recovery for Nanotron: TP x PP x DP inside a replica, ULFM between replicas.

``python -m integrations_3d.pretrain`` is a reference program, under `ulfmrun`.
"""

import importlib.metadata
from typing import TYPE_CHECKING

from grad_txn.lazily import exporter
from integrations_3d.errors import ConfigError, NanotronMissingError

if TYPE_CHECKING:
    from integrations_3d.gradients import NanotronGradients
    from integrations_3d.settings import Resilience
    from integrations_3d.trainer import Resilient, ResilientTrainer

__all__ = [
    "ConfigError",
    "NanotronGradients",
    "NanotronMissingError",
    "Resilience",
    "Resilient",
    "ResilientTrainer",
    "__version__",
]

__version__ = importlib.metadata.version("integrations-3d")

__getattr__ = exporter(
    __name__,
    {
        "NanotronGradients": "integrations_3d.gradients",
        "Resilience": "integrations_3d.settings",
        "Resilient": "integrations_3d.trainer",
        "ResilientTrainer": "integrations_3d.trainer",
    },
)

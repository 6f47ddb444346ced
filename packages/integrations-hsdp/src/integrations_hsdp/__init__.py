"""Forward recovery for DDP and HSDP training with torch: the gradients of DDP, FSDP2 and FSDP1.

A replica is one rank in DDP, or several that share its parameters by FSDP2 or FSDP1. ``python -m
integrations_hsdp.pretrain`` is a reference program, under `ulfmrun`.
"""

import importlib.metadata
from typing import TYPE_CHECKING

from grad_txn.lazily import exporter

if TYPE_CHECKING:
    from integrations_hsdp.ddp import DDPGradients
    from integrations_hsdp.fsdp1 import FSDP1Gradients
    from integrations_hsdp.fsdp2 import FSDP2Gradients
    from integrations_hsdp.wrapping import wrap

__all__ = ["DDPGradients", "FSDP1Gradients", "FSDP2Gradients", "__version__", "wrap"]

__version__ = importlib.metadata.version("integrations-hsdp")

__getattr__ = exporter(
    __name__,
    {
        "DDPGradients": "integrations_hsdp.ddp",
        "FSDP1Gradients": "integrations_hsdp.fsdp1",
        "FSDP2Gradients": "integrations_hsdp.fsdp2",
        "wrap": "integrations_hsdp.wrapping",
    },
)

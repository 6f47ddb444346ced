"""`ulfmrun`: start a job whose ranks may die, watch it, and say how it ended.

What happens on the side of `ulfmrun` is here; what a rank does as a process of it, in
`ulfm_core.rank`, and what runs in a rank before its program, in `launch.bootstrap`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ulfm_core.launch.command_line import main
    from ulfm_core.launch.hosts import Host
    from ulfm_core.launch.job import Job

__all__ = ["Host", "Job", "main"]

_HOMES = {"Host": "hosts", "Job": "job", "main": "command_line"}


def __getattr__(name: str) -> Any:
    # Late, because every rank passes through here to its bootstrap, and needs no launcher.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

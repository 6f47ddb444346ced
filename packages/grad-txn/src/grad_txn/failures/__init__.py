"""Failures on purpose: the places where a rank can die, schedules of deaths, and what kills it.

Everything that others use can be imported from here, ``from grad_txn.failures import At, Kill``.
The modules are loaded when they are asked for: a job that no schedule kills reads no YAML.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grad_txn.failures.drawn import generate
    from grad_txn.failures.injector import FailureInjector
    from grad_txn.failures.places import NOWHERE, At, Places
    from grad_txn.failures.schedule import (
        Kill,
        Schedule,
        Shape,
        dump_schedule,
        load_schedule,
        parse_schedule,
    )

__all__ = [
    "NOWHERE",
    "At",
    "FailureInjector",
    "Kill",
    "Places",
    "Schedule",
    "Shape",
    "dump_schedule",
    "generate",
    "load_schedule",
    "parse_schedule",
]

_MODULES = {
    "places": ("NOWHERE", "At", "Places"),
    "schedule": (
        "Kill", "Schedule", "Shape", "dump_schedule", "load_schedule", "parse_schedule",
    ),
    "drawn": ("generate",),
    "injector": ("FailureInjector",),
}  # fmt: skip

if not TYPE_CHECKING:  # a checker must go on refusing names that are not there

    def __getattr__(name):  # noqa: ANN001, ANN202
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

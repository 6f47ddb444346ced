"""Redundant stacks of data shards that survive failures (SPARe): planning, theory, and a policy.

`place` says which group hosts which shard types, `Stacks` reorders them as groups die, `Stacked`
trains on them. `fit_log` reads a failure log, `simulate` runs a job through failures, `recommend`
compares strategies for a cluster. Nothing is imported before it is used, numpy and scipy least of
all.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spare_planner.errors import (
        GroupError,
        PlacementError,
        PlannerError,
        QuantityError,
        StaleError,
        WipeOutError,
    )
    from spare_planner.failure_log import FailureLog, read_log
    from spare_planner.fit import Fit, fit_log
    from spare_planner.placement import CONSTRUCTIONS, Placement, place
    from spare_planner.recommendation import Cluster, Recommendation, recommend
    from spare_planner.reorder import Reordering, Stacks
    from spare_planner.simulation.clocks import FailureModel
    from spare_planner.simulation.experiment import STRATEGIES, Experiment, Summary, simulate
    from spare_planner.simulation.replay import Replay
    from spare_planner.simulation.scenario import Scenario
    from spare_planner.stacked import Stacked
    from spare_planner.theory import (
        endurable_failures,
        optimal_redundancy,
        patches_per_failure,
        stacks_per_step,
    )

__all__ = [
    "CONSTRUCTIONS",
    "STRATEGIES",
    "Cluster",
    "Experiment",
    "FailureLog",
    "FailureModel",
    "Fit",
    "GroupError",
    "Placement",
    "PlacementError",
    "PlannerError",
    "QuantityError",
    "Recommendation",
    "Reordering",
    "Replay",
    "Scenario",
    "Stacked",
    "Stacks",
    "StaleError",
    "Summary",
    "WipeOutError",
    "__version__",
    "endurable_failures",
    "fit_log",
    "optimal_redundancy",
    "patches_per_failure",
    "place",
    "read_log",
    "recommend",
    "simulate",
    "stacks_per_step",
]

__version__ = version("spare-planner")

_MODULES = {
    "errors": (
        "GroupError",
        "PlacementError",
        "PlannerError",
        "QuantityError",
        "StaleError",
        "WipeOutError",
    ),
    "failure_log": (
        "FailureLog",
        "read_log",
    ),
    "fit": (
        "Fit",
        "fit_log",
    ),
    "placement": (
        "CONSTRUCTIONS",
        "Placement",
        "place",
    ),
    "recommendation": (
        "Cluster",
        "Recommendation",
        "recommend",
    ),
    "reorder": (
        "Reordering",
        "Stacks",
    ),
    "simulation.clocks": ("FailureModel",),
    "simulation.experiment": (
        "Experiment",
        "STRATEGIES",
        "Summary",
        "simulate",
    ),
    "simulation.replay": ("Replay",),
    "simulation.scenario": ("Scenario",),
    "stacked": ("Stacked",),
    "theory": (
        "endurable_failures",
        "optimal_redundancy",
        "patches_per_failure",
        "stacks_per_step",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # or every name would be one of this module

    def __getattr__(name: str) -> object:
        """Import the module that a public name lives in when the name is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__

"""Redundant stacks of data shards that survive failures (SPARe): planning, theory, and a policy.

`place` says which group hosts which shard types, `Stacks` reorders them as groups die.
"""

from spare_planner.errors import (
    GroupError,
    PlacementError,
    PlannerError,
    QuantityError,
    StaleError,
    WipeOutError,
)
from spare_planner.placement import CONSTRUCTIONS, Placement, place
from spare_planner.reorder import Reordering, Stacks
from spare_planner.stacked import Stacked

__all__ = [
    "CONSTRUCTIONS",
    "GroupError",
    "Placement",
    "PlacementError",
    "PlannerError",
    "QuantityError",
    "Reordering",
    "Stacked",
    "Stacks",
    "StaleError",
    "WipeOutError",
    "place",
]

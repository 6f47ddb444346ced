"""The commands of ``spare-planner``, in the order in which its help lists them.

Each is a module with one function ``add(subparsers)`` that adds its parser, whose default ``run``
takes the parsed arguments and returns the exit code, None for 0.
"""

from spare_planner.commands import fit, layout, recommend, reorder, simulate, theory

__all__ = ["COMMANDS"]

COMMANDS = (layout, reorder, theory, fit, simulate, recommend)
"""The modules."""

"""``spare-planner layout``: which group hosts which shard types."""

import argparse
import json
from typing import Any

from spare_planner.commands.shape import add_json, add_placement, add_shape, placement
from spare_planner.placement import Placement

__all__ = ["add"]

_SHOWN = 8  # rows of the table


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "layout",
        help="which group hosts which shard types",
        description="Place N shard types on N groups so that each is hosted by R of them.",
    )
    add_shape(parser)
    add_placement(parser)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    placed = placement(arguments)
    if arguments.json:
        print(
            json.dumps(
                {
                    "groups": placed.groups,
                    "redundancy": placed.redundancy,
                    "offsets": list(placed.offsets),
                    "construction": placed.construction,
                    "guaranteed_failures": placed.guaranteed_failures,
                }
            )
        )
    else:
        print(_report(placed))


def _report(placed: Placement) -> str:
    how = f"{placed.construction} placement of {placed.groups} shard types on as many groups"
    if placed.offsets:
        where = "group w hosts w + " + ", ".join(map(str, placed.offsets)) + f" mod {placed.groups}"
        where += "; any two groups share at most one type"
    else:
        where = "no two stacks of a group are the same type; groups may share several"
    lines = [
        f"{how}, redundancy {placed.redundancy}",
        where,
        "",
        "group  hosts, in the order of its stacks",
    ]
    lines += [
        f"{group:5}  {' '.join(map(str, placed.hosted(group)))}"
        for group in range(min(placed.groups, _SHOWN))
    ]
    if placed.groups > _SHOWN:
        lines.append("  ...")
    lines += ["", _guarantee(placed)]
    return "\n".join(lines)


def _guarantee(placed: Placement) -> str:
    """Say what holds whichever groups fail."""
    if placed.guaranteed_failures == 0:
        return "Without redundancy any failure is a wipe-out."
    survived = f"Any {placed.guaranteed_failures} groups may fail without a wipe-out,"
    survived += f" and any {placed.guaranteed_run} in a row"
    cheap = max(k for k in range(placed.redundancy) if (placed.guaranteed_stacks(k) or 0) <= 2)
    return f"{survived}; after any {cheap}, 2 stacks a step suffice." if cheap else f"{survived}."

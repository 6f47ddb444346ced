"""``spare-planner reorder``: what a failure changes."""

import argparse
import json
from typing import Any

from spare_planner.commands.shape import add_json, add_placement, add_shape, placement
from spare_planner.reorder import Reordering, Stacks

__all__ = ["add"]

_SHOWN = 16  # groups whose order is printed


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "reorder",
        help="how the survivors of a failure order their stacks",
        description="Fail groups, all at once, and reorder the stacks of the others: the fewest"
        " stacks a step, then the fewest moves.",
    )
    add_shape(parser)
    parser.add_argument(
        "--failed",
        type=_groups,
        required=True,
        metavar="I,J,...",
        help="the groups that fail, counted from 0",
    )
    add_placement(parser)
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    stacks = Stacks(placement(arguments))
    change = stacks.fail(arguments.failed)
    if arguments.json:
        print(
            json.dumps(
                {
                    "stacks": change.stacks,
                    "moves": change.moves,
                    "patched": list(change.patched),
                    "order": {group: list(types) for group, types in change.order.items()},
                    "wiped_out": change.wiped_out,
                }
            )
        )
    else:
        print(_report(stacks, change, failed=arguments.failed))


def _report(stacks: Stacks, change: Reordering, *, failed: list[int]) -> str:
    groups = stacks.placement.groups
    head = f"{len(failed)} of {groups} groups failed: {_some(failed)}"
    if change.wiped_out:
        return f"{head}\nwipe-out: nobody is left who hosts {_types(change.lost)}"
    if change.covered:
        lines = [head, "covered: the first stacks of the survivors still hold every type"]
    else:
        lines = [head, f"nobody computes {_types(change.uncovered)} any more"]
    costs = f"stacks a step: {change.stacks}, types moved: {change.moves}"
    patches = f"groups with something new to compute (*): {len(change.patched)}"
    lines += [f"{costs}, {patches}", "", "group  computes | only hosts"]
    patched = set(change.patched)
    # Those with something new first, and after them as many as fit.
    shown = sorted(sorted(stacks.living, key=lambda group: group not in patched)[:_SHOWN])
    for group in shown:
        order = stacks.order(group)
        computed, rest = order[: change.stacks], order[change.stacks :]
        mark = "*" if group in patched else " "
        line = f"{group:5}{mark} {' '.join(map(str, computed))} | {' '.join(map(str, rest))}"
        lines.append(line.rstrip())
    if len(shown) < stacks.survivors:
        lines.append("  ...")
    return "\n".join(lines)


def _types(types: tuple[int, ...]) -> str:
    return f"type{'s' * (len(types) > 1)} {_some(types)}"


def _some(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def _groups(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of groups, such as 3,17"
        ) from None

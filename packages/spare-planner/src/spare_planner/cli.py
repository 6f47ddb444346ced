"""The command ``spare-planner``: one module a command, in `spare_planner.commands`."""

import argparse
from collections.abc import Sequence

from spare_planner import __version__
from spare_planner.commands import COMMANDS
from spare_planner.errors import PlannerError
from workload_policy.command_line import Parser, run

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for bad input, or the command's own.

    Args:
        argv: Arguments without the program's name; those of the process if None.
    """
    arguments = _parser().parse_args(argv)
    return run(
        lambda: arguments.run(arguments),
        name=f"spare-planner {arguments.name}",
        mistakes=PlannerError,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="spare-planner",
        description="Redundant stacks of data shards that survive failures (SPARe).",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return parser

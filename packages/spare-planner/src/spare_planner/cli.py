"""The command ``spare-planner``: one module a command, in `spare_planner.commands`."""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from spare_planner.commands import COMMANDS
from spare_planner.errors import PlannerError

__all__ = ["main"]

_USAGE_ERROR = 2
_BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text in front."""

    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE_ERROR, f"{self.prog}: error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for bad input, or the command's own.

    Args:
        argv: Arguments without the program's name; those of the process if None.
    """
    arguments = _parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments) or 0)
        sys.stdout.flush()
    except PlannerError as error:
        print(f"spare-planner {arguments.name}: error: {error}", file=sys.stderr)
        return _USAGE_ERROR
    except BrokenPipeError:
        # The reader has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="spare-planner",
        description="Redundant stacks of data shards that survive failures (SPARe).",
    )
    version = importlib.metadata.version("spare-planner")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    subparsers = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return parser

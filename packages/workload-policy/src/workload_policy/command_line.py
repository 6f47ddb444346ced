"""What the command lines of these packages have in common: how they say that something is wrong.

One line on stderr and exit code 2 for bad input, silence for a reader that leaves.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

__all__ = ["BAD_INPUT", "Parser", "run"]

BAD_INPUT = 2
"""Exit code for anything that a user has to change; argparse uses the same."""

_BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line, without the usage text in front."""

    def error(self, message: str) -> NoReturn:
        """Leave with one line and the exit code for bad input."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message}\n")


def run(
    command: Callable[[], int | None],
    *,
    name: str,
    mistakes: type[Exception] | tuple[type[Exception], ...],
) -> int:
    """Run a command and return its exit code: 0, its own, or `BAD_INPUT` for a user's mistake.

    Args:
        command: What to run; it returns an exit code, None for 0.
        name: The program and its command, with which a message begins.
        mistakes: What a user can get wrong, told in one line. Anything else is a bug and deserves
            its traceback.
    """
    try:
        code = command() or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except mistakes as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        return BAD_INPUT
    return code

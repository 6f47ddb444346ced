"""The codes that processes of a job end with.

One place for all of them: ranks and `ulfmrun` end with them, its supervisor and whoever reads a log
compare with them, and the native guard is given its own.
"""

from typing import Final

__all__ = ["BAD_INPUT", "CONDEMNED", "FAILED", "FINISHED", "ended_by"]

FINISHED: Final = 0
"""Of a rank: it has done its work. Of `ulfmrun`: so have all ranks that were not lost."""

FAILED: Final = 1
"""Of a rank: an exception that nobody caught, as in Python. Of `ulfmrun`: no rank finished."""

BAD_INPUT: Final = 2
"""The program refused its input, as `argparse` does; `ulfmrun` prints a refusal once for all."""

CONDEMNED: Final = 75
"""Of a rank that its guard ended: its replica lost another rank, or it exceeded a bound.

EX_TEMPFAIL of sysexits.h: nothing is wrong with the program.
"""

_SIGNALLED: Final = 128


def ended_by(signal: int) -> int:
    """Return the code of a process that a signal ended, as a shell has it."""
    return _SIGNALLED + signal

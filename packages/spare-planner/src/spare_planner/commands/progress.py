"""How far a simulation is, for people who watch it."""

import sys
from collections.abc import Callable

__all__ = ["progress_bar"]

_WIDTH = 30


def progress_bar(total: int, *, what: str = "trials") -> Callable[[int], None] | None:
    """Return a function that shows how many of a total are done; None without a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int) -> None:
        filled = "#" * (_WIDTH * done // total)
        line = f"\r[{filled:{_WIDTH}}] {done}/{total} {what}"
        # Gone when all is done, so that only results stay.
        print(line if done < total else "\r" + " " * len(line) + "\r", end="", file=sys.stderr)
        sys.stderr.flush()

    return show

"""Answers in words: durations, numbers of things, items of lists."""

import math
import textwrap

__all__ = ["counted", "item", "spoken"]


def spoken(seconds: float) -> str:
    """Return a duration with a unit that suits it.

    >>> spoken(42), spoken(300), spoken(51_630), spoken(2e7)
    ('42 s', '5.0 min', '14.3 h', '231 d')
    """
    if not math.isfinite(seconds):
        return "no end"
    for unit, size in (("y", 365.25 * 86_400), ("d", 86_400), ("h", 3600), ("min", 60)):
        # A unit is used from two of it on, years from three.
        if seconds >= size * (3 if unit == "y" else 2):
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def item(text: str) -> str:
    """Return an item of a list, wrapped.

    >>> item("short")
    '- short'
    """
    return textwrap.fill(
        text, 100, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
    )


def counted(number: int, thing: str) -> str:
    """Return a number of things.

    >>> counted(1, "trial"), counted(1200, "trial")
    ('1 trial', '1,200 trials')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"

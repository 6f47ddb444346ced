"""Making what a failed collective leaves behind look like what it is.

A sum in which a peer died is a partial one, another on each survivor, and a plausible number. A
program that ignores the outcome would print it, and keep it as its best. So the beginning of a
floating destination becomes NaN: every mean and norm of it shows it, and no comparison holds.
"""

from __future__ import annotations

from typing import Any

__all__ = ["spoil"]

_ELEMENTS = 1024  # enough to be seen, and no time even after a failure


def spoil(destination: Any) -> None:
    """Make the first elements NaN, where they are floats of numpy, torch, CuPy or `array`. Local.

    Others are left as they are: integers have no NaN.

    Args:
        destination: The contiguous buffer that a collective was to write.
    """
    if hasattr(destination, "detach"):
        destination = destination.detach()
    if hasattr(destination, "reshape") and hasattr(destination, "dtype"):
        if "float" in str(destination.dtype):
            destination.reshape(-1)[:_ELEMENTS] = float("nan")
        return
    try:
        view: Any = memoryview(destination)
    except TypeError:
        return
    if view.format in {"d", "f"} and view.ndim == 1:
        for index in range(min(len(view), _ELEMENTS)):
            view[index] = float("nan")

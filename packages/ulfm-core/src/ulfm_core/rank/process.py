"""What Linux does for a process that asks: end it with the one that started it, give it a name."""

import ctypes

__all__ = ["die_with_parent", "name_process"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec there is no time for it


def die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent ends, however that happens."""
    _prctl(_PR_SET_PDEATHSIG, number)


def name_process(name: str) -> None:
    """Give this process a name of up to 15 bytes for `ps` and `top`."""
    _prctl(_PR_SET_NAME, name.encode())

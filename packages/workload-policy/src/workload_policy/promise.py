"""What a policy promises about the microbatches that a step commits."""

import enum

__all__ = ["Promise"]


class Promise(enum.StrEnum):
    """How far a step is fixed whatever dies, the strongest first.

    A program that judges a run from its log needs no more than this of the policy.
    """

    EXACT = "exact"
    """Step t commits precisely the ids ``tB`` to ``(t+1)B - 1``, as without failures."""
    BATCH = "batch"
    """Each step commits exactly B microbatches, and each id is committed at most once."""
    NONE = "none"
    """Each id is committed at most once; the batch may change with the world."""

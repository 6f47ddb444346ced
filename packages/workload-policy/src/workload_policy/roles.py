"""The part a replica plays in a step (ReCoVer, section 4.3).

A *major* contributes the full number of microbatches, the one *minor* contributes what is left
over. A *spare* computes as much as its counterpart but counts for nothing until it takes the place
of a dead one.
"""

import enum

__all__ = ["Role"]


class Role(enum.IntEnum):
    """Role of one replica; the numbers are stable, they travel in agreed tables."""

    MAJOR = 0
    MINOR = 1
    MAJOR_SPARE = 2
    MINOR_SPARE = 3

    @property
    def is_spare(self) -> bool:
        """Whether this replica's work counts only once it is promoted."""
        return self >= Role.MAJOR_SPARE

    @property
    def promoted(self) -> "Role":
        """The contributing role: what a spare becomes, and what a contributor already is."""
        if self is Role.MAJOR_SPARE:
            return Role.MAJOR
        return Role.MINOR if self is Role.MINOR_SPARE else self

    @property
    def label(self) -> str:
        """Lower-case name, the form used in JSON: ``"minor_spare"``."""
        return self.name.lower()

"""What the detect, repair and record phases leave on every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ulfm_core.membership import Membership

__all__ = ["Agreement", "Consensus", "Repair"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What one agreement over the world said: equal on every rank that returned from it.

    Attributes:
        all_alive: Nobody has died since the world was last repaired.
        flag: The AND of the flags of everyone who took part.
        seconds: How long it took here.
    """

    all_alive: bool
    flag: bool
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """What a repair left: equal on every survivor, but for the times.

    Attributes:
        epoch: How many repairs there have been.
        membership: The survivors, each with its seat.
        failed: Initial ranks lost with this repair: the dead, and the condemned peers of their
            replicas.
        records: One row a survivor, in the order of their ranks: what each passed as its record.
        rounds: 1, or more when ranks died during the repair.
        repair_seconds: Revoke, shrink, fence and split.
        record_seconds: The exchange of the records, and the agreement that closes the repair.
    """

    epoch: int
    membership: Membership
    failed: tuple[int, ...]
    records: tuple[tuple[int, ...], ...]
    rounds: int
    repair_seconds: float
    record_seconds: float

    @property
    def members(self) -> tuple[int, ...]:
        """Initial ranks of the survivors, in order."""
        return self.membership.ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Consensus:
    """The outcome of `World.consensus`.

    Attributes:
        agreement: What all agreed on.
        repair: None when nobody was lost and every flag was true.
        passed: Whether that is so.
    """

    agreement: Agreement
    repair: Repair | None
    passed: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "passed", self.repair is None)

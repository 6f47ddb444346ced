"""How the survivors of a failure absorb it, before any id is dealt."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from workload_policy.roles import Role

__all__ = ["Response"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """What a policy answers to a failure: roles and counts. The ids follow from them.

    Attributes:
        roles: Role of each survivor from here on.
        extra_counts: How many microbatches contributing survivors compute on top; 0 for those that
            are not named.
        promoted: Dead replica -> the spare of its kind that took its place.
        admitted: Further spares that count from here on, sorted.
    """

    roles: Mapping[int, Role]
    extra_counts: Mapping[int, int] = field(default_factory=dict)
    promoted: Mapping[int, int] = field(default_factory=dict)
    admitted: tuple[int, ...] = ()

    @property
    def contributors(self) -> tuple[int, ...]:
        """Survivors whose microbatches count from here on."""
        return tuple(m for m, role in self.roles.items() if not role.is_spare)

    @property
    def extra(self) -> int:
        """Most extra microbatches of any survivor, ``G_ext``."""
        return max(self.extra_counts.values(), default=0)

    @property
    def boundary_minors(self) -> int:
        """Contributing survivors that compute fewer extra microbatches than that."""
        most = self.extra
        return sum(self.extra_counts.get(m, 0) < most for m in self.contributors)

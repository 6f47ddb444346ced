"""How the global batch is split over the living replicas while nothing fails.

A layout is only counts. Members are taken in the order of their ids: majors first, then minors,
then major-spares, then minor-spares. Which replica computes which microbatch is the plan's affair
(see `workload_policy.plan`).
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from workload_policy.errors import LayoutError
from workload_policy.roles import Role

__all__ = ["Layout", "check_shape"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Steady-state split for a number of survivors (ReCoVer, Algorithm 7).

    A pure function of the policy, the global batch and the number of survivors.

    >>> from workload_policy import StaticWorld
    >>> layout = StaticWorld().layout(replicas=4, grad_accum=2, survivors=3)
    >>> layout.contributions
    (3, 3, 2)

    Attributes:
        replicas: Replicas the run started with, ``W_init``.
        survivors: Living replicas this layout is for.
        global_batch: Microbatches of a step, ``B = W_init * G_init``.
        grad_accum: Microbatches a major computes in a step, ``G_cur``.
        majors: Number of replicas that contribute `grad_accum` microbatches.
        minors: Number of replicas that contribute `minor_quota` microbatches.
        minor_quota: Microbatches a minor computes in a step; 0 where there is no minor.
        major_spares: Number of replicas that compute as a major does, uncounted.
        minor_spares: Number of replicas that compute as a minor does, uncounted.
    """

    replicas: int
    survivors: int
    global_batch: int
    grad_accum: int
    majors: int
    minors: int
    minor_quota: int
    major_spares: int
    minor_spares: int

    @property
    def roles(self) -> tuple[Role, ...]:
        """Role of each survivor, in order of replica id."""
        return (
            (Role.MAJOR,) * self.majors
            + (Role.MINOR,) * self.minors
            + (Role.MAJOR_SPARE,) * self.major_spares
            + (Role.MINOR_SPARE,) * self.minor_spares
        )

    @property
    def quotas(self) -> tuple[int, ...]:
        """Microbatches each survivor computes, in order of replica id; spares compute too."""
        return (
            (self.grad_accum,) * self.majors
            + (self.minor_quota,) * self.minors
            + (self.grad_accum,) * self.major_spares
            + (self.minor_quota,) * self.minor_spares
        )

    @property
    def contributions(self) -> tuple[int, ...]:
        """Microbatches of each survivor that count, in order of replica id; 0 for spares."""
        return (
            (self.grad_accum,) * self.majors
            + (self.minor_quota,) * self.minors
            + (0,) * (self.major_spares + self.minor_spares)
        )

    @property
    def total(self) -> int:
        """Microbatches that count in one step."""
        return self.majors * self.grad_accum + self.minors * self.minor_quota

    def quota(self, role: Role) -> int:
        """Return the microbatches a replica of this role computes in a step."""
        return self.grad_accum if role.promoted is Role.MAJOR else self.minor_quota

    def to_dict(self) -> dict[str, int]:
        """Return the counts as a JSON-ready dictionary."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a layout from `to_dict`.

        Raises:
            LayoutError: The dictionary is not one of a layout.
        """
        names = {field.name for field in fields(cls)}
        if set(data) != names or not all(
            type(value) is int and value >= 0 for value in data.values()
        ):
            raise LayoutError(
                f"not a layout: {data!r}; expected whole numbers for {', '.join(sorted(names))}"
            )
        layout = cls(**data)
        spares = layout.major_spares + layout.minor_spares
        if layout.survivors != layout.majors + layout.minors + spares:
            raise LayoutError(f"not a layout: {data!r}; its roles do not add up to its survivors")
        return layout


def check_shape(*, replicas: int, grad_accum: int, survivors: int) -> int:
    """Return the global batch ``B = replicas * grad_accum`` of a shape that makes sense.

    `survivors` may exceed `replicas`: that is a run that has grown.

    Raises:
        LayoutError: A number is not positive.
    """
    for name, value in (
        ("replicas", replicas),
        ("grad_accum", grad_accum),
        ("survivors", survivors),
    ):
        if value < 1:
            raise LayoutError(f"{name} must be at least 1, got {value}")
    return replicas * grad_accum

"""Plain text tables for people."""

from collections import Counter
from collections.abc import Iterable, Sequence

from workload_policy.plan import Plan
from workload_policy.roles import Role
from workload_policy.simulation import SimulatedStep

__all__ = ["layout_report", "simulation_report"]


def layout_report(plan: Plan) -> str:
    """Return the split of a fresh plan's step, who computes and who counts, and what it costs."""
    counts = plan.contributions
    kinds = Counter((plan.roles[m], len(plan.assigned[m]), counts[m]) for m in plan.members)
    rows: list[tuple[object, ...]] = [
        (role.label.replace("_", "-"), count, each, count * each, count * counted)
        for (role, each, counted), count in sorted(kinds.items(), key=_by_role_and_share)
    ]
    shares = [len(ids) for ids in plan.assigned.values()]
    rows.append(("total", len(plan.members), "", sum(shares), plan.total))
    lines = [
        (
            f"policy {plan.policy}, {len(plan.members)} replicas alive of {plan.replicas} at the"
            f" start, global batch {plan.global_batch}"
        ),
        "",
        *_aligned(("role", "replicas", "each", "computed", "counted"), rows),
        "",
        f"A step is {max(shares)} microbatches long; it was {plan.grad_accum} at the start.",
    ]
    return "\n".join(lines)


def _by_role_and_share(kind: tuple[tuple[Role, int, int], int]) -> tuple[Role, int, int]:
    (role, each, counted), _ = kind
    return role, -each, -counted


def simulation_report(steps: Iterable[SimulatedStep], *, policy: str) -> str:
    """Return one line per step, then what all of them counted and computed."""
    header = (
        "step",
        "survivors",
        "failed",
        "joined",
        "boundary",
        "extra",
        "b-minors",
        "longest",
        "total",
        "contributions",
    )
    rows: list[tuple[object, ...]] = []
    counted = computed = 0
    for step in steps:
        entry = step.entry
        counted += entry.total
        computed += step.computed
        rows.append(
            (
                entry.step,
                step.survivors,
                _ids(step.failed),
                _ids(step.joined),
                "yes" if entry.boundary else "-",
                entry.extra,
                entry.boundary_minors,
                step.longest,
                entry.total,
                _shares(entry.contributions.values()),
            )
        )
    surplus = 100 * (computed - counted) / counted
    lines = [
        *_aligned(header, rows),
        "",
        (
            f"policy {policy}: {counted} microbatches counted, each once;"
            f" {computed} computed (+{surplus:.1f}%: lost with a replica, or on spares)"
        ),
    ]
    return "\n".join(lines)


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas)) or "-"


def _shares(contributions: Iterable[int]) -> str:
    """Return how many replicas contribute how much: ``8x9 23x8``."""
    shares = sorted(Counter(contributions).items(), reverse=True)
    return " ".join(f"{replicas}x{share}" for share, replicas in shares)


def _aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return lines with columns of numbers to the right and columns of words to the left."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [isinstance(cell, int) for cell in rows[0]]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]

"""Plain text tables for people."""

from collections import Counter
from collections.abc import Iterable, Sequence

from workload_policy.layout import Layout
from workload_policy.roles import Role
from workload_policy.simulate import SimulatedStep

__all__ = ["layout_report", "simulation_report"]


def layout_report(layout: Layout, *, policy: str) -> str:
    """Return the split of one step, who computes and who counts, and what it costs."""
    counts = {
        Role.MAJOR: layout.majors,
        Role.MINOR: layout.minors,
        Role.MAJOR_SPARE: layout.major_spares,
        Role.MINOR_SPARE: layout.minor_spares,
    }
    rows: list[tuple[object, ...]] = []
    computed = 0
    for role, count in counts.items():
        if count:
            each = layout.quota(role)
            computed += count * each
            counted = 0 if role.is_spare else count * each
            rows.append((role.label.replace("_", "-"), count, each, count * each, counted))
    rows.append(("total", layout.survivors, "", computed, layout.total))
    lines = [
        (
            f"policy {policy}, {layout.survivors} replicas alive of {layout.replicas} at the start,"
            f" global batch {layout.global_batch}"
        ),
        "",
        *_aligned(("role", "replicas", "each", "computed", "counted"), rows),
        "",
        (
            f"A step is {layout.grad_accum} microbatches long;"
            f" it was {layout.global_batch // layout.replicas} at the start."
        ),
    ]
    return "\n".join(lines)


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

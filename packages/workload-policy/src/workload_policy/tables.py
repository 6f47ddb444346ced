"""Plain text tables for people: aligned columns, one blank line between parts."""

from __future__ import annotations

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
    rows = [
        (
            role.label.replace("_", "-"),
            count,
            layout.quota(role),
            count * layout.quota(role),
            0 if role.is_spare else count * layout.quota(role),
        )
        for role, count in counts.items()
        if count
    ]
    computed = sum(row[3] for row in rows)
    rows_and_total = [*rows, ("total", layout.survivors, "", computed, layout.total)]
    first_share = layout.global_batch // layout.replicas
    return "\n".join(
        [
            f"{layout.survivors} living replicas, {layout.replicas} at the start;"
            f" policy {policy}; global batch {layout.global_batch}",
            "",
            *_aligned(("role", "replicas", "each", "computed", "counted"), rows_and_total),
            "",
            f"A step is {layout.grad_accum} microbatches long; at the start it was {first_share}.",
            f"It counts {layout.total} of {layout.global_batch} microbatches;"
            f" spares compute {computed - layout.total} more.",
        ]
    )


def simulation_report(steps: Iterable[SimulatedStep], *, policy: str) -> str:
    """Return one line per step and what the whole simulation counted and computed."""
    done = list(steps)
    rows = [
        (
            step.entry.step,
            step.survivors,
            _ids(step.failed),
            _ids(step.joined),
            "yes" if step.entry.boundary else "-",
            step.entry.extra,
            step.entry.boundary_minors,
            step.longest,
            step.entry.total,
            _shares(step.entry.contributions.values()),
        )
        for step in done
    ]
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
    counted = sum(step.entry.total for step in done)
    computed = sum(step.computed for step in done)
    return "\n".join(
        [
            *_aligned(header, rows),
            "",
            f"Policy {policy}: {counted} microbatches counted, each once; {computed} computed"
            f" ({100 * (computed - counted) / counted:.1f}% more, lost or on spares).",
        ]
    )


def _ids(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas)) or "-"


def _shares(contributions: Iterable[int]) -> str:
    """Return how many replicas contribute how much: ``8x9 23x8``."""
    shares = sorted(Counter(contributions).items(), reverse=True)
    return " ".join(f"{replicas}x{share}" for share, replicas in shares)


def _aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return lines with numbers to the right and words to the left."""
    numeric = [any(isinstance(cell, int) for cell in column) for column in zip(*rows, strict=True)]
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]

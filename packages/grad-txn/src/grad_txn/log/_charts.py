"""The picture of a run: loss, replicas, step time, throughput, recoveries (needs matplotlib)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from grad_txn.log.history import History, Recovery, Step

__all__ = ["PHASES", "ROLES", "draw"]

# Okabe and Ito's palette: distinct also to readers who do not tell red from green.
_BLUE, _SKY, _GREEN, _ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
_RED, _PURPLE, _YELLOW, _GREY, _PALE = "#D55E00", "#CC79A7", "#F0E442", "#7A7A7A", "#EBEBEB"

ROLES = {"major": _BLUE, "minor": _SKY, "major_spare": _ORANGE, "minor_spare": _YELLOW}
"""Role -> color."""

PHASES = {
    "detect": _YELLOW,
    "repair": _ORANGE,
    "record": _SKY,
    "restore": _GREEN,
    "rereduce": _BLUE,
    "compute": _PURPLE,
}
"""Phase of a recovery, an attribute of `Recovery` -> color."""

_FEW_STEPS = 60
_FEW_RECOVERIES = 14
_FEW_DEATHS = 12


def draw(history: History, path: Path, *, reference: History | None = None) -> None:
    """Draw a run into a PNG file.

    Args:
        history: The run.
        path: File to write.
        reference: A run to compare with, usually the one without failures.
    """
    first, last = history.steps[0].step, history.steps[-1].step
    if reference is not None:
        # A longer reference would only squeeze the scales.
        steps = tuple(step for step in reference.steps if first <= step.step <= last)
        reference = replace(reference, steps=steps)
    rows = history.most_replicas * min(2, history.start.replica_size)
    strip = min(4.5, 1.0 + 0.22 * rows)
    panels = {"loss": 2.8, "replicas": strip, "seconds": 1.9, "throughput": 1.9}
    if reference is not None:
        panels = {"loss": 2.6, "difference": 1.3} | {k: panels[k] for k in panels if k != "loss"}
    if any(step.stacks for step in history.steps):
        panels["stacks"] = 1.2
    if history.recoveries:
        panels["recovery"] = 3.4
    figure = Figure(figsize=(11, sum(panels.values()) + 1.0), layout="constrained")
    grid = figure.add_gridspec(len(panels), 1, height_ratios=list(panels.values()))
    axes: dict[str, Axes] = {}
    for row, name in enumerate(panels):
        if name != "recovery":
            shared = axes.get("loss")
            axes[name] = figure.add_subplot(grid[row], sharex=shared)
    _draw_loss(axes["loss"], history, reference)
    if reference is not None:
        _draw_difference(axes["difference"], history, reference)
    _draw_replicas(axes["replicas"], history)
    _draw_seconds(axes["seconds"], history, reference)
    _draw_throughput(axes["throughput"], history, reference)
    if "stacks" in axes:
        _draw_stacks(axes["stacks"], history)
    bottom = "stacks" if "stacks" in axes else "throughput"
    for name, axis in axes.items():
        axis.set_xlim(first - 0.5, last + 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.tick_params(labelbottom=name == bottom)
        if name != "replicas":
            _mark_events(axis, history)
    axes[bottom].set_xlabel("optimizer step")
    if history.recoveries:
        inner = grid[len(panels) - 1].subgridspec(1, 2, wspace=0.08)
        _draw_phases(figure.add_subplot(inner[0]), history.recoveries)
        _draw_to_commit(figure.add_subplot(inner[1]), history)
    start = history.start
    figure.suptitle(
        f"{history.most_replicas} replicas of {_count(start.replica_size, 'rank')}, "
        f"policy {start.policy}, B = {history.global_batch} microbatches a step",
        fontsize=13,
        fontweight="bold",
    )
    figure.savefig(path, dpi=130, metadata={"Software": "grad-txn"})


def _draw_loss(axis: Axes, history: History, reference: History | None) -> None:
    if reference is not None:
        axis.plot(
            [step.step for step in reference.steps],
            [step.loss for step in reference.steps],
            color=_GREY, linewidth=4, alpha=0.45, label="reference", marker=_dot(reference),
        )  # fmt: skip
    axis.plot(
        [step.step for step in history.steps],
        [step.loss for step in history.steps],
        color=_BLUE, label="this run", marker=_dot(history), markersize=3,
    )  # fmt: skip
    axis.set_ylabel("loss")
    handles, _ = axis.get_legend_handles_labels()
    if history.deaths:
        handles.append(Line2D([], [], color=_RED, linewidth=1, label="replica lost"))
    if history.resumed:
        handles.append(Line2D([], [], color=_GREY, linestyle=":", label="resumed"))
    axis.legend(handles=handles, loc="upper right", fontsize=9, ncols=len(handles))


def _draw_difference(axis: Axes, history: History, reference: History) -> None:
    differences = history.differences(reference)
    unequal = {step: value for step, value in differences.items() if value > 0}
    axis.set_ylabel("relative\ndifference")
    if unequal:
        axis.semilogy(
            list(unequal),
            list(unequal.values()),
            color=_PURPLE,
            linestyle="none",
            marker="o",
            markersize=3,
        )
        # Room above for the note.
        axis.set_ylim(min(unequal.values()) / 5, max(unequal.values()) * 100)
    else:
        axis.set_yticks([])
    equal = len(differences) - len(unequal)
    note = f"bit-identical loss in {equal} of {len(differences)} steps"
    axis.text(0.995, 0.9, note, transform=axis.transAxes, ha="right", va="top", fontsize=9)


def _draw_replicas(axis: Axes, history: History) -> None:
    """Replica rows, step columns, colored by role; an X where a replica died."""
    first, last = history.steps[0].step, history.steps[-1].step
    names = list(ROLES)
    cells = [[len(names)] * (last - first + 1) for _ in range(history.most_replicas)]
    for step in history.steps:
        for replica, role in step.roles.items():
            cells[replica][step.step - first] = names.index(role)
    axis.imshow(
        cells,
        cmap=ListedColormap([*ROLES.values(), _PALE]),
        vmin=-0.5, vmax=len(names) + 0.5, aspect="auto", interpolation="nearest",
        extent=(first - 0.5, last + 0.5, history.most_replicas - 0.5, -0.5),
    )  # fmt: skip
    if len(history.steps) <= _FEW_STEPS and history.most_replicas <= 16:
        for edge in range(first, last):
            axis.axvline(edge + 0.5, color="white", linewidth=0.8)
    if history.most_replicas <= 16:
        for edge in range(history.most_replicas - 1):
            axis.axhline(edge + 0.5, color="white", linewidth=1.5)
    for step in history.steps:
        if step.boundary:
            axis.plot(
                step.step, -0.5, marker="v", markersize=7, color="black", clip_on=False, zorder=4
            )
    size = history.start.replica_size
    if 1 < size * history.most_replicas <= 32:
        for edge in range(1, size * history.most_replicas):
            axis.axhline(edge / size - 0.5, color="white", linewidth=0.6, alpha=0.7)
    for death in history.deaths:
        rows = [_row(death.replica, position, size) for position in range(size)]
        struck = [rows[position] for position in death.positions or range(size)]
        taken = [row for row in rows if row not in struck]
        axis.plot(
            [death.step] * len(struck), struck, marker="X", markersize=9, color=_RED,
            markeredgecolor="white", markeredgewidth=0.8, zorder=5, linestyle="none",
        )  # fmt: skip
        axis.plot(
            [death.step] * len(taken), taken, marker="x", markersize=6, color=_RED, zorder=5,
            linestyle="none",
        )  # fmt: skip
        if len(history.deaths) <= _FEW_DEATHS:
            right = death.step > (first + last) / 2
            named = ""
            if size > 1 and death.positions:
                named = f"rank {', '.join(map(str, death.positions))} "
            axis.annotate(
                named + death.at.replace("_", " "), (death.step, struck[0]),
                xytext=(-9 if right else 9, 0), textcoords="offset points",
                ha="right" if right else "left", va="center", fontsize=8, zorder=6,
                bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.85},
            )  # fmt: skip
    for step_number in history.resumed:
        axis.axvline(step_number - 0.5, color="black", linestyle=":", linewidth=1.2)
    axis.set_ylabel("replica" if size == 1 else f"replica\n({size} ranks each)")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    used = {role for step in history.steps for role in step.roles.values()}
    handles: list[Patch | Line2D] = [
        Patch(color=color, label=role.replace("_", " "))
        for role, color in ROLES.items()
        if role in used
    ]
    if history.deaths:
        handles.append(Patch(color=_PALE, label="gone"))
        handles.append(Line2D([], [], color=_RED, marker="X", linestyle="none", label="death"))
        if size > 1:
            handles.append(
                Line2D([], [], color=_RED, marker="x", linestyle="none", label="went with its peer")
            )
    if any(step.boundary for step in history.steps):
        handles.append(
            Line2D([], [], color="black", marker="v", linestyle="none", label="policy boundary")
        )
    axis.legend(
        handles=handles, loc="lower right", bbox_to_anchor=(1, 1.01), ncols=len(handles),
        fontsize=8, frameon=False, borderaxespad=0.2, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip


def _row(replica: int, position: int, size: int) -> float:
    """Where a rank is in the panel of replicas: each replica's row is split among its ranks."""
    return replica - 0.5 + (position + 0.5) / size


def _draw_seconds(axis: Axes, history: History, reference: History | None) -> None:
    _draw_values(axis, history, reference, lambda step: step.seconds)
    axis.set_ylabel("step time\n(s)")


def _draw_throughput(axis: Axes, history: History, reference: History | None) -> None:
    _draw_values(axis, history, reference, lambda step: step.throughput)
    axis.set_ylabel("effective\nthroughput\n(tokens/s/rank)")


def _draw_stacks(axis: Axes, history: History) -> None:
    """The most stacks that a replica has computed; a patch shows as one step that is higher."""
    steps = [step.step for step in history.steps]
    stacks = [step.stacks for step in history.steps]
    axis.step(steps, stacks, where="mid", color=_GREEN)
    axis.set_ylim(0, max(stacks) + 0.5)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel("stacks\na step")


def _draw_values(
    axis: Axes, history: History, reference: History | None, value: Callable[[Step], float]
) -> None:
    ours = [value(step) for step in history.steps]
    theirs = [value(step) for step in reference.steps] if reference is not None else []
    if reference is not None:
        steps = [step.step for step in reference.steps]
        axis.plot(steps, theirs, color=_GREY, linewidth=4, alpha=0.45)
    steps = [step.step for step in history.steps]
    axis.plot(steps, ours, color=_BLUE, marker=_dot(history), markersize=3, linewidth=1.2)
    highest = max(filter(math.isfinite, [*ours, *theirs]), default=0)
    axis.set_ylim(0, 1.1 * highest or 1)


def _mark_events(axis: Axes, history: History) -> None:
    axis.grid(visible=True, axis="y", color=_PALE)
    axis.set_axisbelow(True)
    for step in {death.step for death in history.deaths}:
        axis.axvline(step, color=_RED, linewidth=1, alpha=0.6, zorder=1)
    for step in history.resumed:
        axis.axvline(step - 0.5, color=_GREY, linestyle=":", linewidth=1.2)


def _draw_phases(axis: Axes, recoveries: Sequence[Recovery]) -> None:
    """Where the time of each recovery goes, without the extra microbatches' compute."""
    bottoms = [0.0] * len(recoveries)
    for phase, color in PHASES.items():
        if phase == "compute":
            continue
        heights = [1e3 * getattr(recovery, phase) for recovery in recoveries]
        axis.bar(
            range(len(recoveries)), heights, bottom=bottoms, color=color, width=0.7,
            label=phase.replace("rereduce", "re-reduce"),
        )  # fmt: skip
        bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
    axis.set_title("recovery by phase, without extra microbatches", fontsize=10, loc="left")
    _finish_bars(axis, recoveries, highest=max(bottoms))


def _draw_to_commit(axis: Axes, history: History) -> None:
    """From SIGKILL to the next commit, split into extra compute and the rest."""
    recoveries = history.recoveries
    title = "SIGKILL to next commit"
    total, overhead = history.median_to_commit(), history.median_overhead()
    if total is not None and overhead is not None:
        title += f": median {1e3 * total:,.0f} ms, {1e3 * overhead:,.0f} without extra"
    rest = [1e3 * (recovery.overhead or 0.0) for recovery in recoveries]
    compute = [
        1e3 * recovery.compute_to_commit if recovery.to_commit is not None else 0.0
        for recovery in recoveries
    ]
    places = range(len(recoveries))
    axis.bar(places, rest, color=_RED, width=0.7, label="everything else")
    axis.bar(places, compute, bottom=rest, color=_PURPLE, width=0.7, label="extra microbatches")
    for place, recovery in enumerate(recoveries):
        if recovery.to_commit is None:
            axis.text(place, 0, "?", ha="center", va="bottom", fontsize=9)
    axis.set_title(title, fontsize=10, loc="left")
    _finish_bars(axis, recoveries, highest=max(map(sum, zip(rest, compute, strict=True))))


def _finish_bars(axis: Axes, recoveries: Sequence[Recovery], *, highest: float) -> None:
    axis.set_ylabel("time (ms)")
    axis.set_ylim(0, 1.32 * highest or 1)
    axis.set_xlim(-0.8, max(len(recoveries), 3) - 0.2)
    axis.grid(visible=True, axis="y", color=_PALE)
    axis.set_axisbelow(True)
    axis.legend(loc="upper left", fontsize=8, ncols=5, frameon=False, handlelength=1.2,
                columnspacing=1.0)  # fmt: skip
    if len(recoveries) <= _FEW_RECOVERIES:
        labels = [
            f"step {r.step}\nreplica {', '.join(str(death.replica) for death in r.deaths)}"
            for r in recoveries
        ]
        axis.set_xticks(range(len(recoveries)), labels, fontsize=8)
        if len(recoveries) > 6:
            axis.tick_params(axis="x", rotation=90)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlabel("recovery, in order")


def _dot(history: History) -> str:
    """Dots only where they can be told apart; a gap-free run of one step needs its dot."""
    return "o" if len(history.steps) <= _FEW_STEPS else ""


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' * (number != 1)}"

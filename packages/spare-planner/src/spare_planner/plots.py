"""Pictures of a fit and of a recommendation. They need matplotlib, the extra ``plot``."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from spare_planner.durations import spoken
from spare_planner.errors import PlannerError
from spare_planner.fit import Fit
from spare_planner.forecast import Forecast, forecast
from spare_planner.intervals import time_between_wipe_outs
from spare_planner.lifetimes import lifetimes
from spare_planner.recommendation import Candidate, Cluster, Recommendation, forecasts
from spare_planner.theory import (
    endurable_failures,
    endurable_failures_by_replication,
    optimal_redundancy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PlotError", "check_picture", "plot_fit", "plot_recommendation"]

# Colours that people with colour blindness can tell apart (Okabe and Ito).
_COLOURS = {
    "spare": "#0072B2",
    "replication": "#D55E00",
    "checkpoint": "#999999",
    "elastic": "#009E73",
}
_LABELS = {
    "spare": "SPARe",
    "replication": "replication",
    "checkpoint": "checkpoints alone",
    "elastic": "elastic",
}
_SUFFIXES = (".png", ".svg", ".pdf")
_SIZES = np.geomspace(1e4, 1e6, 13)  # GPUs
_TOP = 10.0  # times the failure-free time: what takes longer is out of the picture


class PlotError(PlannerError, ValueError):
    """A picture that cannot be drawn or written."""


def plot_recommendation(made: Recommendation, path: Path) -> None:
    """Draw time to train, availability and endurance over r, and all strategies over cluster size.

    Lines are forecasts in closed form, dots what was simulated, with 95% intervals.

    Raises:
        PlotError: The file cannot be written, or matplotlib is missing.
    """
    figure = _figure(path, 11, 7.6)
    axes = figure.subplots(2, 2)
    cluster = made.cluster
    figure.suptitle(
        f"{cluster.scenario.groups:,} groups"
        + ("" if cluster.gpus is None else f", {cluster.gpus:,} GPUs")
        + f", a failure every {spoken(cluster.mtbf)},"
        f" restart {spoken(cluster.scenario.restart_seconds)}",
        fontsize=12,
    )
    _over_redundancy(axes[0, 0], made, "ttt_ratio", "time to train / T0", 1.0)
    _over_redundancy(axes[0, 1], made, "availability_strict", "availability, strict (%)", 100.0)
    _endurance(axes[1, 0], made)
    _over_size(axes[1, 1], cluster)
    _write(figure, path)


def _over_redundancy(
    axes: "Axes", made: Recommendation, key: str, label: str, scale: float
) -> None:
    for strategy in ("spare", "replication"):
        mine = [one for one in _every_redundancy(made.cluster) if one.strategy == strategy]
        mine = [one for one in mine if one.ttt_ratio < _TOP]
        axes.plot(
            [one.redundancy for one in mine],
            [getattr(one, key) * scale for one in mine],
            color=_COLOURS[strategy],
            marker=".",
            markersize=4,
            linewidth=1.3,
            label=_LABELS[strategy],
        )
    for strategy in ("elastic", "checkpoint"):
        for one in made.all_forecasts:
            if one.strategy == strategy and one.ttt_ratio < _TOP:
                axes.axhline(
                    getattr(one, key) * scale,
                    color=_COLOURS[strategy],
                    linewidth=1.2,
                    linestyle="--",
                    label=_LABELS[strategy] + " (r = 1)",
                )
    for candidate in made.candidates:
        if candidate.strategy in {"spare", "replication"} and candidate.ttt_ratio < _TOP:
            _dot(axes, candidate, key, scale)
    axes.set_xlabel("redundancy r")
    axes.set_ylabel(label)
    if key == "ttt_ratio":
        axes.set_ylim(bottom=1.0)
        axes.set_title("Time to train", loc="left", fontsize=10)
    else:
        axes.set_ylim(top=100.0)
        axes.set_title("Availability", loc="left", fontsize=10)
    axes.legend(fontsize=8, frameon=False)


def _every_redundancy(cluster: Cluster) -> list[Forecast]:
    """Forecast both redundant strategies for the same redundancies."""
    groups = cluster.scenario.groups
    most = min(groups, max(12, int(optimal_redundancy(groups)) + 4))
    return [
        forecast(
            strategy,
            cluster.scenario,
            mtbf=cluster.mtbf,
            redundancy=redundancy,
            lost_at_once=cluster.lost_at_once,
        )
        for strategy in ("spare", "replication")
        for redundancy in range(2, most + 1)
    ]


def _dot(axes: "Axes", candidate: Candidate, key: str, scale: float) -> None:
    """Draw what was simulated."""
    if candidate.summary is None:
        return
    value = candidate.summary.statistics[key]
    if value.mean is None:
        return
    bar = None
    if value.low is not None and value.high is not None:
        bar = [[(value.mean - value.low) * scale], [(value.high - value.mean) * scale]]
    axes.errorbar(
        [candidate.forecast.redundancy],
        [value.mean * scale],
        yerr=bar,
        fmt="o",
        markersize=5,
        capsize=3,
        color=_COLOURS[candidate.strategy],
        markeredgecolor="black",
        markeredgewidth=0.6,
    )


def _endurance(axes: "Axes", made: Recommendation) -> None:
    """Draw how many failures are endured, and how long that takes."""
    cluster = made.cluster
    groups = cluster.scenario.groups
    most = min(groups, max(12, int(optimal_redundancy(groups)) + 4))
    r = np.arange(2, most + 1)
    for strategy, form in (
        ("spare", endurable_failures),
        ("replication", endurable_failures_by_replication),
    ):
        mu = np.minimum(form(groups, r), groups - 0.5)
        axes.plot(
            r, mu, color=_COLOURS[strategy], marker=".", markersize=4, label=_LABELS[strategy]
        )
    half = groups / 2
    axes.axhline(half, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(
        "N/2: a third stack from here on",
        (2, half),
        textcoords="offset points",
        xytext=(0, 4),
        fontsize=8,
    )
    star = int(optimal_redundancy(groups))
    if 2 <= star <= most:
        mu_star = float(endurable_failures(groups, star))
        lasts = float(time_between_wipe_outs(groups, mu_star, mtbf=cluster.mtbf))
        axes.annotate(
            f"r* = {star}: {mu_star:,.0f} failures, {spoken(lasts)}",
            (star, mu_star),
            textcoords="offset points",
            xytext=(8, -28),
            fontsize=8,
            arrowprops={"arrowstyle": "-", "linewidth": 0.6},
        )
    axes.set_xlabel("redundancy r")
    axes.set_ylabel("failures endured before a restart")
    axes.set_ylim(bottom=0)
    axes.set_title("Endurable failures", loc="left", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def _over_size(axes: "Axes", cluster: Cluster) -> None:
    """Draw every strategy at its best for clusters of 10,000 to a million GPUs."""
    each = cluster.gpus_per_group or 1000
    gpu_mtbf = cluster.mtbf * cluster.scenario.groups * each
    curves: dict[str, list[tuple[float, float]]] = {}
    for gpus in _SIZES.tolist():
        groups = max(1, int(gpus / each))
        there = dataclasses.replace(
            cluster,
            scenario=dataclasses.replace(cluster.scenario, groups=groups),
            redundancies=None,
        )
        best: dict[str, float] = {}
        for one in forecasts(there, mtbf=gpu_mtbf / (groups * each)):
            best[one.strategy] = min(one.ttt_ratio, best.get(one.strategy, math.inf))
        for strategy, ratio in best.items():
            if ratio < _TOP * 1.5:
                curves.setdefault(strategy, []).append((gpus, ratio))
    for strategy, points in curves.items():
        axes.plot(
            *zip(*points, strict=True),
            color=_COLOURS[strategy],
            marker=".",
            label=_LABELS[strategy],
        )
    if cluster.gpus is not None and _SIZES[0] <= cluster.gpus <= _SIZES[-1]:
        axes.axvline(cluster.gpus, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(
            "this cluster",
            (cluster.gpus, _TOP),
            textcoords="offset points",
            xytext=(-3, -2),
            ha="right",
            va="top",
            rotation=90,
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.set_ylim(1.0, _TOP)
    axes.set_xlabel(
        f"GPUs, {each:,} a group, each failing every {spoken(gpu_mtbf)}; restart as here"
    )
    axes.set_ylabel("time to train / T0, at the best r")
    axes.set_title("Cluster size", loc="left", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def plot_fit(fit: Fit, path: Path) -> None:
    """Draw failures over time, survival of units, repairs, and failures that came together.

    Raises:
        PlotError: The file cannot be written, or matplotlib is missing.
    """
    figure = _figure(path, 11, 7.2)
    axes = figure.subplots(2, 2)
    figure.suptitle(
        f"{fit.log.name}: {fit.failures} failures, {fit.log.units} units,"
        f" {spoken(fit.log.seconds)}",
        fontsize=12,
    )
    _history(axes[0, 0], fit)
    _survival(axes[0, 1], fit)
    _repairs(axes[1, 0], fit)
    _bunches(axes[1, 1], fit)
    _write(figure, path)


def _history(axes: "Axes", fit: Fit) -> None:
    days = np.sort([start / 86_400 for mine in fit.log.outages() for start, _ in mine])
    end = fit.log.seconds / 86_400
    axes.step([0, *days, end], [*range(len(days) + 1), len(days)], where="post", color="#0072B2")
    axes.plot([0, end], [0, len(days)], color="black", linewidth=0.8, linestyle=":")
    axes.annotate(
        "a steady rate",
        (end / 2, len(days) / 2),
        xytext=(6, -10),
        textcoords="offset points",
        fontsize=8,
    )
    axes.set_xlabel("days")
    axes.set_ylabel("failures so far")
    axes.set_title(f"A failure every {spoken(fit.mtbf.value)}", loc="left", fontsize=10)


def _survival(axes: "Axes", fit: Fit) -> None:
    """Draw times from repair to failure, by Kaplan and Meier, and the fitted Weibull."""
    times = lifetimes(fit.log)
    axes.set_title(
        f"Weibull shape {fit.shape.value:.2f} ({fit.shape.low:.2f} to {fit.shape.high:.2f})",
        loc="left",
        fontsize=10,
    )
    axes.set_xlabel("days since the last repair")
    axes.set_ylabel("units still in service (%)")
    axes.set_ylim(0, 100)
    if not len(times.whole):
        axes.annotate("no unit failed twice", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    seen = stats.ecdf(stats.CensoredData(uncensored=times.whole, right=times.cut)).sf
    days = seen.quantiles / 86_400
    axes.step(
        [0, *days],
        [100, *(seen.probabilities * 100)],
        where="post",
        color="#0072B2",
        label="observed (Kaplan-Meier)",
    )
    grid = np.linspace(0, fit.log.seconds, 400)
    axes.plot(
        grid / 86_400,
        100 * np.exp(-((grid / fit.scale) ** fit.shape.value)),
        color="#D55E00",
        linestyle="--",
        label="fitted to all units",
    )
    axes.legend(fontsize=8, frameon=False)


def _repairs(axes: "Axes", fit: Fit) -> None:
    hours = np.asarray(
        [(b - a) / 3600 for mine in fit.log.outages() for a, b in mine if math.isfinite(b)]
    )
    axes.set_title("Repairs", loc="left", fontsize=10)
    axes.set_xlabel("hours")
    axes.set_ylabel("repairs over by then (%)")
    if not len(hours):
        axes.annotate("none in the log", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    hours = np.sort(np.maximum(hours, fit.log.resolution / 3600))
    axes.step(hours, 100 * np.arange(1, len(hours) + 1) / len(hours), where="post", color="#0072B2")
    for value, name in ((fit.repair_median, "median"), (fit.repair_p90, "nine in ten")):
        if value is not None:
            axes.axvline(value / 3600, color="black", linewidth=0.8, linestyle=":")
            axes.annotate(
                f" {name} {spoken(value)}",
                (max(value / 3600, hours[0]), 3),
                fontsize=8,
                rotation=90,
                va="bottom",
                ha="right",
            )
    axes.set_xscale("log")
    axes.set_ylim(0, 100)


def _bunches(axes: "Axes", fit: Fit) -> None:
    sizes = list(fit.bunches)
    bars = axes.bar(range(len(sizes)), list(fit.bunches.values()), color="#0072B2", width=0.7)
    axes.bar_label(bars, fontsize=8)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.set_yscale("log")
    axes.set_ylim(0.7, 2 * max(fit.bunches.values()))
    axes.set_xlabel(f"failures within {spoken(fit.within)} of each other")
    axes.set_ylabel("how often")
    axes.set_title(
        f"{fit.simultaneous:.0%} came together; {fit.by_chance:.1%} would by chance",
        loc="left",
        fontsize=10,
    )


def check_picture(path: Path) -> None:
    """Find out, before there is anything to draw, whether it could be.

    Raises:
        PlotError: The file cannot be written, or matplotlib is missing.
    """
    _figure(path, 1, 1)


def _figure(path: Path, width: float, height: float) -> "Figure":
    if path.suffix.lower() not in _SUFFIXES:
        raise PlotError(f"the picture {path} must end in {', '.join(_SUFFIXES)}")
    if not path.parent.is_dir():
        raise PlotError(f"there is no folder {path.parent} for the picture")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("pictures need matplotlib: pip install 'spare-planner[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _write(figure: "Figure", path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, linewidth=0.4, alpha=0.5)
    options: dict[str, Any] = {} if path.suffix.lower() != ".png" else {"dpi": 130}
    try:
        figure.savefig(path, **options)
    except OSError as error:
        raise PlotError(f"cannot write the picture {path}: {error.strerror}") from error

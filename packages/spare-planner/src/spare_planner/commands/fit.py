"""``spare-planner fit``: what a failure log says, and what it does not."""

import argparse
import json
from pathlib import Path
from typing import Any

from spare_planner.commands.cluster import add_log, log_of, seconds
from spare_planner.commands.shape import add_json
from spare_planner.durations import item, spoken
from spare_planner.errors import QuantityError
from spare_planner.fit import Fit, fit_log
from spare_planner.lifetimes import Range
from spare_planner.plots import check_picture, plot_fit

__all__ = ["add"]


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "fit",
        help="mean time between failures, Weibull shape, repairs and simultaneity from a log",
        description="Estimate from a failure log how a cluster fails, with 95%% intervals, scale it"
        " to other sizes, and say what the log does not carry.",
    )
    add_log(parser, positional=True)
    parser.add_argument(
        "--within",
        type=seconds,
        default=60.0,
        metavar="TIME",
        help="failures so close count as simultaneous; default: 60 s",
    )
    parser.add_argument(
        "--scale-to",
        type=int,
        action="extend",
        nargs="+",
        default=[],
        metavar="GPUS",
        help="sizes of other clusters of the same hardware",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw it: FILE ends in .png, .svg or .pdf"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    for gpus in arguments.scale_to:
        if gpus < 1:
            raise QuantityError(f"--scale-to takes numbers of GPUs, got {gpus}")
    if arguments.plot is not None:
        check_picture(arguments.plot)
    log = log_of(arguments)
    assert log is not None
    fit = fit_log(log, gpus_per_unit=arguments.gpus_per_unit, within=arguments.within)
    if arguments.plot is not None:
        plot_fit(fit, arguments.plot)
    if arguments.json:
        scaled = {str(gpus): fit.scaled_mtbf(gpus).to_dict() for gpus in arguments.scale_to}
        print(json.dumps({**fit.to_dict(), "scaled": scaled}))
    else:
        print(_report(fit, arguments.scale_to))


def _report(fit: Fit, sizes: list[int]) -> str:
    log = fit.log
    left_out = f", {log.excluded} excluded" if log.excluded else ""
    lines = [f"{log.name}: {fit.faults} faults of {len(log.names)} units{left_out}"]
    lines.append(f"{log.units} units of {fit.gpus_per_unit} GPUs watched for {spoken(log.seconds)}")
    if fit.failures < fit.faults:
        lines.append(f"{fit.failures} failures, where overlapping faults of a unit are one")
    lines += ["", f"{'':34} {'estimate':>10}   95% interval"]

    def row(label: str, value: Range) -> str:
        ends = f"{spoken(value.low)} to {spoken(value.high)}"
        return f"{label:34} {spoken(value.value):>10}   {ends}"

    own = log.units * fit.gpus_per_unit
    lines += [
        row(f"MTBF of these {own:,} GPUs", fit.mtbf),
        row("MTBF of one unit", fit.unit_mtbf),
        row("MTBF of one GPU", fit.gpu_mtbf),
        *(row(f"MTBF of {gpus:,} GPUs", fit.scaled_mtbf(gpus)) for gpus in sizes),
    ]
    lines.append(
        f"{'Weibull shape of a unit':34} {fit.shape.value:10.2f}"
        f"   {fit.shape.low:.2f} to {fit.shape.high:.2f}"
    )
    if fit.repair is not None and fit.repair_median is not None and fit.repair_p90 is not None:
        lines += [
            row("repair, mean", fit.repair),
            f"{'repair, median':34} {spoken(fit.repair_median):>10}",
            f"{'repair, nine in ten within':34} {spoken(fit.repair_p90):>10}",
        ]
    lines.append(
        f"{f'within {spoken(fit.within)} of another failure':34} {fit.simultaneous:10.1%}"
        f"   {fit.by_chance:.1%} if independent"
    )
    lines.append(f"{'most in one bunch':34} {fit.largest:10}")
    if fit.same_domain is not None:
        lines.append(f"{'pairs in a bunch of one domain':34} {fit.same_domain:10.1%}")
    if fit.kinds:
        top = list(fit.kinds.items())[:4]
        lines += ["", "most frequent:", *(f"  {count:5}  {name}" for name, count in top)]
    if fit.doubts:
        lines += ["", "what the log does not carry:"]
        lines += map(item, fit.doubts)
    return "\n".join(lines)

"""``spare-planner recommend``: from a cluster's numbers to a decision."""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from spare_planner.commands.cluster import (
    add_failures,
    add_groups,
    add_log,
    add_times,
    clocks,
    groups_of,
    log_of,
    replay_of,
    scenario_of,
)
from spare_planner.commands.progress import progress_bar
from spare_planner.commands.shape import add_json
from spare_planner.durations import counted, item, spoken
from spare_planner.errors import QuantityError
from spare_planner.plots import check_picture, plot_recommendation
from spare_planner.reasons import caveats, reasons
from spare_planner.recommendation import Candidate, Cluster, Recommendation, recommend
from spare_planner.simulation.experiment import STRATEGIES

__all__ = ["add"]


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "recommend",
        help="which strategy, redundancy and checkpoint interval a cluster needs, and why",
        description="Compare all strategies for a cluster, in closed form and by simulation, and"
        " say what to do, what it takes, and why.",
    )
    add_groups(parser)
    parser.add_argument(
        "--strategies",
        metavar="NAME,...",
        default=",".join(STRATEGIES),
        help="what is possible: SPARe needs a trainer that stacks, elastic one that deals the batch"
        " out again; default: %(default)s",
    )
    parser.add_argument(
        "--redundancy", type=int, metavar="R", help="only this redundancy for spare; default: all"
    )
    parser.add_argument(
        "--microbatches",
        type=int,
        metavar="G",
        help="microbatches of a group in a step, for elastic; default: as small as one likes",
    )
    parser.add_argument(
        "--price-per-gpu-hour", type=float, metavar="PRICE", help="for the cost, in any currency"
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=8,
        metavar="T",
        help="simulated runs of each candidate; 0 for closed forms alone; default: %(default)s",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of random numbers; default: %(default)s"
    )
    parser.add_argument(
        "--processes", type=int, metavar="P", help="default: as many as there are processors"
    )
    add_times(parser)
    add_failures(parser)
    add_log(parser)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also draw it: FILE ends in .png, .svg or .pdf"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.seed < 0:
        raise QuantityError(f"the seed must not be negative, got {arguments.seed}")
    if arguments.plot is not None:
        check_picture(arguments.plot)
    cluster = _cluster(arguments)
    bars: dict[int, Any] = {}

    def progress(done: int, total: int) -> None:
        show = bars.setdefault(total, progress_bar(total, what="candidates"))
        if show:
            show(done)

    made = recommend(
        cluster,
        trials=arguments.trials,
        seed=arguments.seed,
        processes=arguments.processes,
        progress=progress,
    )
    if arguments.plot is not None:
        plot_recommendation(made, arguments.plot)
    if arguments.json:
        words = {"why": list(reasons(made)), "caveats": list(caveats(made))}
        print(json.dumps(made.to_dict() | words))
    else:
        print(_report(made))


def _cluster(arguments: argparse.Namespace) -> Cluster:
    log = log_of(arguments)
    scenario = scenario_of(arguments, log=log)
    failures = clocks(arguments, need=True) if log is None else replay_of(arguments, log)
    each = arguments.gpus_per_group
    if each is None and log is not None:
        each = log.units * arguments.gpus_per_unit // groups_of(arguments)
    if arguments.redundancy is not None and not 2 <= arguments.redundancy <= scenario.groups:
        raise QuantityError(
            f"redundancy must be from 2 to {scenario.groups}, the number of groups,"
            f" got {arguments.redundancy}"
        )
    names = tuple(name.strip() for name in arguments.strategies.split(",") if name.strip())
    return Cluster(
        scenario=scenario,
        failures=failures,
        gpus_per_group=each,
        price=arguments.price_per_gpu_hour,
        strategies=names,
        redundancies=None if arguments.redundancy is None else (arguments.redundancy,),
        microbatches=arguments.microbatches,
    )


def _report(made: Recommendation) -> str:
    cluster, scenario, best = made.cluster, made.cluster.scenario, made.best
    size = counted(scenario.groups, "group")
    if cluster.gpus_per_group is not None:
        size += f" of {cluster.gpus_per_group:,} GPUs, {cluster.gpus:,} in all"
    per_gpu = "" if cluster.gpus is None else f" (one GPU: {spoken(cluster.mtbf * cluster.gpus)})"
    steps = (
        f"{scenario.steps:,} steps of {scenario.stack_seconds:g} s compute and"
        f" {scenario.allreduce_seconds:g} s all-reduce, jitter {scenario.jitter:g};"
        f" T0, without failures: {spoken(scenario.ideal_seconds)}"
    )
    times = (
        f"restart {spoken(scenario.restart_seconds)},"
        f" checkpoint {scenario.checkpoint_seconds:.1f} s"
    )
    lines = [
        size,
        f"a failure anywhere every {spoken(cluster.mtbf)}{per_gpu}",
        steps,
        times,
        "",
        f"Recommended: {best.name}",
        *_details(best),
        "",
        "Why:",
        *map(item, reasons(made)),
    ]
    second = made.runner_up
    if second is not None:
        lines += ["", f"Runner-up: {second.name}", *_details(second)]
    lines += ["", _table(made.candidates), "", "Mind:"]
    lines += map(item, caveats(made))
    return "\n".join(lines)


def _details(candidate: Candidate) -> list[str]:
    one, cluster = candidate.forecast, candidate.cluster
    if not math.isfinite(candidate.ttt_ratio):
        return ["  it gets nowhere"]
    apart = spoken(candidate.checkpoint_seconds_apart)
    lines = [f"  checkpoint every {one.checkpoint_every:,} steps ({apart})"]
    if one.restart_below:
        fewer = math.ceil(one.restart_below * cluster.scenario.groups) - 1
        lines.append(
            f"  restart on purpose, after a checkpoint, when {fewer:,} groups or fewer are left"
        )
    days = candidate.seconds / 86_400
    lines.append(f"  time to train {days:,.1f} days, {candidate.ttt_ratio:.3f} times T0")
    if candidate.summary is not None:
        values = candidate.summary.statistics
        loose, strict = (values[key].mean for key in ("availability", "availability_strict"))
        if loose is not None and strict is not None:
            lines.append(
                f"  availability {strict:.2%} of the time on steps that count ({loose:.2%} outside"
                " restarts and repairs)"
            )
    if candidate.gpu_hours is not None:
        cost = "" if candidate.cost is None else f", cost {candidate.cost:,.0f}"
        lines.append(f"  {candidate.gpu_hours:,.0f} GPU hours{cost}")
    return lines


def _table(candidates: tuple[Candidate, ...]) -> str:
    heads = f"{'TTT/T0':>8} {'95% interval':>16} {'forecast':>9} {'available':>10} {'restarts':>9}"
    lines = [f"{'candidate':32} {heads} {'ckpt steps':>11}"]
    for candidate in candidates:
        ends = strict = restarts = "-"
        if candidate.summary is not None:
            values = candidate.summary.statistics
            ratio = values["ttt_ratio"]
            if ratio.low is not None and ratio.high is not None:
                ends = f"{ratio.low:.3f} - {ratio.high:.3f}"
            if values["availability_strict"].mean is not None:
                strict = f"{values['availability_strict'].mean:.1%}"
            if values["restarts"].mean is not None:
                restarts = f"{values['restarts'].mean:,.1f}"
        lines.append(
            f"{candidate.name:32} {_number(candidate.ttt_ratio):>8} {ends:>16}"
            f" {_number(candidate.forecast.ttt_ratio):>9} {strict:>10} {restarts:>9}"
            f" {candidate.forecast.checkpoint_every:>11,}"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.3f}" if value < 1000 else "endless"

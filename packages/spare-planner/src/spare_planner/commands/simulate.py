"""``spare-planner simulate``: time to train, event by event."""

import argparse
import dataclasses
import json
from typing import Any

from spare_planner.commands.cluster import (
    add_failures,
    add_groups,
    add_log,
    add_times,
    clocks,
    log_of,
    replay_of,
    scenario_of,
)
from spare_planner.commands.progress import progress_bar
from spare_planner.commands.shape import add_json
from spare_planner.durations import counted
from spare_planner.errors import QuantityError
from spare_planner.forecast import forecast
from spare_planner.simulation import paper
from spare_planner.simulation.clocks import FailureModel
from spare_planner.simulation.experiment import (
    REORDERINGS,
    STRATEGIES,
    Experiment,
    Statistic,
    Summary,
    simulate,
)
from spare_planner.theory import optimal_redundancy

__all__ = ["add"]


def add(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "simulate",
        help="time to train under failures, by event-driven simulation",
        description="Run a training job through random failures, many times, and report its time"
        " to train over the failure-free time, its availability and what it computed.",
    )
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        required=True,
        help="spare: redundant stacks; replication: sets of equal groups; checkpoint: restart after"
        " every failure; elastic: the batch is dealt out again over the groups that are left",
    )
    add_groups(parser)
    parser.add_argument(
        "--redundancy",
        type=int,
        metavar="R",
        help="groups that can compute each share of the batch; default: the theory's for spare,"
        " 3 for replication",
    )
    parser.add_argument(
        "--semantics",
        choices=("clean", "paper"),
        default="clean",
        help="paper: the restarts of the SPARe authors' simulator, and for 200, 600 and 1000 groups"
        " its constants, unless a flag says otherwise; default: %(default)s",
    )
    parser.add_argument("--trials", type=int, default=20, metavar="T", help="default: %(default)s")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of random numbers; default: %(default)s"
    )
    parser.add_argument(
        "--processes", type=int, metavar="P", help="default: as many as there are processors"
    )
    add_times(parser)
    policy = parser.add_argument_group("how the strategy is run")
    policy.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="STEPS",
        help="default: what suits the strategy in theory",
    )
    policy.add_argument(
        "--restart-below",
        type=float,
        metavar="SHARE",
        help="restart on purpose, after a checkpoint, when fewer groups live; 0 for never;"
        " default: what suits the strategy in theory, never with --semantics paper",
    )
    policy.add_argument(
        "--microbatches",
        type=int,
        metavar="G",
        help="microbatches of a group in a step, for elastic: only whole ones can be dealt out;"
        " default: as small as one likes",
    )
    policy.add_argument(
        "--reordering",
        choices=REORDERINGS,
        default="auto",
        help="simulate the reordering of spare itself, or its lower bound on the stacks; default:"
        " exact up to 2000 groups",
    )
    add_failures(parser)
    add_log(parser)
    parser.add_argument(
        "--from-start", action="store_true", help="replay the log from its beginning on"
    )
    add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    experiment, mtbf = _experiment(arguments)
    summary = simulate(
        experiment,
        trials=arguments.trials,
        seed=arguments.seed,
        processes=arguments.processes,
        progress=progress_bar(arguments.trials),
    )
    if arguments.json:
        print(json.dumps({**summary.to_dict(), "semantics": arguments.semantics, "mtbf": mtbf}))
    else:
        print(_report(summary, mtbf=mtbf, semantics=arguments.semantics))


def _experiment(arguments: argparse.Namespace) -> tuple[Experiment, float]:
    """Return what to run, and the mean time between failures of the cluster."""
    as_paper = arguments.semantics == "paper"
    log = log_of(arguments)
    scenario = scenario_of(arguments, log=log, timers=as_paper)
    groups = scenario.groups
    failures = (
        clocks(arguments, timers=as_paper)
        if log is None
        else replay_of(arguments, log, from_start=arguments.from_start)
    )
    if isinstance(failures, FailureModel):
        mtbf = failures.mean / groups
        at_once = 1 + failures.correlated * (min(failures.domain, groups) - 1)
    else:
        mtbf, at_once = failures.mtbf(groups), 1.0
    redundancy = arguments.redundancy
    if redundancy is None:
        redundancy = {"spare": int(optimal_redundancy(groups)), "replication": min(3, groups)}.get(
            arguments.strategy, 1
        )
    if not 1 <= redundancy <= groups:
        raise QuantityError(
            f"redundancy must be from 1 to {groups}, the number of groups, got {redundancy}"
        )
    expected = forecast(
        arguments.strategy,
        scenario,
        mtbf=mtbf,
        redundancy=redundancy,
        microbatches=arguments.microbatches,
        lost_at_once=at_once,
    )
    every, below = expected.checkpoint_every, expected.restart_below
    if as_paper:
        below = below if arguments.strategy == "elastic" else 0.0
        if arguments.strategy in {"spare", "replication"}:
            every = paper.checkpoint_every(
                arguments.strategy,
                groups,
                redundancy,
                mtbf=mtbf,
                save=scenario.checkpoint_seconds,
                restart=scenario.restart_seconds,
            )
    if arguments.checkpoint_every is not None:
        every = arguments.checkpoint_every
    if arguments.restart_below is not None:
        below = arguments.restart_below
    experiment = Experiment(
        strategy=arguments.strategy,
        scenario=dataclasses.replace(scenario, checkpoint_every=every, restart_below=below),
        failures=failures,
        redundancy=redundancy,
        microbatches=arguments.microbatches,
        one_draw=as_paper,
        reordering=arguments.reordering,
    )
    return experiment, mtbf


def _report(summary: Summary, *, mtbf: float, semantics: str) -> str:
    experiment, values = summary.experiment, summary.statistics
    scenario = experiment.scenario
    name = experiment.strategy
    if name in {"spare", "replication"}:
        name += f", redundancy {experiment.redundancy}"
    size = f"{counted(scenario.groups, 'group')}, {counted(scenario.steps, 'step')}"
    lines = [
        f"{name}, {size}, a failure every {mtbf:,.0f} s",
        f"{semantics} restarts of {scenario.restart_seconds:,.0f} s, a checkpoint every"
        f" {scenario.checkpoint_every} steps"
        + (
            f", restart on purpose below {scenario.restart_below:.1%} of the groups"
            if scenario.restart_below
            else ""
        ),
        "",
        f"{'':22} {'mean':>9}   95% of {counted(len(summary.trials), 'trial')}",
    ]
    rows = [
        ("TTT / T0", "ttt_ratio", "9.3f", 1.0),
        ("days to train", "seconds", "9.2f", 1 / 86_400),
        ("availability", "availability", "8.2f", 100.0),
        ("availability, strict", "availability_strict", "8.2f", 100.0),
        ("restarts", "restarts", "9.1f", 1.0),
        ("groups lost", "losses", "9.1f", 1.0),
        ("groups missing", "missing_groups", "9.1f", 1.0),
        ("stacks a step", "stacks_per_step", "9.3f", 1.0),
        ("patches a step", "patches_per_step", "9.3f", 1.0),
    ]
    for label, key, form, scale in rows:
        lines.append(f"{label:22} {_spoken(values[key], form, scale)}")
    lost = len(summary.trials) - summary.finished
    if lost:
        lines.append(
            f"\n{lost} of {len(summary.trials)} trials were given up after"
            f" {scenario.give_up:g} times the failure-free time; their figures are those until then"
        )
    return "\n".join(lines)


def _spoken(value: Statistic, form: str, scale: float) -> str:
    percent = "%" if scale == 100 else ""
    if value.mean is None:
        return f"{'-':>9}   got nowhere"
    mean = f"{value.mean * scale:{form}}{percent}"
    if value.low is None or value.high is None:
        return mean
    tight = form[1:] if form[0].isdigit() else form
    return f"{mean}   {value.low * scale:{tight}}{percent} to {value.high * scale:{tight}}{percent}"

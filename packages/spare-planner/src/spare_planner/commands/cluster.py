"""The flags that say what cluster and what job are meant, and what they come to."""

import argparse
import dataclasses
import math
import re
from pathlib import Path
from typing import Any

from spare_planner.errors import QuantityError
from spare_planner.failure_log import TIME_UNITS, FailureLog, LogError, read_log
from spare_planner.simulation import paper
from spare_planner.simulation.clocks import FailureModel
from spare_planner.simulation.replay import Replay
from spare_planner.simulation.scenario import Scenario

__all__ = [
    "add_failures",
    "add_groups",
    "add_log",
    "add_times",
    "clocks",
    "groups_of",
    "log_of",
    "replay_of",
    "scenario_of",
    "seconds",
]

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """Return a duration in seconds: a number, or one with s, m, h or d behind it.

    >>> seconds("90"), seconds("1.5h")
    (90.0, 5400.0)
    """
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) ?([smhd]?)", text.strip(), re.IGNORECASE)
    try:
        if match:
            return float(match[1]) * _SECONDS[match[2].lower()]
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no duration, such as 90, 90s, 5m, 1.5h or 2d")


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how many groups there are."""
    parser.add_argument(
        "--groups", type=int, metavar="N", help="groups, whole copies of the model each"
    )
    parser.add_argument("--gpus", type=int, metavar="GPUS", help="GPUs in all; instead of --groups")
    parser.add_argument(
        "--gpus-per-group", type=int, metavar="GPUS", help="GPUs that one copy of the model takes"
    )


def groups_of(arguments: argparse.Namespace) -> int:
    """Return the number of groups that the flags name, and set it.

    Raises:
        QuantityError: They name none, or contradict each other.
    """
    each, gpus = arguments.gpus_per_group, arguments.gpus
    for flag in ("groups", "gpus", "gpus_per_group"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise QuantityError(f"--{flag.replace('_', '-')} must be at least 1, got {value}")
    if arguments.groups is None:
        if gpus is None or each is None:
            raise QuantityError("give --groups, or --gpus and --gpus-per-group")
        if gpus < each:
            raise QuantityError(f"{gpus} GPUs do not hold one group of {each}")
        arguments.groups = gpus // each
    elif gpus is not None:
        if each is not None and gpus // each != arguments.groups:
            raise QuantityError(
                f"{gpus} GPUs in groups of {each} are {gpus // each} groups and not"
                f" {arguments.groups}: leave one of the three flags out"
            )
        if gpus < arguments.groups:
            raise QuantityError(f"{gpus} GPUs are not enough for {arguments.groups} groups")
        arguments.gpus_per_group = gpus // arguments.groups
    return int(arguments.groups)


def add_times(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what the parts of a job take."""
    times = parser.add_argument_group(
        "what things take", "Durations are seconds, or have a unit: 90, 90s, 5m, 1.5h, 2d."
    )
    duration: dict[str, Any] = {"type": seconds, "metavar": "TIME"}
    times.add_argument(
        "--step",
        **duration,
        help="compute of a step on one group, without redundancy and sums; default: 64 s",
    )
    times.add_argument(
        "--allreduce", **duration, help="sum of the gradients over all groups; default: 6 s"
    )
    times.add_argument(
        "--checkpoint", **duration, help="how long a checkpoint holds the job up; default: 58.8 s"
    )
    times.add_argument(
        "--restart",
        **duration,
        help="from the end of a job to its first step after it, on all groups; default: 3600 s",
    )
    times.add_argument(
        "--shrink", **duration, help="repair of the communicator after a failure; default: 0.1 s"
    )
    times.add_argument(
        "--detection", **duration, help="from a failure to when it is known; default: 0 s"
    )
    times.add_argument(
        "--jitter",
        type=float,
        metavar="SHARE",
        help="standard deviation of the compute of a step over groups and steps, relative to its"
        " mean: every step waits for the slowest group; default: 0.05",
    )
    times.add_argument(
        "--steps", type=int, metavar="STEPS", help="optimizer steps to train; default: 10000"
    )
    times.add_argument(
        "--repair",
        type=_repair,
        metavar="TIME",
        help="groups come back this long after they failed, without a restart (with --trace also"
        " 'log': as long as the log says); default: they come back with a restart only",
    )
    times.add_argument(
        "--rejoin",
        choices=("checkpoint", "step"),
        default="checkpoint",
        help="when those come back; default: %(default)s",
    )
    times.add_argument(
        "--job-mtbf",
        **duration,
        help="mean time between failures of the job as a whole (software, storage, power), which"
        " no redundancy helps against; default: there are none",
    )


def _repair(text: str) -> float | str:
    return "log" if text == "log" else seconds(text)


def scenario_of(
    arguments: argparse.Namespace, *, log: FailureLog | None = None, timers: bool = False
) -> Scenario:
    """Return the job that the flags describe; checkpoints as the default has them.

    Raises:
        QuantityError: A number is out of range.
    """
    groups = groups_of(arguments)
    allreduce = paper.ALLREDUCE_SECONDS.get(groups, 6.0) if timers else 6.0
    repair = arguments.repair
    if repair == "log":
        if log is None:
            raise QuantityError("--repair log needs --trace")
        known = [f.seconds for f in log.faults if math.isfinite(f.seconds)]
        if not known:
            raise LogError(f"the log {log.name} does not tell when a fault was over")
        repair = sum(known) / len(known)

    def of(flag: str, default: float) -> float:
        value = getattr(arguments, flag)
        return default if value is None else float(value)

    return Scenario(
        groups=groups,
        steps=paper.STEPS if arguments.steps is None else arguments.steps,
        stack_seconds=of("step", paper.STACK_SECONDS),
        allreduce_seconds=of("allreduce", allreduce),
        checkpoint_seconds=of("checkpoint", paper.CHECKPOINT_SECONDS),
        restart_seconds=of("restart", paper.RESTART_SECONDS),
        shrink_seconds=of("shrink", paper.SHRINK_SECONDS),
        detection_seconds=of("detection", 0.0),
        jitter=of("jitter", paper.JITTER),
        repair_seconds=repair,
        rejoin_at_checkpoints=arguments.rejoin == "checkpoint",
        job_mtbf=arguments.job_mtbf,
        timers=timers,
    )


def add_failures(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how groups fail."""
    failures = parser.add_argument_group("how groups fail")
    failures.add_argument(
        "--mtbf",
        type=seconds,
        metavar="TIME",
        help="mean time between two failures anywhere in the cluster",
    )
    failures.add_argument(
        "--gpu-mtbf",
        type=seconds,
        metavar="TIME",
        help="mean time between failures of one GPU; that of the cluster is this over all GPUs",
    )
    failures.add_argument(
        "--distribution",
        choices=("exponential", "weibull"),
        help="of a group's time to failure; default: weibull if there is a --shape",
    )
    failures.add_argument("--shape", type=float, metavar="K", help="shape of the Weibull")
    failures.add_argument(
        "--scale",
        type=seconds,
        metavar="TIME",
        help="scale of a group's distribution, instead of a mean time between failures",
    )
    failures.add_argument(
        "--new",
        action="store_true",
        help="all groups are new when the run starts; default: they have served for long",
    )
    failures.add_argument(
        "--correlated",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the failures that take a whole domain; default: none",
    )
    failures.add_argument(
        "--domain",
        type=int,
        default=1,
        metavar="GROUPS",
        help="neighbouring groups that can fail as one: on a node, in a rack, on a power feed",
    )


def add_log(parser: argparse.ArgumentParser, *, positional: bool = False) -> None:
    """Add the flags that name a failure log and say how to read it."""
    log = parser.add_argument_group("a failure log")
    form = (
        "CSV with the columns unit, start and, optionally, end, kind, domain;"
        " or JSON events node_id, event_time, event_type"
    )
    if positional:
        log.add_argument("trace", type=Path, metavar="FILE", help=form)
    else:
        log.add_argument("--trace", type=Path, metavar="FILE", help=f"failures from a log: {form}")
    log.add_argument(
        "--units", type=int, metavar="U", help="units watched; default: those that ever failed"
    )
    log.add_argument(
        "--gpus-per-unit", type=int, default=8, metavar="GPUS", help="default: %(default)s"
    )
    log.add_argument(
        "--time-unit",
        choices=tuple(TIME_UNITS),
        help="what numbers in the log count; default: seconds in CSV, days in JSON",
    )
    log.add_argument(
        "--log-begin", type=float, metavar="T", help="when watching began, in the log's time unit"
    )
    log.add_argument("--log-end", type=float, metavar="T", help="when it ended")
    log.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="WORD",
        help="leave out faults whose kind contains this; may be repeated",
    )


def log_of(arguments: argparse.Namespace) -> FailureLog | None:
    """Return the log that the flags name, None if they name none.

    Raises:
        LogError: It cannot be read.
    """
    if arguments.trace is None:
        return None
    if arguments.gpus_per_unit < 1:
        raise QuantityError(f"--gpus-per-unit must be at least 1, got {arguments.gpus_per_unit}")
    return read_log(
        arguments.trace,
        units=arguments.units,
        time_unit=arguments.time_unit,
        begin=arguments.log_begin,
        end=arguments.log_end,
        exclude=arguments.exclude,
    )


def replay_of(
    arguments: argparse.Namespace, log: FailureLog, *, from_start: bool = False
) -> Replay:
    """Return how the log is laid over the cluster.

    Raises:
        QuantityError: It is not said how many GPUs a group has, and cannot be told.
    """
    _exclusive(arguments, "trace", "mtbf", "gpu_mtbf", "scale", "shape", "distribution")
    each = arguments.gpus_per_group
    if each is None:
        gpus = log.units * arguments.gpus_per_unit
        if gpus % groups_of(arguments):
            raise QuantityError(
                f"say --gpus-per-group: the {gpus} GPUs of the log do not divide into"
                f" {arguments.groups} groups"
            )
        each = gpus // arguments.groups
    return Replay(
        log=log,
        gpus_per_unit=arguments.gpus_per_unit,
        gpus_per_group=each,
        own_repairs=arguments.repair == "log",
        from_start=from_start,
    )


def clocks(
    arguments: argparse.Namespace, *, timers: bool = False, need: bool = False
) -> FailureModel:
    """Return the failure clocks that the flags describe.

    Args:
        arguments: The flags.
        timers: Where they say nothing, the paper's clocks.
        need: There has to be a mean time between failures; otherwise it is the paper's.

    Raises:
        QuantityError: A number is out of range, or flags contradict each other.
    """
    groups = groups_of(arguments)
    _exclusive(arguments, "mtbf", "gpu_mtbf", "scale")
    _exclusive(arguments, "gpu_mtbf", "scale")
    if arguments.correlated and arguments.domain == 1:
        raise QuantityError("--correlated needs --domain, the groups that can fail as one")
    given = arguments.mtbf is not None or arguments.gpu_mtbf is not None
    if need and not given and arguments.scale is None:
        raise QuantityError("give --mtbf, --gpu-mtbf or --trace: nothing follows without failures")
    shape = arguments.shape
    if arguments.distribution == "exponential":
        if shape not in {None, 1.0}:
            raise QuantityError(f"an exponential distribution has no shape {shape}")
        shape = 1.0
    if shape is None and (timers or arguments.distribution == "weibull"):
        shape = paper.WEIBULL_SHAPE
    shape = 1.0 if shape is None else shape
    mtbf = paper.MTBF if arguments.mtbf is None else arguments.mtbf
    if arguments.gpu_mtbf is not None:
        if arguments.gpus_per_group is None:
            raise QuantityError("--gpu-mtbf needs --gpus-per-group")
        mtbf = arguments.gpu_mtbf / (groups * arguments.gpus_per_group)
    model = FailureModel.of_system(
        mtbf,
        groups=groups,
        shape=shape,
        aged=not (arguments.new or timers),
        domain=arguments.domain,
        correlated=arguments.correlated,
    )
    if arguments.scale is not None:
        return dataclasses.replace(model, scale=arguments.scale, renewed_at_death=timers)
    if timers and not given and shape == paper.WEIBULL_SHAPE:
        scale = paper.failure_model(groups).scale
        return dataclasses.replace(model, scale=scale, renewed_at_death=True)
    return dataclasses.replace(model, renewed_at_death=timers)


def _exclusive(arguments: argparse.Namespace, flag: str, *others: str) -> None:
    """Refuse flags that contradict each other."""
    for other in others:
        if getattr(arguments, flag) is not None and getattr(arguments, other) is not None:
            one, two = (name.replace("_", "-") for name in (flag, other))
            raise QuantityError(f"--{one} and --{two} contradict each other: give one of them")

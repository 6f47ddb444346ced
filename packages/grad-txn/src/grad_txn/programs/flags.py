"""The flags that the reference programs share, and what of them can be checked at once."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import ulfm_core
from grad_txn.console import Console
from grad_txn.errors import (
    CheckpointError,
    ExtraMissingError,
    LogError,
    ScheduleError,
    UsageError,
)
from grad_txn.metrics import MetricsSink
from grad_txn.runtime import Observer
from grad_txn.schedule import At, Schedule, Shape, generate, load_schedule
from grad_txn.transaction import STAGINGS
from workload_policy import (
    POLICY_NAMES,
    LayoutError,
    PlanError,
    Policy,
    PolicyNameError,
    policy_named,
)

__all__ = [
    "BAD_INPUT",
    "MISTAKES",
    "Group",
    "OptionError",
    "Parser",
    "add_failures",
    "add_job",
    "add_model",
    "add_running",
    "at_least",
    "check",
    "observers_of",
    "policy_of",
    "positive",
    "restarted",
    "schedule_of",
    "started",
]

Group = argparse._ArgumentGroup  # noqa: SLF001 - argparse gives its type no other name


class OptionError(ValueError):
    """A flag, or a combination of them, that cannot work."""


BAD_INPUT = 2
"""The exit code of a program whose input is wrong."""

MISTAKES = (
    OptionError,
    ulfm_core.UsageError,
    CheckpointError,
    ExtraMissingError,
    LogError,
    ScheduleError,
    UsageError,
    LayoutError,
    PlanError,
    PolicyNameError,
)
"""What a user can get wrong. Anything else is a bug and deserves its traceback."""


class Parser(argparse.ArgumentParser):
    """A parser that tells of a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """End the program with code 2."""
        # One line: the whole usage above a message hides the message.
        self.exit(2, f"pretrain: {message}; --help lists the flags\n")


def add_job(parser: argparse.ArgumentParser) -> Group:
    """Add what a run is: its steps, batch, policy, checkpoints. Return the group of these flags."""
    job = parser.add_argument_group("job")
    job.add_argument("--steps", type=at_least(1), required=True, help="optimizer steps in all")
    job.add_argument(
        "--grad-accum",
        type=at_least(0),
        required=True,
        help="microbatches per replica and step, G; B = replicas * G",
    )
    job.add_argument(
        "--out",
        type=Path,
        required=True,
        help="directory of the event log, metrics and checkpoints",
    )
    job.add_argument(
        "--policy",
        choices=(*POLICY_NAMES, "stacked"),
        default="static",
        help="who redoes what (default: %(default)s); stacked needs the package spare-planner",
    )
    job.add_argument(
        "--redundancy",
        type=at_least(1),
        metavar="R",
        help="of --policy stacked: replicas that host each shard type (default: the best for their "
        "number)",
    )
    job.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="DIR",
        help="go on from the newest checkpoint in DIR (default: OUT/checkpoints)",
    )
    job.add_argument(
        "--checkpoint-every",
        type=at_least(0),
        default=0,
        metavar="N",
        help="write a checkpoint every N steps (default: never)",
    )
    job.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the initial weights and of the data (default: %(default)s)",
    )

    return job


def add_failures(parser: argparse.ArgumentParser) -> None:
    """Add who is killed."""
    failures = parser.add_argument_group("failure injection (real SIGKILLs)")
    failures.add_argument(
        "--failures", type=Path, metavar="FILE", help="YAML schedule: who is killed, when and where"
    )
    failures.add_argument(
        "--random-failures",
        type=at_least(0),
        metavar="COUNT",
        help="draw a schedule of COUNT deaths instead",
    )
    failures.add_argument(
        "--failure-seed", type=int, default=0, help="of the drawn schedule (default: %(default)s)"
    )
    failures.add_argument(
        "--failure-at",
        nargs="+",
        choices=tuple(At),
        metavar="PLACE",
        help="places to draw from (default: all)",
    )


def add_model(parser: argparse.ArgumentParser) -> Group:
    """Add the text, the size of the model and the optimizer. Return the group of these flags."""
    model = parser.add_argument_group("model, data and optimizer")
    model.add_argument(
        "--text", help="file to train on (default: the English text of pydoc_data.topics)"
    )
    model.add_argument("--layers", type=at_least(1), default=2, help="default: %(default)s")
    model.add_argument("--width", type=at_least(1), default=64, help="default: %(default)s")
    model.add_argument("--heads", type=at_least(1), default=4, help="default: %(default)s")
    model.add_argument(
        "--batch",
        type=at_least(1),
        default=4,
        help="sequences in a microbatch (default: %(default)s)",
    )
    model.add_argument(
        "--sequence",
        type=at_least(1),
        default=128,
        help="tokens in a sequence (default: %(default)s)",
    )
    model.add_argument(
        "--lr", type=positive, default=3e-3, help="peak learning rate (default: %(default)s)"
    )
    model.add_argument(
        "--warmup",
        type=at_least(0),
        default=10,
        help="steps of linear warm-up (default: %(default)s)",
    )
    model.add_argument(
        "--clip",
        type=positive,
        default=1.0,
        help="global gradient norm to clip to (default: %(default)s)",
    )

    return model


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add how it is run, which changes nothing of what is computed."""
    running = parser.add_argument_group("running")
    running.add_argument(
        "--detection",
        choices=("deferred", "guarded"),
        default="deferred",
        help="one agreement a step, or one before every reduction (default: %(default)s)",
    )
    running.add_argument(
        "--staging",
        choices=STAGINGS,
        default="no-copy",
        help="where the gradient before its reduction is kept (default: %(default)s)",
    )
    running.add_argument(
        "--bucket-mb",
        type=positive,
        default=25.0,
        help="size of a gradient bucket in MiB (default: %(default)s)",
    )
    running.add_argument(
        "--step-limit",
        type=positive,
        default=600.0,
        metavar="S",
        help="end a rank that makes no progress for S seconds, its set-up included "
        "(default: %(default)s)",
    )
    running.add_argument(
        "--threads", type=at_least(1), help="torch threads of a rank (default: OMP_NUM_THREADS)"
    )
    running.add_argument(
        "--tensorboard", action="store_true", help="write scalars to OUT/tensorboard"
    )
    running.add_argument(
        "--prometheus", action="store_true", help="write OUT/metrics.prom at every step"
    )


def check(options: argparse.Namespace) -> None:
    """Check the flags that were added here against each other.

    Raises:
        OptionError: some cannot work together.
    """
    if options.redundancy is not None and options.policy != "stacked":
        message = f"--redundancy {options.redundancy}: only --policy stacked has redundant stacks"
        raise OptionError(message)
    if options.grad_accum == 0:
        message = "--grad-accum 0 makes the global batch 0 microbatches: give at least 1"
        raise OptionError(message)
    if options.failures is not None and options.random_failures is not None:
        message = "--failures and --random-failures exclude each other: choose one"
        raise OptionError(message)
    if options.resume is None and not restarted() and (options.out / "events").exists():
        message = (
            f"--out {options.out} holds the log of an earlier run: choose another directory, "
            "or --resume"
        )
        raise OptionError(message)


def policy_of(options: argparse.Namespace) -> Policy:
    """Return the policy.

    Raises:
        PolicyNameError: its package is not installed.
    """
    chosen = {} if options.redundancy is None else {"redundancy": options.redundancy}
    return policy_named(options.policy, **chosen)


def schedule_of(options: argparse.Namespace, *, replicas: int, replica_size: int) -> Schedule:
    """Return the failure schedule, the same on every rank.

    Raises:
        ScheduleError: a written one cannot be read, or does not fit.
        OptionError: one cannot be drawn.
    """
    shape = Shape(replicas=replicas, replica_size=replica_size, steps=options.steps)
    if options.failures is not None:
        return load_schedule(options.failures, shape)
    if options.random_failures:
        weights = None if options.failure_at is None else dict.fromkeys(options.failure_at, 1.0)
        count = options.random_failures
        try:
            return generate(shape, seed=options.failure_seed, count=count, weights=weights)
        except ScheduleError as error:
            raise OptionError(f"--random-failures {count}: {error}") from error
    return ()


def restarted() -> bool:
    """Whether `ulfmrun` has started the job again."""
    return int(os.environ.get("ULFM_RESTART", "0")) > 0


def started(
    options: argparse.Namespace, *, module: str, replica_size: int, because: str, of: str = ""
) -> Schedule:
    """Check how the program was started, before torch and MPI are. Return the failure schedule.

    Args:
        options: The flags.
        module: The program, as `python -m` takes it.
        replica_size: Ranks in a replica.
        because: The flags that make it so.
        of: What else to say of the replicas.

    Raises:
        ScheduleError: A written schedule cannot be read, or does not fit.
        OptionError: It was not started by `ulfmrun`, or on a number of ranks that does not fit; a
            schedule cannot be drawn; or there is no such text.
    """
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        message = f"not started as a rank of a job: run `ulfmrun -n N -m {module} ...`"
        raise OptionError(message)
    ranks = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    replicas, left = divmod(ranks, replica_size)
    if left:
        message = (
            f"{because}: {ranks} ranks are no whole number of replicas{of}; start a multiple of "
            f"{replica_size}"
        )
        raise OptionError(message)
    # A schedule belongs to the first start of a job; its replicas have other numbers after a
    # restart.
    schedule: Schedule = ()
    if not restarted():
        schedule = schedule_of(options, replicas=replicas, replica_size=replica_size)
    if options.text is not None and not Path(options.text).is_file():
        message = f"--text {options.text}: no such file; give any text file, or leave it out"
        raise OptionError(message)
    return schedule


def observers_of(options: argparse.Namespace, *, replicas: int) -> list[Observer]:
    """Return who is told what happens: the console, and what the flags ask for.

    Args:
        options: The flags.
        replicas: Replicas at the first start.
    """
    observers: list[Observer] = [Console(replicas=replicas)]
    if options.tensorboard or options.prometheus:
        observers.append(
            MetricsSink(options.out, tensorboard=options.tensorboard, prometheus=options.prometheus)
        )
    return observers


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of a flag that is a whole number of at least this."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            message = f"{text!r} is no whole number"
            raise argparse.ArgumentTypeError(message) from None
        if value < least:
            message = f"{value} is less than {least}"
            raise argparse.ArgumentTypeError(message)
        return value

    return number


def positive(text: str) -> float:
    """The type of a flag that is a positive number."""
    try:
        value = float(text)
    except ValueError:
        message = f"{text!r} is no number"
        raise argparse.ArgumentTypeError(message) from None
    if not value > 0:
        message = f"{text} is not positive"
        raise argparse.ArgumentTypeError(message)
    return value

"""The flags that the reference programs share, and what of them can be checked at once."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from grad_txn.errors import ScheduleError, UsageError
from grad_txn.failures import At, Schedule, Shape, generate, load_schedule
from grad_txn.log.console import Console
from grad_txn.log.metrics import MetricsSink
from grad_txn.log.observer import Observer
from grad_txn.staging import STAGINGS
from ulfm_core import environment
from ulfm_core.codes import BAD_INPUT
from workload_policy import POLICY_NAMES, Policy, PolicyError, load_policy

__all__ = [
    "FlagGroup",
    "Flags",
    "OptionError",
    "add_failures",
    "add_job",
    "add_model",
    "add_running",
    "at_least",
    "check",
    "observers_of",
    "policy_of",
    "positive",
    "schedule_of",
]

FlagGroup = argparse._ArgumentGroup  # noqa: SLF001 - argparse gives its type no other name


class OptionError(UsageError):
    """A flag, or a combination of them, that cannot work."""


class Flags(argparse.ArgumentParser):
    """A parser that tells of a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """End the program with code 2."""
        # One line: the whole usage above a message hides the message.
        self.exit(BAD_INPUT, f"pretrain: {message}; --help lists the flags\n")


def add_job(parser: argparse.ArgumentParser) -> FlagGroup:
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
        default=POLICY_NAMES[0],
        metavar="NAME|module:NAME|FILE.py",
        help=f"who redoes what: {', '.join(POLICY_NAMES)}; one of an installed package (stacked, of"
        " spare-planner); or one of your own, see workload-policy (default: %(default)s)",
    )
    job.add_argument(
        "--redundancy",
        type=at_least(1),
        metavar="R",
        help="for a policy with redundant stacks: replicas that host each shard type (default: the "
        "best for their number)",
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
        "--check-every",
        type=at_least(0),
        default=100,
        metavar="N",
        help="compare what the replicas hold at the first step and every N steps; a replica that "
        "differs from the majority is lost (default: %(default)s; 0: at the first step alone)",
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


def add_model(parser: argparse.ArgumentParser) -> FlagGroup:
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
        help="deferred: failures surface from the reductions, and one agreement closes a step; "
        "guarded: every reduction first makes sure that all are there (default: %(default)s)",
    )
    running.add_argument(
        "--log-losses",
        action="store_true",
        help="log the loss of every microbatch, not only each replica's sum",
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
        OptionError: Some cannot work together.
    """
    if options.grad_accum == 0:
        raise OptionError("--grad-accum 0 makes the global batch 0 microbatches: give at least 1")
    if options.failures is not None and options.random_failures is not None:
        raise OptionError("--failures and --random-failures exclude each other: choose one")
    if options.resume is None and not environment.restart() and (options.out / "events").exists():
        raise OptionError(
            f"--out {options.out} holds the log of an earlier run: choose another directory, "
            "or --resume"
        )


def policy_of(options: argparse.Namespace) -> Policy:
    """Return the policy. Every rank makes its own, and all are equal.

    Raises:
        PolicyError: There is none of this name, or its file or module cannot be used.
        OptionError: It does not take the flags that were given for it.
    """
    if options.redundancy is None:
        return load_policy(options.policy)
    try:
        return load_policy(options.policy, redundancy=options.redundancy)
    except PolicyError as error:
        raise OptionError(f"--redundancy {options.redundancy}: {error}") from error


def schedule_of(options: argparse.Namespace, *, replicas: int, replica_size: int) -> Schedule:
    """Return the failure schedule, the same on every rank.

    Raises:
        ScheduleError: A written one cannot be read, or does not fit.
        OptionError: One cannot be drawn.
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
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def positive(text: str) -> float:
    """The type of a flag that is a positive number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value

"""What a reference pre-training program does, whatever shards its model.

An integration brings a `Program`: its flags, the size of a replica, and its training. `run` parses
and checks the input before torch and MPI are started, trains, and gives every end its exit code.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grad_txn.communicator import Control
from grad_txn.errors import CheckpointError, DivergenceError, GradTxnError, StartError
from grad_txn.failures import Schedule
from grad_txn.log.observer import Observer
from grad_txn.programs.flags import (
    FlagGroup,
    Flags,
    OptionError,
    add_failures,
    add_job,
    add_model,
    add_running,
    check,
    observers_of,
    policy_of,
    schedule_of,
)
from grad_txn.start import Candidate, agree_on_checkpoint
from ulfm_core import Membership, UsageError, environment
from ulfm_core.codes import BAD_INPUT, FAILED, FINISHED
from workload_policy import LayoutError, PlanError, Policy, PolicyError

__all__ = ["LostError", "Program", "Setting", "parse", "resumed_directory", "run", "source_of"]


class LostError(Exception):
    """The living cannot finish the step; says so on the rank that speaks for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is known of a job before torch and MPI are started, equal on all its ranks.

    Attributes:
        options: The flags.
        policy: Who computes what.
        replicas: Replicas of the first start, W_init.
        replica_size: Ranks in each.
        schedule: Who is killed, when and where.
    """

    options: argparse.Namespace
    policy: Policy
    replicas: int
    replica_size: int
    schedule: Schedule

    def observers(self) -> list[Observer]:
        """Return who is told what happens: the console, and what the flags ask for."""
        return observers_of(self.options, replicas=self.replicas)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """What an integration brings to its reference program.

    Attributes:
        module: The program, as ``python -m`` takes it.
        description: What it does, for ``--help``.
        example: How it is started, up to the flags that every program needs.
        add_flags: Adds its flags, given the parser and its groups for the job and the model.
        check: Checks them against each other and the shared ones; raises `OptionError`.
        replica_size: Returns how many ranks a replica has.
        shape: Returns the flags that say so, as they were given.
        train: Trains as the setting says. Collective over all ranks of the job.
        redundant_stacks: Whether it can compute redundant stacks, for policies that have them.
    """

    module: str
    description: str
    example: str
    add_flags: Callable[[Flags, FlagGroup, FlagGroup], None]
    check: Callable[[argparse.Namespace], None]
    replica_size: Callable[[argparse.Namespace], int]
    shape: Callable[[argparse.Namespace], str]
    train: Callable[[Setting], None]
    redundant_stacks: bool = True


def run(program: Program, arguments: Sequence[str] | None = None) -> int:
    """Run a program.

    Returns:
        0 when training is done, 1 when the living cannot go on, 2 with one line on standard error
        when the input is wrong.
    """
    try:
        program.train(_start(program, parse(program, arguments)))
    except LostError as lost:
        if str(lost):
            print(f"pretrain: {lost}", file=sys.stderr)
        return FAILED
    except (GradTxnError, UsageError, LayoutError, PlanError, PolicyError) as error:
        if isinstance(error, DivergenceError) and not isinstance(error, StartError):
            print(f"pretrain: {error}", file=sys.stderr)
            return FAILED
        if not isinstance(error, ValueError | ImportError):  # no mistake of the user's
            raise
        print(f"pretrain: {error}", file=sys.stderr)
        return BAD_INPUT
    return FINISHED


def parse(program: Program, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags; argparse ends the program with code 2 where one is malformed.

    Raises:
        OptionError: Flags do not fit each other.
    """
    parser = Flags(
        prog=f"python -m {program.module}",
        description=f"{program.description} Run it under ulfmrun: "
        f"{program.example} --steps 20 --grad-accum 8 --out run",
    )
    program.add_flags(parser, add_job(parser), add_model(parser))
    add_failures(parser)
    add_running(parser)
    options = parser.parse_args(arguments)
    check(options)
    program.check(options)
    return options


def source_of(
    options: argparse.Namespace,
    world: Control,
    candidates: Callable[[Path], Mapping[Candidate, Path]],
    *,
    naming: str,
) -> Path | None:
    """Return the checkpoint to go on from, if any: the same on all ranks.

    Collective over the world.

    Args:
        options: The flags.
        world: The world.
        candidates: Finds the complete checkpoints in a directory.
        naming: What checkpoints there are named, for a message.

    Raises:
        CheckpointError: The flags ask for one and there is none, or none that all ranks see.
    """
    directory = resumed_directory(options)
    if directory is None:
        return None
    found = candidates(directory)
    chosen = agree_on_checkpoint(world, list(found), where=directory)
    if chosen is None and options.resume is not None:
        raise CheckpointError(
            f"no complete checkpoint in {directory}: --resume takes a directory with {naming} in it"
        )
    return None if chosen is None else found[chosen]


def resumed_directory(options: argparse.Namespace) -> Path | None:
    """Return where the checkpoint to go on from is looked for; None to begin at the beginning."""
    if options.resume is None and not environment.restart():
        return None
    return Path(options.resume or options.out / "checkpoints")


def _start(program: Program, options: argparse.Namespace) -> Setting:
    """Check how the program was started.

    Raises:
        OptionError: It was not started by `ulfmrun`, or on a number of ranks that does not fit; a
            schedule cannot be drawn; there is no such text; or the policy needs what the program
            cannot do.
        ScheduleError: A written schedule cannot be read, or does not fit.
        PolicyError, LayoutError: There is no such policy, or it cannot start this job.
    """
    if not environment.is_rank():
        raise OptionError(
            f"not started as a rank of a job: run `ulfmrun -n N -m {program.module} ...`"
        )
    size, ranks = program.replica_size(options), environment.size()
    if ranks % size:
        raise OptionError(
            f"{program.shape(options)}: {ranks} ranks are no whole number of replicas of {size}; "
            f"start a multiple of {size}"
        )
    policy = policy_of(options)
    replicas = len(Membership.initial(environment.initial_size(), size).living)
    plan = policy.start(replicas=replicas, grad_accum=options.grad_accum)
    if plan.stacks is not None and not program.redundant_stacks:
        raise OptionError(
            f"--policy {options.policy}: {program.module} computes no redundant stacks; use static,"
            " exact or adaptive"
        )
    # A schedule belongs to the first start of a job; its replicas have other numbers after a
    # restart.
    schedule: Schedule = ()
    if not environment.restart():
        schedule = schedule_of(options, replicas=replicas, replica_size=size)
    if options.text is not None and not Path(options.text).is_file():
        raise OptionError(
            f"--text {options.text}: no such file; give any text file, or leave it out"
        )
    return Setting(
        options=options,
        policy=policy,
        replicas=replicas,
        replica_size=size,
        schedule=schedule,
    )

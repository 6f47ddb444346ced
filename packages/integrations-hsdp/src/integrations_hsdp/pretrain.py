"""The reference program: pre-train a small decoder on text, through the loss of ranks.

    ulfmrun -n 4 -m integrations_hsdp.pretrain --steps 20 --grad-accum 8 --out run

`integrations_hsdp.training` shows what a training program needs; this module checks the input
first.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import grad_txn.errors
import ulfm_core
import workload_policy
from integrations_hsdp.options import OptionError, parse, schedule_of

__all__ = ["main"]

BAD_INPUT = 2
# What a user can get wrong. Anything else is a bug and deserves its traceback.
_MISTAKES = (
    OptionError,
    ulfm_core.UsageError,
    grad_txn.errors.CheckpointError,
    grad_txn.errors.ExtraMissingError,
    grad_txn.errors.LogError,
    grad_txn.errors.ScheduleError,
    grad_txn.errors.UsageError,
    workload_policy.LayoutError,
    workload_policy.PlanError,
    workload_policy.PolicyNameError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Returns:
        0 when training is done, 1 when the survivors cannot go on, 2 with one line on stderr when
        the input is wrong.
    """
    try:
        return _check_and_train(parse(arguments))
    except _MISTAKES as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return BAD_INPUT


def _check_and_train(options: argparse.Namespace) -> int:
    """Check what can be checked before torch and MPI are started, then train."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        message = (
            "not started as a rank of a job: run `ulfmrun -n N -m integrations_hsdp.pretrain ...`"
        )
        raise OptionError(message)
    ranks = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    replicas, left = divmod(ranks, options.shard_size)
    if left:
        message = (
            f"--shard-size {options.shard_size}: {ranks} ranks are no whole number of replicas; "
            f"start a multiple of {options.shard_size}"
        )
        raise OptionError(message)
    restarted = int(os.environ.get("ULFM_RESTART", "0")) > 0
    # A schedule belongs to the first start of a job; its replicas have other numbers after a
    # restart.
    schedule = () if restarted else schedule_of(options, replicas=replicas)
    if options.text is not None and not Path(options.text).is_file():
        message = f"--text {options.text}: no such file; give any text file, or leave it out"
        raise OptionError(message)

    from integrations_hsdp.training import LostError, train

    try:
        train(options, schedule)
    except LostError as lost:
        if str(lost):
            print(f"pretrain: {lost}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

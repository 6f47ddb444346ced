"""The reference program: pre-train a small decoder with Nanotron, through the loss of ranks.

    ulfmrun -n 8 -m integrations_3d.pretrain --tp 2 --pp 2 --steps 20 --grad-accum 8 --out run

`integrations_3d.training` shows what a training program needs; this module checks the input
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
from grad_txn.options import OptionError
from integrations_3d.errors import ConfigError, NanotronMissingError
from integrations_3d.options import parse, replica_size_of, schedule_of

__all__ = ["main"]

BAD_INPUT = 2
# What a user can get wrong. Anything else is a bug and deserves its traceback.
_MISTAKES = (
    ConfigError,
    NanotronMissingError,
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
        0 when training is done, 2 with one line on stderr when the input is wrong.
    """
    try:
        _check_and_train(parse(arguments))
    except _MISTAKES as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _check_and_train(options: argparse.Namespace) -> None:
    """Check what can be checked before torch and MPI are started, then train."""
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        raise OptionError(
            "not started as a rank of a job: run `ulfmrun -n N -m integrations_3d.pretrain ...`"
        )
    ranks, size = int(os.environ["OMPI_COMM_WORLD_SIZE"]), replica_size_of(options)
    replicas, left = divmod(ranks, size)
    if left or not replicas:
        raise OptionError(
            f"--tp {options.tp} --pp {options.pp} --dp-inner {options.dp_inner}: {ranks} ranks are "
            f"no whole number of replicas of {size}; start a multiple of {size}"
        )
    restarted = int(os.environ.get("ULFM_RESTART", "0")) > 0
    # A schedule belongs to the first start of a job; its replicas have other numbers after a
    # restart.
    schedule = () if restarted else schedule_of(options, replicas=replicas)
    if options.text is not None and not Path(options.text).is_file():
        raise OptionError(
            f"--text {options.text}: no such file; give any text file, or leave it out"
        )

    from integrations_3d.training import train

    train(options, schedule)


if __name__ == "__main__":
    sys.exit(main())

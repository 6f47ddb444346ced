"""The reference program: pre-train a small decoder on text, through the loss of ranks.

    ulfmrun -n 4 -m integrations_hsdp.pretrain --steps 20 --grad-accum 8 --out run

`integrations_hsdp.training` shows what a training program needs; this module checks the input
first.
"""

import argparse
import sys
from collections.abc import Sequence

from grad_txn.options import BAD_INPUT, MISTAKES, started
from integrations_hsdp.options import parse

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Returns:
        0 when training is done, 1 when the survivors cannot go on, 2 with one line on stderr when
        the input is wrong.
    """
    try:
        return _check_and_train(parse(arguments))
    except MISTAKES as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return BAD_INPUT


def _check_and_train(options: argparse.Namespace) -> int:
    """Check what can be checked before torch and MPI are started, then train."""
    size = options.shard_size
    schedule = started(
        options,
        module="integrations_hsdp.pretrain",
        replica_size=size,
        because=f"--shard-size {size}",
    )

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

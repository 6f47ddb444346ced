"""The reference program: pre-train a small decoder with Nanotron, through the loss of ranks.

    ulfmrun -n 8 -m integrations_3d.pretrain --tp 2 --pp 2 --steps 20 --grad-accum 8 --out run

`integrations_3d.training` shows what a training program needs; this module checks the input
first.
"""

import argparse
import sys
from collections.abc import Sequence

from grad_txn.options import BAD_INPUT, MISTAKES, started
from integrations_3d.errors import ConfigError, NanotronMissingError
from integrations_3d.options import parse, replica_size_of

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Returns:
        0 when training is done, 2 with one line on stderr when the input is wrong.
    """
    try:
        _check_and_train(parse(arguments))
    except (ConfigError, NanotronMissingError, *MISTAKES) as error:
        print(f"pretrain: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _check_and_train(options: argparse.Namespace) -> None:
    """Check what can be checked before torch and MPI are started, then train."""
    size = replica_size_of(options)
    schedule = started(
        options,
        module="integrations_3d.pretrain",
        replica_size=size,
        because=f"--tp {options.tp} --pp {options.pp} --dp-inner {options.dp_inner}",
        of=f" of {size}",
    )

    from integrations_3d.training import train

    train(options, schedule)


if __name__ == "__main__":
    sys.exit(main())

"""The reference program: pre-train a small decoder with Nanotron, through the loss of ranks.

    ulfmrun -n 8 -m integrations_3d.pretrain --tp 2 --pp 2 --steps 20 --grad-accum 8 --out run

`integrations_3d.training` shows what a training program needs.
"""

import sys
from collections.abc import Sequence

from grad_txn.programs.run import Program, Setting, run
from integrations_3d.options import add_flags, check, replica_size_of

__all__ = ["PROGRAM", "main"]


def _train(setting: Setting) -> None:
    from integrations_3d.training import train

    train(setting)


PROGRAM = Program(
    module="integrations_3d.pretrain",
    description="Pre-train a small LLaMA-style byte-level decoder with Nanotron, through the loss "
    "of ranks.",
    example="ulfmrun -n 8 -m integrations_3d.pretrain --tp 2 --pp 2",
    add_flags=add_flags,
    check=check,
    replica_size=replica_size_of,
    shape=lambda options: f"--tp {options.tp} --pp {options.pp} --dp-inner {options.dp_inner}",
    train=_train,
    redundant_stacks=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; see `grad_txn.programs.run` for what it returns."""
    return run(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The reference program: pre-train a small decoder on text, through the loss of ranks.

    ulfmrun -n 4 -m integrations_hsdp.pretrain --steps 20 --grad-accum 8 --out run

`integrations_hsdp.training` shows what a training program needs.
"""

import sys
from collections.abc import Sequence

from grad_txn.programs.run import Program, Setting, run
from integrations_hsdp.options import add_flags, check

__all__ = ["PROGRAM", "main"]


def _train(setting: Setting) -> None:
    from integrations_hsdp.training import train

    train(setting)


PROGRAM = Program(
    module="integrations_hsdp.pretrain",
    description="Pre-train a small LLaMA-style byte-level decoder, through the loss of ranks.",
    example="ulfmrun -n 4 -m integrations_hsdp.pretrain",
    add_flags=add_flags,
    check=check,
    replica_size=lambda options: int(options.shard_size),
    shape=lambda options: f"--shard-size {options.shard_size}",
    train=_train,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; see `grad_txn.programs.run` for what it returns."""
    return run(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())

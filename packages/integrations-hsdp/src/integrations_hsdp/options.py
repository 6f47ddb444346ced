"""The command line of the reference program, checked before anything is started."""

import argparse
from collections.abc import Sequence

from grad_txn.options import (
    OptionError,
    Parser,
    add_failures,
    add_job,
    add_model,
    add_running,
    at_least,
    check,
    policy_of,
)

SHARDINGS = ("ddp", "fsdp2", "fsdp1")

__all__ = ["OptionError", "parse", "policy_of"]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags; argparse ends the program with code 2 where one is malformed."""
    parser = Parser(
        prog="python -m integrations_hsdp.pretrain",
        description="Pre-train a small LLaMA-style byte-level decoder, through the loss of ranks. "
        "Run it under ulfmrun: "
        "ulfmrun -n 4 -m integrations_hsdp.pretrain --steps 20 --grad-accum 8 --out run",
    )
    job = add_job(parser)
    job.add_argument(
        "--shard-size",
        type=at_least(1),
        default=1,
        metavar="P",
        help="ranks in a replica, over which its parameters are sharded (default: %(default)s)",
    )
    job.add_argument(
        "--sharding",
        choices=SHARDINGS,
        help="what shards them (default: fsdp2; with one rank ddp, which shards nothing)",
    )
    job.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the computation; parameters and sums stay float32 (default: %(default)s)",
    )
    add_failures(parser)
    model = add_model(parser)
    model.add_argument(
        "--recompute",
        action="store_true",
        help="keep no activations inside a layer, compute them again in backward",
    )
    add_running(parser)
    options = parser.parse_args(arguments)
    _check(options)
    check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    size = options.shard_size
    if options.sharding is None:
        options.sharding = "ddp" if size == 1 else "fsdp2"
    if options.sharding == "ddp" and size > 1:
        message = f"--sharding ddp --shard-size {size}: ddp shards nothing, use fsdp2 or fsdp1"
        raise OptionError(message)
    if options.sharding == "ddp" and options.precision != "float32":
        message = f"--precision {options.precision}: needs --sharding fsdp2 or fsdp1"
        raise OptionError(message)
    if options.batch % size:
        message = (
            f"--batch {options.batch}: the {size} ranks of a replica share a microbatch, make it a "
            f"multiple of {size}"
        )
        raise OptionError(message)

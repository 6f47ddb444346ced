"""The flags of the reference program, beside those that all reference programs share."""

import argparse

from grad_txn.programs.flags import FlagGroup, Flags, OptionError, at_least

__all__ = ["ACCUMULATE", "SHARDINGS", "add_flags", "check"]

SHARDINGS = ("ddp", "fsdp2", "fsdp1")
ACCUMULATE = ("sharded", "unsharded")


def add_flags(_parser: Flags, job: FlagGroup, model: FlagGroup) -> None:
    """Add what shards a replica, and how it computes."""
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
        "--accumulate",
        choices=ACCUMULATE,
        default="sharded",
        help="what fsdp2 and fsdp1 keep of the gradients between microbatches: this rank's shard, "
        "reduce-scattering each; or the whole, reduce-scattering the last (default: %(default)s)",
    )
    job.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the computation; parameters and sums stay float32 (default: %(default)s)",
    )
    model.add_argument(
        "--recompute",
        action="store_true",
        help="keep no activations inside a layer, compute them again in backward",
    )


def check(options: argparse.Namespace) -> None:
    """Check these flags against the others, and choose the sharding if they do not.

    Raises:
        OptionError: Some cannot work together.
    """
    size = options.shard_size
    if options.sharding is None:
        options.sharding = "ddp" if size == 1 else "fsdp2"
    if options.sharding == "ddp" and size > 1:
        raise OptionError(
            f"--sharding ddp --shard-size {size}: ddp shards nothing, use fsdp2 or fsdp1"
        )
    if options.sharding == "ddp" and options.precision != "float32":
        raise OptionError(f"--precision {options.precision}: needs --sharding fsdp2 or fsdp1")
    if options.accumulate == "unsharded":
        if options.sharding == "ddp":
            raise OptionError("--accumulate unsharded: needs --sharding fsdp2 or fsdp1")
        if options.sharding == "fsdp1" and options.precision != "float32":
            raise OptionError(
                f"--accumulate unsharded: fsdp1 would sum in {options.precision}, use sharded"
            )
    if options.batch % size:
        raise OptionError(
            f"--batch {options.batch}: the {size} ranks of a replica share a microbatch, make it a "
            f"multiple of {size}"
        )

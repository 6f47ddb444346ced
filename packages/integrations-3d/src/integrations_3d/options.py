"""The flags of the reference program, beside those that all reference programs share."""

import argparse

from grad_txn.programs.flags import FlagGroup, Flags, OptionError, at_least

__all__ = ["add_flags", "check", "replica_size_of"]


def add_flags(parser: Flags, job: FlagGroup, model: FlagGroup) -> None:
    """Add the parallelism inside a replica, and how it computes."""
    job.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of parameters and computation; with bfloat16 gradients are accumulated in float32 "
        "(default: %(default)s)",
    )
    model.add_argument(
        "--tie-embeddings",
        action="store_true",
        help="use one matrix for tokens and for their prediction",
    )
    replica = parser.add_argument_group("parallelism inside a replica of T x P x D ranks")
    replica.add_argument(
        "--tp", type=at_least(1), default=1, metavar="T", help="tensor-parallel ranks"
    )
    replica.add_argument("--pp", type=at_least(1), default=1, metavar="P", help="pipeline stages")
    replica.add_argument(
        "--dp-inner",
        type=at_least(1),
        default=1,
        metavar="D",
        help="data-parallel ranks, that share each microbatch",
    )
    replica.add_argument(
        "--zero",
        type=int,
        choices=(0, 1),
        default=0,
        help="1 shards the optimizer's state over the data-parallel ranks (default: %(default)s)",
    )
    replica.add_argument(
        "--pp-engine",
        choices=("1f1b", "afab"),
        default="1f1b",
        help="schedule of the pipeline (default: %(default)s)",
    )
    replica.add_argument(
        "--tp-mode",
        choices=("all_reduce", "reduce_scatter"),
        default="all_reduce",
        help="reduce_scatter is sequence parallelism (default: %(default)s)",
    )


def replica_size_of(options: argparse.Namespace) -> int:
    """Return the ranks in a replica."""
    size: int = options.tp * options.pp * options.dp_inner
    return size


def check(options: argparse.Namespace) -> None:
    """Check these flags against the others.

    Raises:
        OptionError: Some cannot work together.
    """
    tp, heads = options.tp, options.heads
    if options.width % heads or options.width // heads % 2:
        raise OptionError(
            f"--width {options.width} --heads {heads}: a head has an even width, so make the width "
            f"a multiple of {2 * heads}"
        )
    if heads % tp:
        raise OptionError(f"--heads {heads} --tp {tp}: make the heads a multiple of the ranks")
    if options.layers < options.pp:
        raise OptionError(
            f"--layers {options.layers} --pp {options.pp}: each stage needs a layer at least"
        )
    if options.batch % options.dp_inner:
        raise OptionError(
            f"--batch {options.batch} --dp-inner {options.dp_inner}: these ranks share a "
            f"microbatch, make it a multiple of {options.dp_inner}"
        )
    if options.tp_mode == "reduce_scatter" and options.sequence % tp:
        raise OptionError(
            f"--sequence {options.sequence} --tp {tp} --tp-mode reduce_scatter: the ranks share a "
            f"sequence, make it a multiple of {tp}"
        )

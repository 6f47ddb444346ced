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
)

__all__ = ["parse", "replica_size_of"]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags; argparse ends the program with code 2 where one is malformed.

    Raises:
        OptionError: Flags do not fit each other.
    """
    parser = Parser(
        prog="python -m integrations_3d.pretrain",
        description="Pre-train a small LLaMA-style byte-level decoder with Nanotron, through the "
        "loss of ranks. Run it under ulfmrun: ulfmrun -n 8 -m integrations_3d.pretrain --tp 2 "
        "--pp 2 --steps 20 --grad-accum 8 --out run",
    )
    job = add_job(parser)
    job.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of parameters and computation; with bfloat16 gradients are accumulated in float32 "
        "(default: %(default)s)",
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
    add_failures(parser)
    model = add_model(parser)
    model.add_argument(
        "--tie-embeddings",
        action="store_true",
        help="use one matrix for tokens and for their prediction",
    )
    add_running(parser)
    options = parser.parse_args(arguments)
    check(options)
    _check(options)
    return options


def replica_size_of(options: argparse.Namespace) -> int:
    """Return the ranks in a replica."""
    size: int = options.tp * options.pp * options.dp_inner
    return size


def _check(options: argparse.Namespace) -> None:
    if options.policy == "stacked":
        raise OptionError("--policy stacked: not with pipelines; use static, exact or adaptive")
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

"""The demonstration: Nanotron loses one of two replicas, beside a run that loses none.

Both are real jobs under `ulfmrun`, eight processes each: two replicas of two tensor-parallel ranks
in each of two pipeline stages, B = 8 microbatches. Of the second, a rank of the last stage is
killed between two microbatches of the pipeline's schedule, and with it the replica that holds world
rank 0. Then the event log is verified, the report is drawn, and what happened is told in a few
lines.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from grad_txn.demonstration import demonstrate
from grad_txn.schedule import At, Kill

__all__ = ["main"]

REPLICAS = 2
RANKS = 4
SCHEDULE = (Kill(step=8, replica=0, rank=2, at=At.FORWARD, microbatch=2),)
FLAGS = (
    *("--tp", "2", "--pp", "2", "--steps", "16", "--grad-accum", "4", "--policy", "exact"),
    *("--precision", "bfloat16", "--layers", "4", "--width", "32", "--sequence", "64"),
    *("--batch", "2", "--warmup", "4", "--bucket-mb", "0.05"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m integrations_3d.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="where it all goes")
    return demonstrate(
        parser.parse_args(arguments).out,
        ("-m", "integrations_3d.pretrain", *FLAGS),
        ranks=REPLICAS * RANKS,
        replicas="two replicas of four ranks, TP 2 x PP 2",
        schedule=SCHEDULE,
    )


if __name__ == "__main__":
    sys.exit(main())

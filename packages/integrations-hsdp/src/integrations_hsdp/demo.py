"""The demonstration: a run that loses two of four replicas, beside one that loses none.

Both are real jobs under `ulfmrun`, eight processes each: four replicas whose parameters are sharded
over two ranks by FSDP2, B = 32 microbatches. Of the second, two ranks are killed during gradient
synchronization, world rank 0 first, and their replicas with them. Then the event log is
verified, the report is drawn, and what happened is told in a few lines.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from grad_txn.demonstration import demonstrate
from grad_txn.schedule import At, Kill

__all__ = ["main"]

REPLICAS = 4
GRAD_ACCUM = 8
SHARDS = 2
STEPS = 24
# The first death finds no spare and crosses a policy boundary. Three replicas for 32 microbatches
# are 2 majors of 11 and a minor of 10: no spare either, so the second one crosses a boundary too.
SCHEDULE = (
    Kill(step=8, replica=0, at=At.DURING_SYNC, bucket=1),
    Kill(step=16, replica=2, rank=1, at=At.DURING_SYNC, bucket=0),
)
FLAGS = (
    *("--steps", str(STEPS), "--grad-accum", str(GRAD_ACCUM), "--shard-size", str(SHARDS)),
    *("--bucket-mb", "0.05"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if everything held."""
    parser = argparse.ArgumentParser(prog="python -m integrations_hsdp.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="where it all goes")
    return demonstrate(
        parser.parse_args(arguments).out,
        ("-m", "integrations_hsdp.pretrain", *FLAGS),
        ranks=REPLICAS * SHARDS,
        replicas="four replicas of two ranks",
        schedule=SCHEDULE,
    )


if __name__ == "__main__":
    sys.exit(main())

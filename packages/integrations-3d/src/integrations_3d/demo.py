"""The demonstration: Nanotron loses one of two replicas, beside a run that loses none.

Both are real jobs under `ulfmrun`, eight processes each: two replicas of two tensor-parallel ranks
in each of two pipeline stages, B = 8 microbatches. Of the second, a rank of the last stage is
killed between two microbatches of the pipeline's schedule, and with it the replica that holds world
rank 0. Then the event log is verified, the report is drawn, and what happened is told in a few
lines.
"""

import sys
from collections.abc import Sequence

from grad_txn.failures import At, Kill
from grad_txn.programs.demonstration import Demonstration, demonstrate

__all__ = ["main"]

DEMONSTRATION = Demonstration(
    module="integrations_3d.demo",
    about=__doc__,
    program="integrations_3d.pretrain",
    flags=(
        *("--tp", "2", "--pp", "2", "--steps", "16", "--grad-accum", "4", "--policy", "exact"),
        *("--precision", "bfloat16", "--layers", "4", "--width", "32", "--sequence", "64"),
        *("--batch", "2", "--warmup", "4", "--bucket-mb", "0.05"),
    ),
    ranks=8,
    replicas="two replicas of four ranks, TP 2 x PP 2",
    schedule=(Kill(step=8, replica=0, position=2, at=At.FORWARD, microbatch=2),),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if everything held."""
    return demonstrate(DEMONSTRATION, arguments)


if __name__ == "__main__":
    sys.exit(main())

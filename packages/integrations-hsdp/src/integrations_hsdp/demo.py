"""The demonstration: a run that loses two of four replicas, beside one that loses none.

Both are real jobs under `ulfmrun`, eight processes each: four replicas whose parameters are sharded
over two ranks by FSDP2, B = 32 microbatches. Of the second, two ranks are killed during gradient
synchronization, world rank 0 first, and their replicas with them. Then the event log is
verified, the report is drawn, and what happened is told in a few lines.
"""

import sys
from collections.abc import Sequence

from grad_txn.failures import At, Kill
from grad_txn.programs.demonstration import Demonstration, demonstrate

__all__ = ["main"]

DEMONSTRATION = Demonstration(
    module="integrations_hsdp.demo",
    about=__doc__,
    program="integrations_hsdp.pretrain",
    flags=(
        *("--steps", "24", "--grad-accum", "8", "--shard-size", "2"),
        *("--bucket-mb", "0.05"),
    ),
    ranks=8,
    replicas="four replicas of two ranks",
    # The first death finds no spare and crosses a policy boundary. Three replicas for 32
    # microbatches are 2 majors of 11 and a minor of 10: no spare either, so the second one crosses
    # a boundary too.
    schedule=(
        Kill(step=8, replica=0, at=At.DURING_SYNC, bucket=1),
        Kill(step=16, replica=2, position=1, at=At.DURING_SYNC, bucket=0),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if everything held."""
    return demonstrate(DEMONSTRATION, arguments)


if __name__ == "__main__":
    sys.exit(main())

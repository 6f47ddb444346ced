"""``python -m grad_txn.failures``: draw a failure schedule and print it as YAML.

For instance ``python -m grad_txn.failures --replicas 4 --steps 20 --count 3 --seed 1``.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence

from grad_txn.errors import ScheduleError
from grad_txn.failures.drawn import generate
from grad_txn.failures.places import At
from grad_txn.failures.schedule import Shape, dump_schedule

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a drawn schedule as YAML; exit code 2 and one line for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m grad_txn.failures", description="Draw a failure schedule as YAML."
    )
    parser.add_argument("--replicas", type=int, required=True, help="replicas of the job")
    parser.add_argument("--replica-size", type=int, default=1, help="ranks a replica (default 1)")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (default 20)")
    parser.add_argument("--count", type=int, required=True, help="deaths to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed (default 0)")
    parser.add_argument("--first-step", type=int, default=0, help="first step hit (default 0)")
    parser.add_argument("--last-step", type=int, help="last step hit (default: the last)")
    parser.add_argument(
        "--at",
        nargs="+",
        metavar="PLACE[=WEIGHT]",
        help="places to draw from (default: all alike): " + ", ".join(At),
    )
    options = parser.parse_args(arguments)
    try:
        shape = Shape(
            replicas=options.replicas, replica_size=options.replica_size, steps=options.steps
        )
        schedule = generate(
            shape,
            seed=options.seed,
            count=options.count,
            first_step=options.first_step,
            last_step=options.last_step,
            weights=None if options.at is None else _weights(options.at),
        )
    except ScheduleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(dump_schedule(schedule), end="")
    return 0


def _weights(words: Iterable[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for word in words:
        name, _, weight = word.partition("=")
        try:
            weights[name] = float(weight or 1)
        except ValueError:
            raise ScheduleError(f"the weight of {name} is {weight!r}; give a number") from None
    return weights


if __name__ == "__main__":
    sys.exit(main())

"""``python -m grad_txn.verify DIR``: prove from the event log of a run that it kept its batch.

Exits with 0 only if the log proves it, see `grad_txn.log.verify`. Imports nothing but the standard
library and the judge.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

from grad_txn.log._run_checks import listed
from grad_txn.log.verify import Verdict, verify

__all__ = ["main"]

_SHOWN = 10  # problems that are printed before the rest is only counted


class _Parser(argparse.ArgumentParser):
    """Exit code 2 would read as a crash of the judge; a wrong call is one more "not proved"."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the proof and return 0, or print what is wrong and return 1."""
    parser = _Parser(
        prog="python -m grad_txn.verify",
        description="Prove from the event log of a run that every step kept its batch.",
    )
    parser.add_argument("directory", metavar="DIR", help="directory of the run (its --out)")
    parser.add_argument(
        "--allow-shrinking-batch",
        action="store_true",
        help="accept steps below B from a policy that promises no batch",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as one JSON object")
    options = parser.parse_args(arguments)
    allow = options.allow_shrinking_batch
    verdict = verify(options.directory, allow_shrinking_batch=allow)
    if options.json:
        values = {name: getattr(verdict, name) for name in Verdict.__dataclass_fields__}
        print(json.dumps({"holds": verdict.holds} | values))
    elif verdict.holds:
        print(_summary(verdict, allow_shrinking_batch=allow))
    if verdict.holds:
        return 0
    for problem in verdict.problems[:_SHOWN]:
        print(f"error: {problem}", file=sys.stderr)
    hidden = len(verdict.problems) - _SHOWN
    if hidden > 0:
        print(f"error: and {hidden} more, {len(verdict.problems)} problems", file=sys.stderr)
    return 1


def _summary(verdict: Verdict, *, allow_shrinking_batch: bool) -> str:
    last = verdict.first_step + verdict.steps - 1
    batch = f"exactly {verdict.global_batch} microbatches"
    if verdict.smallest_total < verdict.global_batch:
        batch = f"{verdict.smallest_total} to {verdict.global_batch} microbatches"
    lost = listed(replica for run in verdict.lost for replica in run)
    failures = f"{verdict.failures} survived, {lost} lost" if verdict.failures else "none"
    lines = [
        f"proved: {verdict.steps} steps ({verdict.first_step} to {last}), each committed {batch}",
        f"  ids        {verdict.ids} committed, each once",
        f"  failures   {failures}",
        f"  survivors  {listed(verdict.survivors)}, with identical parameters",
    ]
    if verdict.runs > 1:
        lines.append(f"  runs       {verdict.runs}, each resumed from the one before")
    if allow_shrinking_batch:
        lines.append(
            f"  batch      allowed to shrink below {verdict.global_batch} under a policy that "
            "promises none"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m grad_txn.report DIR [--reference DIR]``: report on a run from its event log.

Writes ``DIR/report.png`` and ``DIR/report.html`` and prints a summary, see `grad_txn.log.report`.
Needs the extra ``grad-txn[report]`` (matplotlib).
"""

import argparse
import sys
from collections.abc import Sequence

from grad_txn.errors import ExtraMissingError, LogError
from grad_txn.log.report import write_report

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report and print its summary; exit code 2 and one line when that cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m grad_txn.report",
        description="Write report.png and report.html into the directory of a run.",
    )
    parser.add_argument("directory", metavar="DIR", help="directory of the run (its --out)")
    parser.add_argument(
        "--reference", metavar="DIR", help="run to compare with, usually the one without failures"
    )
    options = parser.parse_args(arguments)
    try:
        print(write_report(options.directory, reference=options.reference))
    except (LogError, ExtraMissingError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

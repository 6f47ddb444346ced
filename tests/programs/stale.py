"""Pre-train, with one rank that sees an old listing of the checkpoints: stale.py RANK FLAGS..."""

import sys
from pathlib import Path

from grad_txn.checkpoint import candidates
from grad_txn.start import Candidate
from integrations_hsdp import training
from integrations_hsdp.pretrain import main
from ulfm_core import environment

victim, *flags = sys.argv[1:]


def without_the_newest(directory: str | Path) -> dict[Candidate, Path]:
    found = candidates(directory)
    return {one: path for one, path in found.items() if one != max(found)}


if environment.rank() == int(victim):
    vars(training)["candidates"] = without_the_newest  # as a network file system's cache would
sys.exit(main(flags))

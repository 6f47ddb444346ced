"""What the judge checks over all runs of a log: one batch, no gap in the steps, no id twice.

Each check yields its problems, one line each.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from grad_txn.log._evidence import Line, Run

__all__ = ["check_batch", "check_stream", "committed"]


def check_batch(runs: Sequence[Run]) -> Iterator[str]:
    """B is replicas * grad_accum, and the same in every run."""
    for run in runs:
        start = run.lines[min(run.lines)][0]
        product = start.value["replicas"] * start.value["grad_accum"]
        first = runs[0].shape["global_batch"]
        for name, value in (("replicas * grad_accum", product), ("that of the first run", first)):
            if start.value["global_batch"] != value:
                found = start.value["global_batch"]
                yield f"{start.where}: global_batch is {found}, {name} is {value}"


def committed(runs: Iterable[Run]) -> Iterator[tuple[int, Line]]:
    """Yield each committed step with the line that holds, over all runs."""
    for run in runs:
        for step, lines in run.step_lines().items():
            if step >= run.shape["first_step"]:
                yield step, lines[0]


def check_stream(runs: Sequence[Run]) -> Iterator[str]:
    """Over all runs: no gap in the steps, no id twice, no id left behind."""
    kept = list(committed(runs))
    if not kept:
        yield "no step line in any log, no step was committed"
        return
    failed_steps = {line.value["step"] for run in runs for line in run.kept_failures()}
    batch = runs[0].shape["global_batch"]
    owner: dict[int, str] = {}
    expected = runs[0].shape["first_step"]
    missing_from = expected * batch
    highest = missing_from - 1
    for step, line in kept:
        if step != expected:
            yield f"{line.where}: step {step} follows, step {expected} is missing"
        expected = step + 1
        for replica, ids in line.value["ids"].items():
            for i in ids:
                if i < 0:
                    yield f"{line.where}: step {step}: id {i} is below 0"
                if i in owner:
                    yield f"{line.where}: step {step}: id {i} committed before, {owner[i]}"
                owner[i] = f"by replica {replica} in step {step}"
                highest = max(highest, i)
        while missing_from in owner:
            missing_from += 1
        # A batch that shrinks may be smaller than the queue, and then takes several steps over it.
        whole = line.value["total"] == batch
        if whole and step not in failed_steps and missing_from <= highest:
            yield f"{line.where}: step {step}: id {missing_from} was left behind"
            missing_from = highest + 1
    for run in runs:
        for rank, lines in run.lines.items():
            steps = [line.value["step"] for line in lines if line.event == "step"]
            for before, after in pairwise(steps):
                if after != before + 1:
                    yield f"run {run.name}: rank {rank} recorded step {after} after step {before}"

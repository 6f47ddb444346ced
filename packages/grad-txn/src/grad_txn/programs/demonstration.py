"""A demonstration of a program that survives: a run that loses replicas, beside one that does not.

Both are real jobs under `ulfmrun`. Ranks of the second are killed where a schedule says so. Then
the event log is verified, the report is drawn, and what happened is told in a few lines.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from grad_txn.history import read_history
from grad_txn.schedule import Kill, Schedule, dump_schedule

__all__ = ["demonstrate"]


def demonstrate(
    out: Path, program: Sequence[str], *, ranks: int, replicas: str, schedule: Schedule
) -> int:
    """Run it all; 0 if everything held.

    Args:
        out: Where it all goes; emptied first.
        program: What `ulfmrun` starts, with its flags but --out and --failures.
        ranks: How many.
        replicas: What they are, in words.
        schedule: Who is killed in the second run.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    reference, run = out / "reference", out / "run"
    deaths = out / "failures.yaml"
    deaths.write_text(dump_schedule(schedule))

    _say(f"1. the reference: {replicas}, no failures")
    if _train(program, ranks, reference):
        return 1
    _say(f"2. the run: {' and '.join(map(_told, schedule))}")
    if _train(program, ranks, run, "--failures", str(deaths)):
        return 1
    _say("3. the proof, from the event log alone")
    if _python("grad_txn.verify", str(run)):
        return 1
    _say("4. the picture")
    if _python("grad_txn.report", str(run), "--reference", str(reference)):
        return 1
    print(_summary(run, reference), flush=True)
    return 0


def _train(program: Sequence[str], ranks: int, out: Path, *more: str) -> int:
    begun = time.monotonic()
    code = _python("ulfm_core.launch", "-n", str(ranks), *program, "--out", str(out), *more)
    print(f"({time.monotonic() - begun:.0f} s)")
    return code


def _python(*module_and_arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", *module_and_arguments], check=False).returncode


def _say(headline: str) -> None:
    print(f"\n=== {headline}", flush=True)


def _told(kill: Kill) -> str:
    return f"rank {kill.rank} of replica {kill.replica} is killed in step {kill.step} ({kill.at})"


def _summary(run: Path, reference: Path) -> str:
    history, without = read_history(run), read_history(reference)
    lines = ["", "=== what happened"]
    for recovery in history.recoveries:
        died = ", ".join(
            f"rank {', '.join(map(str, death.positions))} of replica {death.replica} died in step "
            f"{death.step} ({death.at})"
            for death in recovery.deaths
        )
        gone = max(
            (death.gone for death in recovery.deaths if death.gone is not None), default=None
        )
        if recovery.boundary:
            decided = f"policy boundary: {recovery.extra} microbatches were computed again"
        elif recovery.promoted:
            decided = "a spare took its place"
        else:
            decided = "the gradients were reduced again"
        took = (
            "an unknown time" if recovery.overhead is None else f"{1e3 * recovery.overhead:.0f} ms"
        )
        lines += [
            f"{died}: {decided}.",
            *([] if gone is None else [f"  {1e3 * gone:.0f} ms until its last peer had left."]),
            f"  {took} from the SIGKILL to the next commit, beyond those microbatches' compute.",
        ]
    microbatches = history.steps[-1].total
    before, after = history.steps[0].replicas, history.steps[-1].replicas
    first_death = min(recovery.step for recovery in history.recoveries)
    losses = {step.step: step.loss for step in without.steps}
    apart = max(abs(step.loss - losses[step.step]) / losses[step.step] for step in history.steps)
    lines += [
        f"All {len(history.steps)} steps committed {microbatches} microbatches each.",
        f"Step {first_death} began with {before} replicas, the last one with {after}.",
        f"The largest relative difference of a step's loss to the reference is {apart:.1e}.",
        f"The picture is {run / 'report.png'}, the page {run / 'report.html'}.",
    ]
    return "\n".join(lines)

"""A demonstration of a program that survives: a run that loses replicas, beside one that does not.

Both are real jobs under `ulfmrun`. Ranks of the second are killed where a schedule says so. Then
the event log is verified, the report is drawn, and what happened is told in a few lines.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grad_txn.failures import Kill, Schedule, dump_schedule
from grad_txn.log.history import read_history
from ulfm_core.codes import FAILED, FINISHED

__all__ = ["Demonstration", "demonstrate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """What is shown.

    Attributes:
        module: The demonstration itself, as ``python -m`` takes it.
        about: What it does, for ``--help``.
        program: The reference program that `ulfmrun` starts, a module.
        flags: Its flags but --out and --failures.
        ranks: How many ranks.
        replicas: What they are, in words.
        schedule: Who is killed in the second run.
    """

    module: str
    about: str
    program: str
    flags: tuple[str, ...]
    ranks: int
    replicas: str
    schedule: Schedule


def demonstrate(show: Demonstration, arguments: Sequence[str] | None = None) -> int:
    """Run it all, as its command line says; return 0 if everything held."""
    parser = argparse.ArgumentParser(prog=f"python -m {show.module}", description=show.about)
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="where it all goes")
    out: Path = parser.parse_args(arguments).out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    reference, run = out / "reference", out / "run"
    deaths = out / "failures.yaml"
    deaths.write_text(dump_schedule(show.schedule))

    _say(f"1. the reference: {show.replicas}, no failures")
    if _train(show, reference):
        return FAILED
    _say(f"2. the run: {' and '.join(map(_told, show.schedule))}")
    if _train(show, run, "--failures", str(deaths)):
        return FAILED
    _say("3. the proof, from the event log alone")
    if _python("grad_txn.verify", str(run)):
        return FAILED
    _say("4. the picture")
    if _python("grad_txn.report", str(run), "--reference", str(reference)):
        return FAILED
    print(_summary(run, reference), flush=True)
    return FINISHED


def _train(show: Demonstration, out: Path, *more: str) -> int:
    begun = time.monotonic()
    program = ("-m", show.program, *show.flags, "--out", str(out), *more)
    code = _python("ulfm_core.launch", "-n", str(show.ranks), *program)
    print(f"({time.monotonic() - begun:.0f} s)")
    return code


def _python(*module_and_arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", *module_and_arguments], check=False).returncode


def _say(headline: str) -> None:
    print(f"\n=== {headline}", flush=True)


def _told(kill: Kill) -> str:
    return (
        f"rank {kill.position} of replica {kill.replica} is killed in step {kill.step} ({kill.at})"
    )


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
    before, after = history.steps[0].living, history.steps[-1].living
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

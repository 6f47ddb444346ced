"""The demonstration: a run that loses two of four replicas, beside one that loses none.

Both are real jobs under `ulfmrun`, eight processes each: four replicas whose parameters are sharded
over two ranks by FSDP2, B = 32 microbatches. Of the second, two ranks are killed during gradient
synchronization, world rank 0 first, and their replicas with them. Then the event log is
verified, the report is drawn, and what happened is told in a few lines.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from grad_txn.history import read_history
from grad_txn.schedule import At, Kill, dump_schedule

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
    out: Path = parser.parse_args(arguments).out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    reference, run = out / "reference", out / "run"
    schedule = out / "failures.yaml"
    schedule.write_text(dump_schedule(SCHEDULE))

    _say("1. the reference: four replicas of two ranks, no failures")
    if _train(reference):
        return 1
    _say(f"2. the run: {' and '.join(map(_told, SCHEDULE))}")
    if _train(run, "--failures", str(schedule)):
        return 1
    _say("3. the proof, from the event log alone")
    if _python("grad_txn.verify", str(run)):
        return 1
    _say("4. the picture")
    if _python("grad_txn.report", str(run), "--reference", str(reference)):
        return 1
    print(_summary(run, reference), flush=True)
    return 0


def _train(out: Path, *more: str) -> int:
    begun = time.monotonic()
    program = ("-m", "integrations_hsdp.pretrain", *FLAGS, "--out", str(out), *more)
    code = _python("ulfm_core.launch", "-n", str(REPLICAS * SHARDS), *program)
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


if __name__ == "__main__":
    sys.exit(main())

"""What a failure costs: from a SIGKILL to the next commit, and to that of a restarted job.

    python benchmarks/recovery.py --out bench-output

Jobs of four replicas lose two of them each, both while gradients are synchronized. A cost is the
time from the SIGKILL to the next committed step, without the compute of extra microbatches. Beside
it, a job with a checkpoint before every step loses all its ranks and is started again by `ulfmrun
--max-restarts`, with the same program. Its cost is the time to its first commit, less the usual
seconds of a step, which it has to compute anew. Fewer checkpoints would cost it the steps since.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs import RANKS, command, environment
from tables import flags, markdown, save

STEPS = 10
KILLED_AT = (3, 6)  # steps, in each job
PARTS = ("detect", "repair", "record", "restore", "rereduce")
FLAGS = ("-m", "integrations_hsdp.pretrain", "--grad-accum", "8", "--policy", "static")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs and write the table."""
    parser = flags(__doc__)
    parser.add_argument("--jobs", type=int, default=6, help="with two kills each")
    parser.add_argument("--restarts", type=int, default=3, help="jobs that are started again")
    options = parser.parse_args(arguments)
    jobs, restarts = (1, 1) if options.smoke else (options.jobs, options.restarts)
    kills = [row for number in range(jobs) for row in _survive(number)]
    starts = [_restart() for _ in range(restarts)]
    figures = {"kills": kills, "restarts": starts}
    save(options.out, "recovery", figures, _table(kills, starts))
    return 0


def _survive(number: int) -> list[dict[str, Any]]:
    """One job that loses two replicas, other ones in every job; a row for each kill."""
    from grad_txn.failures import At, Kill, dump_schedule
    from grad_txn.log.history import read_history

    victims = (number % RANKS, (number + 1) % RANKS)
    kills = [
        Kill(step=step, replica=replica, at=At.DURING_SYNC)
        for step, replica in zip(KILLED_AT, victims, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        schedule = Path(folder, "failures.yaml")
        schedule.write_text(dump_schedule(kills))
        with _start(folder, "--failures", str(schedule)) as process:
            _finish(process, folder)
        recoveries = read_history(Path(folder, "run")).recoveries
    if len(recoveries) != len(kills):
        raise RuntimeError(f"{len(kills)} replicas were killed, {len(recoveries)} recoveries found")
    return [
        {
            "replica": recovery.deaths[0].replica,
            "boundary": recovery.boundary,
            "seconds": recovery.overhead,
            "extra_compute": recovery.compute_to_commit,
            **{part: getattr(recovery, part) for part in PARTS},
        }
        for recovery in recoveries
    ]


def _restart() -> dict[str, Any]:
    """Kill all ranks of one job, and time its way back to a commit."""
    with tempfile.TemporaryDirectory() as folder:
        more = ("--checkpoint-every", "1")
        with _start(folder, *more, restarts=1) as process:
            try:
                killed = _kill_all(process, folder)
            except BaseException:
                process.terminate()  # ulfmrun ends its ranks
                raise
            _finish(process, folder)
        logs = [_lines(folder, rank) for rank in range(RANKS)]
        steps = [line for log in logs for line in log if line["event"] == "commit"]
        usual = statistics.median(line["seconds"] for line in steps if line["step"] > 0)
        # Of the second start: the first may have committed a step while it was being killed.
        begun = min(_starts(log)[1]["time"] for log in logs)
        first = min(line["time"] for line in steps if line["time"] > begun)
        resumed = max(_starts(log)[1]["first_step"] for log in logs)
        return {
            "seconds": first - killed["time"] - usual,
            "step_seconds": usual,
            "lost_steps": killed["step"] + 1 - resumed,
        }


def _starts(log: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in log if line["event"] == "start"]


def _kill_all(process: subprocess.Popen[bytes], folder: str) -> dict[str, Any]:
    """Wait for a step in the middle of the run, then SIGKILL the ranks that the log names."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        logs = [_lines(folder, rank) for rank in range(RANKS)]
        steps = [line["step"] for line in logs[0] if line["event"] == "step"]
        starts = [line["pid"] for log in logs for line in log if line["event"] == "start"]
        if steps and max(steps) >= KILLED_AT[0] and len(starts) == RANKS:
            now = time.time()
            for pid in starts:
                os.kill(pid, signal.SIGKILL)
            return {"time": now, "step": max(steps)}
        time.sleep(0.02)
    raise RuntimeError(f"no step {KILLED_AT[0]}: {_said(folder)}")


def _start(folder: str, *more: str, restarts: int = 0) -> subprocess.Popen[bytes]:
    out = str(Path(folder, "run"))
    program = [*FLAGS, "--steps", str(STEPS), "--out", out, *more]
    with Path(folder, "said").open("wb") as said:
        return subprocess.Popen(
            command("--max-restarts", str(restarts), *program),
            env=environment(),
            stdout=said,
            stderr=subprocess.STDOUT,
        )


def _finish(process: subprocess.Popen[bytes], folder: str) -> None:
    try:
        code = process.wait(timeout=180)
    except BaseException:
        process.terminate()
        raise
    if code:
        raise RuntimeError(f"the job ended with {code}: {_said(folder)}")


def _said(folder: str) -> str:
    return Path(folder, "said").read_text(errors="replace")[-2000:]


def _lines(folder: str, rank: int) -> list[dict[str, Any]]:
    log = Path(folder, "run", "events", f"{rank}.jsonl")
    if not log.exists():
        return []
    # A rank that was killed while it wrote leaves half a line, and one that writes has it so.
    whole = [text for text in log.read_text().splitlines(keepends=True) if text.endswith("}\n")]
    return [json.loads(text) for text in whole]


def _table(kills: Sequence[dict[str, Any]], starts: Sequence[dict[str, Any]]) -> str:
    def told(rows: Sequence[dict[str, Any]], name: str) -> str:
        values = sorted(1e3 * row[name] for row in rows)
        return f"{statistics.median(values):.0f} ({values[0]:.0f} to {values[-1]:.0f})"

    rows = [
        [f"SIGKILL to next commit, {len(kills)} kills", told(kills, "seconds")],
        *([f"of which {part}", told(kills, part)] for part in PARTS),
        ["not counted: extra microbatches", told(kills, "extra_compute")],
        [f"restart from a checkpoint, {len(starts)} jobs", told(starts, "seconds")],
    ]
    return markdown(["", "median (least to most), ms"], rows)


if __name__ == "__main__":
    sys.exit(main())

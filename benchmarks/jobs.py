"""Benchmark jobs: a script starts itself under `ulfmrun`, and rank 0 hands back what was measured.

A figure of a busy machine means little alone. So one job holds all variants of what is compared,
they take turns, and what is told is the ratio of neighbours in time.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["hand_back", "markdown", "quartiles", "run_job"]

RANKS = 4
_RESULT = "result.json"


def run_job(
    script: str, settings: dict[str, Any], *, transport: str = "tcp", seconds: float = 900
) -> Any:
    """Run `script --job SETTINGS` on four ranks, and return what its rank 0 handed back.

    Args:
        script: The script's path.
        settings: Handed to it as JSON, with the name of a scratch folder as ``scratch``.
        transport: As for `ulfmrun`.
        seconds: When to give up and end all of the job.

    Raises:
        subprocess.CalledProcessError: The job failed.
        subprocess.TimeoutExpired: It took too long.
    """
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "ulfm_core.launch", "-n", str(RANKS)]
        command += ["--transport", transport, script]
        command += ["--job", json.dumps({**settings, "scratch": scratch})]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            try:
                code = process.wait(seconds)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)  # ulfmrun ends its ranks
                raise
        if code:
            raise subprocess.CalledProcessError(code, command)
        return json.loads(Path(scratch, _RESULT).read_text())


def hand_back(settings: dict[str, Any], result: Any) -> None:
    """Tell `run_job` what was measured. For rank 0 of the job."""
    Path(settings["scratch"], _RESULT).write_text(json.dumps(result))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third one."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its columns wide enough to be read on a console too."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [heads, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )

"""Benchmark jobs: a script starts itself under `ulfmrun`, and rank 0 hands back what was measured.

A figure of a busy machine means little alone. So one job holds all variants of what is compared,
they take turns, and what is told is the ratio of neighbours in time.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "arguments_of",
    "hand_back",
    "markdown",
    "quartiles",
    "run_job",
    "take_turns",
    "written",
]

RANKS = 4
_RESULT = "result.json"


def arguments_of(
    document: str | None, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """Return the flags of a benchmark of steps.

    Args:
        document: The script's docstring.
        arguments: Its command line.
    """
    parser = argparse.ArgumentParser(description=(document or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("bench-output"))
    parser.add_argument("--rounds", type=int, default=40, help="counted steps of each variant")
    parser.add_argument("--transport", default="tcp", choices=["tcp", "sm"], help="of ulfmrun")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


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


def take_turns(
    world: Any, steps: Mapping[str, Callable[[], None]], rounds: int, *, baseline: str
) -> list[dict[str, Any]]:
    """Call the variants' steps in turn, and return a row for each. Collective over the world.

    The time of a step is that of its slowest rank, its processor time that of all ranks.

    Args:
        world: An `ulfm_core.World`.
        steps: Name -> one step of that variant.
        rounds: Counted steps of each; two more come before.
        baseline: Which of them the ratios are to, round by round.
    """
    import torch

    everyone = world.subgroup(range(world.initial_size))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in steps}
    warm_up = 2
    for number in range(rounds + warm_up):
        # Whoever comes first finds the caches as the last one left them: take turns.
        names = list(steps)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            world.barrier(among=everyone).wait()
            begun, begun_cpu = time.perf_counter(), time.process_time()
            steps[name]()
            world.barrier(among=everyone).wait()
            latest = time.perf_counter() - begun
            spent = torch.tensor([time.process_time() - begun_cpu], dtype=torch.float64)
            world.all_reduce(spent, among=everyone).wait()
            if number >= warm_up:
                seconds[name].append(latest)
                cpu_seconds[name].append(float(spent))

    def ratios(of: dict[str, list[float]], name: str) -> list[float]:
        return [own / base for own, base in zip(of[name], of[baseline], strict=True)]

    return [
        {
            "variant": name,
            "seconds": quartiles(seconds[name])[1],
            "cpu_seconds": quartiles(cpu_seconds[name])[1],
            "ratio": quartiles(ratios(seconds, name)),
            "cpu_ratio": quartiles(ratios(cpu_seconds, name))[1],
        }
        for name in steps
    ]


def written(
    path: Path,
    rows: Sequence[dict[str, Any]],
    *,
    columns: Mapping[str, Callable[[dict[str, Any]], str]],
    baseline: str,
) -> None:
    """Print the rows of `take_turns` as a table, and write them as JSON and the table beside it.

    Args:
        path: The JSON file; its folder is made.
        rows: What was measured.
        columns: What to show before the figures: head -> what it says of a row.
        baseline: What the ratios are to, in the table's head.
    """
    heads = [*columns, "step (ms)", "CPU (ms)"]
    heads += [f"step / {baseline} (quartiles)", f"CPU / {baseline}"]
    cells = []
    for row in rows:
        low, ratio, high = row["ratio"]
        cells.append(
            [
                *(column(row) for column in columns.values()),
                f"{1e3 * row['seconds']:.1f}",
                f"{1e3 * row['cpu_seconds']:.1f}",
                f"{ratio:.2f} ({low:.2f} to {high:.2f})",
                f"{row['cpu_ratio']:.2f}",
            ]
        )
    table = markdown(heads, cells)
    print(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=1))
    path.with_suffix(".md").write_text(table + "\n")


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

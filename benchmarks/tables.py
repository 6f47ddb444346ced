"""A benchmark's command line, and what it leaves behind: a table and the figures in it."""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["flags", "markdown", "quartiles", "save"]


def flags(document: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that every benchmark has.

    Args:
        document: The script's docstring; its first line says what the benchmark is.
    """
    parser = argparse.ArgumentParser(description=(document or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("bench-output"), help="folder to write to")
    parser.add_argument("--smoke", action="store_true", help="seconds of it, to see that it runs")
    return parser


def save(folder: Path, name: str, figures: Any, table: str) -> None:
    """Print the table, and write NAME.json (the figures) and NAME.md (the table) into the folder.

    Args:
        folder: Where to write; made if it does not exist.
        name: Name of both files without their suffix.
        figures: What was measured, as JSON.
        table: The same for readers, in Markdown.
    """
    print(table)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(figures, indent=1))
    (folder / f"{name}.md").write_text(table + "\n")


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

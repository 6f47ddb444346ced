"""A run's event logs as plain JSON objects, for tests that look at them or change them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

__all__ = ["Events", "read_events", "write_events"]

Events: TypeAlias = dict[int, list[dict[str, Any]]]
"""Rank -> its lines, in their order."""


def read_events(out: Path) -> Events:
    """Return all lines that the ranks of a run have written, as they stand in `out`.

    Raises:
        json.JSONDecodeError: A line is torn, or no JSON.
    """
    return {
        int(path.stem): [json.loads(line) for line in path.read_text().splitlines()]
        for path in (out / "events").iterdir()
    }


def write_events(events: Mapping[int, Sequence[Mapping[str, Any]]], out: Path) -> None:
    """Make these the logs of a run in `out`, in place of those that are there."""
    folder = out / "events"
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for rank, lines in events.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{rank}.jsonl").write_text(text)

from dataclasses import replace
from typing import Any

import pytest

from grad_txn.log.console import Console
from grad_txn.log.lines import FailureLine, StepLine

STEP = StepLine(
    step=3, epoch=1, loss=2.5, grad_norm=1.25, replica=1, living=3, contributions={}, ids={},
    roles={}, total=32, boundary=True, extra=3, seconds=0.5, tokens=1000,
)  # fmt: skip
FAILURE = FailureLine(
    step=3, epoch=1, failed=[0], failed_ranks=[0], boundary=False, restore="blocking", promoted={},
    extra_ids={}, queued=[], contributions={},
)  # fmt: skip


def test_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    Console(replicas=4).step(STEP)
    assert capsys.readouterr().out == (
        "step    3  loss 2.5000  norm 1.250  replicas 3/4  epoch 1  microbatches 32 (extended)"
        "  0.50 s  2,000 tokens/s\n"
    )


def test_no_speed_where_tokens_are_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Console(replicas=4).step(replace(STEP, boundary=False, tokens=0))
    assert capsys.readouterr().out.endswith("microbatches 32  0.50 s\n")


@pytest.mark.parametrize(
    ("fields", "decided"),
    [
        ({"extra_ids": {1: [0, 1], 2: [2]}}, "policy boundary, 3 extra microbatches (1: 2, 2: 1)"),
        (
            {"recounted": {1: [0, 1]}},
            "2 microbatches of redundant stacks count instead (1: 2) (repaired",
        ),
        (
            {"extra_ids": {2: [4]}, "recounted": {1: [0, 1]}},
            "1 extra microbatches (2: 1), 2 microbatches of redundant stacks count instead (1: 2)",
        ),
        ({"promoted": {0: 3}}, "spare 3 takes the place of 0"),
        ({}, "the gradients are reduced again"),
    ],
)
def test_a_failure(
    fields: dict[str, Any], decided: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Console(replicas=4).failure(replace(FAILURE, **fields), seconds=0.012)
    said = capsys.readouterr().out
    assert "step 3: lost replica 0 -> epoch 1" in said
    assert decided in said
    assert "12 ms" in said

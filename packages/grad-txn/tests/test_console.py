from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from grad_txn.log.console import Console
from grad_txn.log.lines import CommitLine, FailureLine

if TYPE_CHECKING:
    from grad_txn.log.observer import Observer

pytestmark = pytest.mark.timeout(60)

STEP = CommitLine(
    step=4, epoch=1, generation=0, loss=2.5, grad_norm=0.75, living=3, total=32, boundary=False,
    extra=0, plan="0123456789abcde", seconds=0.5, tokens=0,
)  # fmt: skip
FAILURE = FailureLine(
    step=5, epoch=2, failed=[1, 2], failed_ranks=[1, 2], boundary=False, restore="blocking",
    promoted={}, extra_ids={}, queued=[], contributions={0: 32},
)  # fmt: skip


def test_a_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console: Observer = Console(replicas=4)
    console.step(STEP)
    console.step(replace(STEP, step=5, boundary=True, tokens=1000))
    assert capsys.readouterr().out.splitlines() == [
        "step    4  loss 2.5000  norm 0.750  replicas 3/4  epoch 1  microbatches 32  0.50 s",
        (
            "step    5  loss 2.5000  norm 0.750  replicas 3/4  epoch 1  microbatches 32 (extended)"
            "  0.50 s  2,000 tokens/s"
        ),
    ]


@pytest.mark.parametrize(
    ("decided", "said"),
    [
        ({}, "the gradients are reduced again"),
        ({"promoted": {1: 3}}, "spare 3 takes the place of 1"),
        (
            {"extra_ids": {0: [7, 8], 3: [9]}},
            "policy boundary, 3 extra microbatches (0: 2, 3: 1)",
        ),
        (
            {"recounted": {0: [7]}},
            "1 microbatches of redundant stacks count instead (0: 1)",
        ),
        (
            {"extra_ids": {0: [8]}, "recounted": {3: [7]}},
            (
                "policy boundary, 1 extra microbatches (0: 1), "
                "1 microbatches of redundant stacks count instead (3: 1)"
            ),
        ),
    ],
)
def test_a_failure_stands_out_with_what_was_decided(
    capsys: pytest.CaptureFixture[str], decided: dict[str, dict[int, Sequence[int]]], said: str
) -> None:
    Console(replicas=4).failure(replace(FAILURE, **decided), seconds=0.25)  # type: ignore[arg-type]
    assert capsys.readouterr().out == (
        f"  !! step 5: lost replica 1, 2 -> epoch 2, {said}"
        " (repaired 250 ms after it was noticed)\n"
    )


def test_nobody_lost_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    Console(replicas=4).failure(replace(FAILURE, failed=[], failed_ranks=[]), seconds=0.25)
    assert "lost replica none" in capsys.readouterr().out

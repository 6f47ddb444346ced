import json
import math
import re
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from grad_txn.errors import LogError
from grad_txn.log import lines
from grad_txn.log.lines import (
    KINDS,
    CheckpointLine,
    CommitLine,
    DifferLine,
    ExitLine,
    ExtendLine,
    FailureLine,
    InjectLine,
    Line,
    RepairLine,
    RestoreLine,
    StartLine,
    StepLine,
    from_json,
    last_words,
    to_json,
)

pytestmark = pytest.mark.timeout(60)

START = StartLine(
    run="3f", rank=3, replica=1, position=1, replicas=4, living=3, grad_accum=8, replica_size=2,
    global_batch=32, policy="exact", promise="exact", first_step=4, cursor=130, queue=((1, 2),),
    steps=9,
    tokens_per_microbatch=512, staging="no-copy", host="node0", pid=17,
    about={"seed": 7, "flags": {"lr": 0.1}},
)  # fmt: skip
STEP = StepLine(
    step=4, epoch=1, replica=1, life=0, role="major", ids=((8, 9), (12, 12)), loss_sum=7.5,
    weight_sum=3.0, plan="0123456789abcde", stacks=3,
    losses=(2.5, 2.0, 3.0), weights=(1.0, 1.0, 1.0),
)  # fmt: skip
COMMIT = CommitLine(
    step=4, epoch=1, generation=0, total=2, loss=2.5, grad_norm=0.75, living=2, boundary=True,
    extra=1, plan="0123456789abcde", seconds=0.5, tokens=1024, skipped=True,
)  # fmt: skip
FAILURE = FailureLine(
    step=5, epoch=2, failed=(1, 2), failed_ranks=(2, 5), boundary=True, restore="non_blocking",
    promoted={1: 3}, extra_ids={0: (7, 8)}, queued=(9,), contributions={0: 32},
    recounted={3: (6,)},
)  # fmt: skip
ONE_OF_EACH: tuple[Line, ...] = (
    START,
    InjectLine(step=3, at="during_sync", replica=0, position=1, bucket=2, microbatch=None),
    RepairLine(
        step=3, epoch=1, detect=0.5, repair=0.25, record=0.125, rounds=2, complete=True
    ),
    FAILURE,
    RestoreLine(step=3, epoch=1, mode="blocking", buckets=3, seconds=0.5, rereduce=0.25),
    ExtendLine(step=3, epoch=1, microbatches=0, seconds=0.0, rereduce=0.25),
    STEP,
    COMMIT,
    DifferLine(step=5, epoch=2, replicas=(3,), majority=True, same_before=None),
    CheckpointLine(step=5, path="checkpoints/5", seconds=1.5),
    ExitLine(code=0, reason="finished", step=8, parameters="ab12"),
)  # fmt: skip


def logged(line: Line) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(to_json(line)))
    return values


def through_json(line: Line) -> Line | None:
    return from_json(logged(line))


@pytest.mark.parametrize("line", ONE_OF_EACH, ids=lambda line: line.EVENT)
def test_a_line_comes_back_as_it_was(line: Line) -> None:
    assert through_json(line) == line


def test_there_is_an_example_of_every_kind() -> None:
    named = {getattr(lines, name) for name in lines.__all__ if re.fullmatch(r"\w+Line", name)}
    assert {type(line) for line in ONE_OF_EACH} == set(KINDS.values()) == named
    assert all(event == kind.EVENT for event, kind in KINDS.items())


@pytest.mark.parametrize("line", ONE_OF_EACH, ids=lambda line: line.EVENT)
def test_a_line_is_logged_in_the_order_of_its_fields(line: Line) -> None:
    names = ["event", *(one.name for one in fields(line) if one.name != "about")]
    assert list(to_json(line))[: len(names)] == names


def test_what_a_program_says_about_itself_stands_beside_the_rest() -> None:
    assert list(to_json(START).items())[-2:] == [("seed", 7), ("flags", {"lr": 0.1})]


@pytest.mark.parametrize("name", ["replicas", "event", "time", "about"])
def test_a_program_cannot_say_what_the_line_says_already(name: str) -> None:
    with pytest.raises(LogError, match=f"about has a field '{name}'"):
        replace(START, about={name: 1})


def test_a_field_at_its_default_is_left_out() -> None:
    assert "stacks" not in to_json(replace(STEP, stacks=0))
    assert "recounted" not in to_json(replace(FAILURE, recounted={}))
    left = ExitLine(code=1, reason="stuck")
    assert to_json(left) == {"event": "exit", "code": 1, "reason": "stuck"}
    assert through_json(left) == left


@pytest.mark.parametrize("loss", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_has_no_word_for_comes_back(loss: float) -> None:
    back = through_json(replace(COMMIT, loss=loss))
    assert isinstance(back, CommitLine)
    assert math.isnan(back.loss) if math.isnan(loss) else back.loss == loss


def test_a_kind_from_elsewhere_is_no_line() -> None:
    assert from_json({"event": "weather", "time": 1}) is None
    assert from_json({}) is None


def test_fields_from_elsewhere_are_passed_over() -> None:
    assert from_json(logged(STEP) | {"time": 1.0, "mood": "good"}) == STEP


NEEDED = [
    (line, one.name)
    for line in ONE_OF_EACH
    for one in fields(line)
    if one.default is MISSING and one.default_factory is MISSING
]


@pytest.mark.parametrize(("line", "name"), NEEDED, ids=[f"{x.EVENT} {n}" for x, n in NEEDED])
def test_a_missing_field_is_named(line: Line, name: str) -> None:
    values = logged(line)
    del values[name]
    with pytest.raises(LogError, match=f"{line.EVENT} line without '{name}'"):
        from_json(values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "4"),
        ("step", True),
        ("step", 4.0),
        ("step", None),
        ("loss_sum", "high"),
        ("loss_sum", True),
        ("role", 1),
        ("ids", {"0": 8}),
        ("ids", [8]),
        ("ids", [[8.5, 9]]),
        ("losses", ["low"]),
    ],
)
def test_a_value_that_does_not_fit_is_named(name: str, value: Any) -> None:
    said = re.escape(f"step line with {name} = {value!r}")
    with pytest.raises(LogError, match=said):
        from_json(logged(STEP) | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("boundary", 1), ("contributions", [2]), ("contributions", {"a": 2}),
     ("contributions", {"0": "2"})],
)  # fmt: skip
def test_a_value_of_a_failure_that_does_not_fit_is_named(name: str, value: Any) -> None:
    said = re.escape(f"failure line with {name} = {value!r}")
    with pytest.raises(LogError, match=said):
        from_json(logged(FAILURE) | {name: value})


def test_the_guard_leaves_a_line_that_is_read_back() -> None:
    text = last_words(75)
    assert text.endswith("\n")
    # As the guard fills it in: a bare number, and text that is escaped already.
    values = json.loads(text.replace("{time}", "1.5").replace("{reason}", r"\"rank 3\" died"))
    assert (values["event"], values["time"]) == ("exit", 1.5)
    assert from_json(values) == ExitLine(code=75, reason='"rank 3" died')

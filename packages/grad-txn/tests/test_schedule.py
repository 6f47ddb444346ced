import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grad_txn.errors import ScheduleError
from grad_txn.failures import (
    At,
    Kill,
    Schedule,
    Shape,
    dump_schedule,
    generate,
    load_schedule,
    parse_schedule,
)
from grad_txn.failures.__main__ import main

pytestmark = pytest.mark.timeout(60)

SHAPE = Shape(replicas=4, replica_size=2, steps=10)


def test_entries_become_kills(tmp_path: Path) -> None:
    path = tmp_path / "failures.yaml"
    path.write_text(
        "- {step: 3, replica: 0, rank: 1, at: during_sync, bucket: 1}\n"
        "- {step: 3, replica: 2, at: during_repair}\n"
        "- {step: 7, replica: 1, rank: 0, at: forward, microbatch: 2}\n"
    )
    assert load_schedule(path, SHAPE) == (
        Kill(step=3, replica=0, position=1, at=At.DURING_SYNC, bucket=1),
        Kill(step=3, replica=2, position=0, at=At.DURING_REPAIR),
        Kill(step=7, replica=1, position=0, at=At.FORWARD, microbatch=2),
    )


def test_a_list_without_entries_is_a_schedule() -> None:
    assert parse_schedule("[]", SHAPE) == ()


def test_two_ranks_of_a_replica_may_die_in_one_step() -> None:
    text = (
        "- {step: 3, replica: 0, rank: 1, at: forward}\n- {step: 3, replica: 0, at: before_sync}\n"
    )
    assert len(parse_schedule(text, SHAPE)) == 2


@pytest.mark.parametrize("at", ["optimizer", "after_commit", "before_commit"])
def test_a_death_at_the_end_of_a_step_sets_off_the_next(at: str) -> None:
    text = f"- {{step: 2, replica: 0, at: {at}}}\n- {{step: 3, replica: 1, at: during_repair}}\n"
    assert len(parse_schedule(text, SHAPE)) == 2


GOOD = "- {step: 1, replica: 0, at: forward}\n"
MISTAKES = {
    "- {step: 1, replica: 4, at: forward}": "entry 1: replica 4 does not exist, there are 4",
    "- {step: 1, replica: 0, rank: 2, at: forward}": "entry 1: rank 2 does not exist, there are 2",
    "- {step: 10, replica: 0, at: forward}": "entry 1: step 10 does not exist, there are 10",
    "- {step: -1, replica: 0, at: forward}": "entry 1: step is -1; it must be a whole number",
    "- {step: 1.5, replica: 0, at: forward}": "entry 1: step is 1.5; it must be a whole number",
    "- {step: yes, replica: 0, at: forward}": "entry 1: step is True; it must be a whole number",
    "- {step: 1, replica: zero, at: forward}": "entry 1: replica is 'zero'; it must be",
    "- {step: 1, replica: 0, at: lunch}": "entry 1: at is 'lunch'; use one of forward, before_sync",
    "- {step: 1, replica: 0, at: [1]}": r"entry 1: at is \[1\]; use one of",
    "- {step: 1, replica: 0, at: forward, node: 1}": "entry 1: unknown key 'node'; the keys are",
    "- {step: 1, at: forward}": "entry 1: 'replica' is missing; an entry needs",
    "- {step: 1, replica: 0, at: forward, bucket: 1}": "bucket has no meaning at forward",
    "- {step: 1, replica: 0, at: optimizer, microbatch: 1}": "microbatch has no meaning at optim",
    GOOD + "- {step: 5, replica: 0, at: forward}": "entry 2: rank 0 of replica 0 dies in entry 1",
    GOOD + "- {step: 5, replica: 0, rank: 1, at: forward}": "entry 2: replica 0 is gone since",
    GOOD + "- {step: 5, replica: 1, at: during_repair}": "entry 2: during_repair is never reached",
    "- {step: 5, replica: 1, at: during_restore}": "entry 1: during_restore is never reached",
    GOOD + "- {step: 1, replica: 0, rank: 1, at: during_repair}": "during_repair is never reached",
    "- 7": "entry 1: 7 is not a mapping",
    "step: 1": "is a dict; write a list",
    "7": "is a int; write a list",
    "": "is empty; write a list",
    "- {step: 1,": "is not valid YAML",
    "".join(f"- {{step: 1, replica: {r}, at: forward}}\n" for r in range(4)): "all 4 replicas die",
}


@pytest.mark.parametrize("text", MISTAKES, ids=list(MISTAKES.values()))
def test_each_mistake_gets_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "failures.yaml"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=MISTAKES[text]) as caught:
        load_schedule(path, SHAPE)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"no.yaml: cannot be read: No such file"):
        load_schedule(tmp_path / "no.yaml", SHAPE)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match="is not UTF-8"):
        load_schedule(tmp_path / "binary.yaml", SHAPE)


def test_an_empty_shape_is_refused() -> None:
    with pytest.raises(ScheduleError, match="replicas is 0; it must be at least 1"):
        Shape(replicas=0, steps=1)


SHAPES = st.builds(
    Shape,
    replicas=st.integers(1, 12),
    replica_size=st.integers(1, 4),
    steps=st.integers(1, 30),
)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Shape, Schedule]:
    shape = draw(SHAPES)
    places = draw(st.lists(st.sampled_from(list(At)), min_size=1, unique=True))
    first = draw(st.integers(0, shape.steps - 1))
    schedule = generate(
        shape,
        seed=draw(st.integers()),
        count=draw(st.integers(0, shape.replicas - 1)),
        first_step=first,
        last_step=draw(st.integers(first, shape.steps - 1)),
        weights={at: draw(st.floats(0.1, 10)) for at in places},
    )
    return shape, schedule


@pytest.mark.property
@settings(max_examples=200, deadline=None)
@given(drawn())
def test_a_drawn_schedule_is_one_that_could_be_written(case: tuple[Shape, Schedule]) -> None:
    shape, schedule = case
    assert parse_schedule(dump_schedule(schedule), shape) == schedule
    assert len({kill.replica for kill in schedule}) == len(schedule) < shape.replicas


@pytest.mark.property
@settings(max_examples=100, deadline=None)
@given(SHAPES, st.integers(), st.data())
def test_the_draw_depends_on_its_arguments_alone(
    shape: Shape, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, shape.replicas - 1))
    first = generate(shape, seed=seed, count=count)
    assert len(first) == count
    assert generate(shape, seed=seed, count=count) == first


def test_the_draw_is_the_same_in_every_process_and_version() -> None:
    shape = Shape(replicas=6, replica_size=2, steps=20)
    assert dump_schedule(generate(shape, seed=1, count=4)) == PINNED


PINNED = """\
- {step: 2, replica: 4, rank: 0, at: after_commit}
- {step: 9, replica: 3, rank: 1, at: during_sync}
- {step: 9, replica: 0, rank: 0, at: during_repair}
- {step: 16, replica: 5, rank: 0, at: after_sync}
"""


def test_weights_choose_the_places() -> None:
    shape = Shape(replicas=40, steps=5)
    kills = generate(shape, seed=3, count=39, weights={"forward": 3, "optimizer": 1})
    found = [kill.at for kill in kills]
    assert set(found) == {At.FORWARD, At.OPTIMIZER}
    assert found.count(At.FORWARD) > found.count(At.OPTIMIZER)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 4}, "count is 4; 4 replicas can lose 0 to 3"),
        ({"count": -1}, "count is -1"),
        ({"count": 1, "first_step": 5, "last_step": 4}, "steps 5 to 4 are no range"),
        ({"count": 1, "last_step": 10}, "steps 0 to 10 are no range inside 0 to 9"),
        ({"count": 1, "weights": {"lunch": 1}}, "at is 'lunch'"),
        ({"count": 1, "weights": {"forward": -1}}, "the weight of forward is -1"),
        ({"count": 1, "weights": {"forward": 0}}, "no place has a weight above 0"),
    ],
)
def test_a_draw_that_cannot_be_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        generate(SHAPE, seed=0, **arguments)  # type: ignore[arg-type]


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "grad_txn.failures", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_the_command_prints_what_the_function_draws() -> None:
    done = run_module("--replicas", "4", "--count", "3", "--seed", "1", "--at", "during_sync=2")
    shape = Shape(replicas=4, steps=20)
    assert parse_schedule(done.stdout, shape) == generate(
        shape, seed=1, count=3, weights={"during_sync": 2}
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_refuses_bad_arguments_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--replicas", "4", "--count", "4"]) == 2
    assert main(["--replicas", "0", "--count", "0"]) == 2
    assert main(["--replicas", "4", "--count", "1", "--at", "forward=x"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: count is 4; 4 replicas can lose 0 to 3, one has to survive",
        "error: replicas is 0; it must be at least 1",
        "error: the weight of forward is 'x'; give a number",
    ]

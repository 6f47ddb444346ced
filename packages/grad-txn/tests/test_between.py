"""What a loop does between the steps: the same on all who live, wherever somebody dies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grad_txn.errors import UsageError
from grad_txn.failures import At, Kill
from grad_txn.job import Job
from grad_txn.log.events import EventLog
from grad_txn.log.verify import verify
from grad_txn.reduction import Op
from grad_txn.testing.gradients import PlainGradients
from grad_txn.testing.world import RankThread, ThreadInjector, ThreadWorld
from ulfm_core import ReplicaCondemnedError
from workload_policy import load_policy

pytestmark = pytest.mark.torch

Use = Callable[[Job, RankThread, int], Any]


def run(
    out: Path,
    use: Use,
    *,
    replicas: int = 3,
    replica_size: int = 1,
    steps: int = 3,
    kills: tuple[Kill, ...] = (),
    lost: Callable[[int, int, int], bool] | None = None,
) -> dict[int, list[Any]]:
    """Train, and do something after each step; return what came of it, by rank."""

    def program(rank: RankThread) -> list[Any]:
        try:
            return train(rank)
        except ReplicaCondemnedError:
            rank.die()

    def train(rank: RankThread) -> list[Any]:
        model = torch.nn.Linear(2, 1)
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        log = EventLog(out, rank.rank)
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("exact"),
            grad_accum=2,
            log=log,
            injector=ThreadInjector(kills, rank, log),
        )
        seen = []
        for step in job.steps(steps):
            for microbatch in step:
                step.backward(model(torch.full((1, 2), float(microbatch))).mean() * 1e-3)
            seen.append(use(job, rank, step.number))
        job.finish(list(model.parameters()))
        return seen

    return ThreadWorld(replicas, replica_size=replica_size, lost=lost).run(program)


def dies_at(rank: RankThread, number: int, *, before: bool) -> None:
    """Let a rank die in its message or agreement with this number from now on, from 0."""
    count = 0

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def until_killed(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            mine, count = count, count + 1
            if mine == number and before:
                rank.die()
            result = call(*arguments, **named)
            if mine == number:
                if hasattr(result, "wait"):
                    result.wait()
                rank.die()
            return result

        return until_killed

    for name in ("all_reduce", "broadcast", "agree", "repair"):
        setattr(rank, name, wrapped(getattr(rank, name)))


def part(rank: RankThread) -> Tensor:
    return torch.tensor([10.0**rank.rank, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 2])
def test_it_runs_over_all_ranks_of_all_replicas(size: int, tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, _step: int) -> tuple[list[float], tuple[int, ...]]:
        given = part(rank)
        reduced = job.reduce(given)
        assert torch.equal(given, part(rank))
        return reduced.value.tolist(), reduced.replicas

    seen = run(tmp_path, use, replicas=4 // size, replica_size=size)
    expected = ([1111.0, 4.0], tuple(range(4 // size)))
    assert seen == {rank: [expected] * 3 for rank in range(4)}


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("sum", torch.int64, 6),
        ("mean", torch.float32, 2.0),
        ("mean", torch.bfloat16, 2.0),
        ("min", torch.float64, 1.0),
        ("max", torch.int32, 3),
    ],
)
def test_operations(op: Op, dtype: torch.dtype, expected: float, tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, _step: int) -> Tensor:
        return job.reduce(torch.tensor(rank.rank + 1, dtype=dtype), op).value

    for seen in run(tmp_path, use, steps=1).values():
        assert (seen[0].dtype, seen[0].shape, seen[0].item()) == (dtype, (), expected)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(("victim", "size"), [(0, 1), (1, 1), (3, 2)])
def test_a_death_on_any_line(
    victim: int, size: int, number: int, before: bool, tmp_path: Path
) -> None:
    def use(job: Job, rank: RankThread, step: int) -> tuple[list[float], tuple[int, ...]]:
        if (rank.rank, step) == (victim, 1):
            dies_at(rank, number, before=before)
        reduced = job.reduce(part(rank))
        assert rank.rank // size in job.plan.members
        # Repaired there and then, unless it died after the agreement.
        if step == 1 and (before or number < 2):
            assert victim not in rank.members
            assert victim // size not in job.plan.members
        return reduced.value.tolist(), reduced.replicas

    seen = run(tmp_path, use, replica_size=size)
    alive = [rank for rank in range(3 * size) if rank // size != victim // size]
    assert sorted(seen) == alive
    first = seen[alive[0]]
    assert all(one == first for one in seen.values())
    rest = ([float(sum(10**rank for rank in alive)), float(len(alive))], _living(alive, size))
    whole = ([float(sum(10**rank for rank in range(3 * size))), 3.0 * size], (0, 1, 2))
    # Once every living rank has it, it stands: with the tensor of who died after giving it.
    stands = number == 2 or (number == 1 and not before)
    assert first == [whole, whole if stands else rest, rest]
    assert verify(tmp_path).problems == ()


def _living(ranks: list[int], size: int) -> tuple[int, ...]:
    return tuple(sorted({rank // size for rank in ranks}))


@pytest.mark.parametrize("second", range(5))
def test_another_one_dies_in_the_repetition(second: int, tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, step: int) -> tuple[list[float], tuple[int, ...]]:
        if step == 1 and rank.rank == 0:
            dies_at(rank, 1, before=True)
        if step == 1 and rank.rank == 2:
            dies_at(rank, second + 3, before=True)  # its repair, and what follows it
        reduced = job.reduce(part(rank))
        return reduced.value.tolist(), reduced.replicas

    seen = run(tmp_path, use, replicas=4)
    assert seen[1] == seen[3]
    assert seen[1][2] == ([1010.0, 2.0], (1, 3))
    both = ([1010.0, 2.0], (1, 3))
    assert seen[1][1] in ([both] if second < 2 else [both, ([1110.0, 3.0], (1, 2, 3))])
    assert verify(tmp_path).problems == ()


def test_who_alone_saw_a_failure_repeats_with_all_others(tmp_path: Path) -> None:
    armed = False

    def lost(rank: int, epoch: int, _number: int) -> bool:
        return armed and rank == 1 and epoch == 0

    def use(job: Job, rank: RankThread, step: int) -> list[float]:
        nonlocal armed
        armed = step == 1
        values: list[float] = job.reduce(part(rank)).value.tolist()
        return values

    seen = run(tmp_path, use, steps=2, lost=lost)
    assert seen == {rank: [[111.0, 3.0]] * 2 for rank in range(3)}


@pytest.mark.parametrize("at", [At.BEFORE_COMMIT, At.AFTER_COMMIT, At.OPTIMIZER])
def test_who_died_with_the_step_is_not_waited_for(at: At, tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, _step: int) -> tuple[list[float], tuple[int, ...]]:
        reduced = job.reduce(part(rank))
        return reduced.value.tolist(), reduced.replicas

    seen = run(tmp_path, use, kills=(Kill(step=1, replica=0, at=at),))
    assert sorted(seen) == [1, 2]
    for one in seen.values():
        assert one[1:] == [([110.0, 2.0], (1, 2))] * 2
    assert verify(tmp_path).problems == ()


def test_the_last_one_reduces_alone(tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, step: int) -> list[float]:
        if rank.rank == step:
            rank.die()
        values: list[float] = job.reduce(part(rank)).value.tolist()
        return values

    seen = run(tmp_path, use)
    assert seen == {}
    seen = run(tmp_path / "two", use, steps=2)
    assert seen == {2: [[110.0, 2.0], [100.0, 1.0]]}


@pytest.mark.parametrize(
    ("tensor", "op", "message"),
    [
        (torch.ones(1), "avg", "op is 'avg'; use one of sum"),
        (torch.ones(1, dtype=torch.int64), "mean", "convert it first"),
        (torch.ones(1, dtype=torch.bool), "sum", "convert it to a float"),
    ],
)
def test_what_cannot_be_reduced(tensor: Tensor, op: Any, message: str, tmp_path: Path) -> None:
    def use(job: Job, _rank: RankThread, _step: int) -> None:
        with pytest.raises(UsageError, match=message):
            job.reduce(tensor, op)

    run(tmp_path, use, steps=1)


def test_different_things_are_refused_on_all_ranks(tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, _step: int) -> None:
        with pytest.raises(UsageError, match="reduce different things"):
            job.reduce(torch.ones(2 if rank.rank == 1 else 3))

    assert len(run(tmp_path, use, steps=1)) == 3


def test_inside_a_step_it_is_refused(tmp_path: Path) -> None:
    def program(rank: RankThread) -> None:
        model = torch.nn.Linear(2, 1)
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("exact"),
            grad_accum=1,
            log=EventLog(tmp_path, rank.rank),
        )
        assert job.reduce(torch.ones(1)).value.item() == 1  # before the first step
        for _ in next(job.steps(1)):
            with pytest.raises(UsageError, match=r"job.reduce\(\) inside step 0"):
                job.reduce(torch.ones(1))
            with pytest.raises(UsageError, match=r"job.note\(\) inside step 0"):
                job.note("best", 1)
            return

    ThreadWorld(1).run(program)


def test_a_note_is_the_leaders_and_everyones(tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, step: int) -> Any:
        mine = {"path": f"run/{rank.rank}", "loss": 0.1 + step} if rank.rank == 0 else None
        kept = job.note("best", mine)
        assert job.note("best", None) == kept == job.notes["best"]
        job.notes["best"]["path"] = "elsewhere"  # of a copy
        assert job.state_dict()["notes"] == job.notes
        return kept

    expected = [{"path": "run/0", "loss": 0.1 + step} for step in range(3)]
    assert run(tmp_path, use) == dict.fromkeys(range(3), expected)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("number", range(3))
def test_the_leader_dies_on_any_line_of_a_note(number: int, before: bool, tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, step: int) -> Any:
        if (rank.rank, step) == (0, 1):
            dies_at(rank, number, before=before)
        known = f"{step} by {rank.rank}" if job.leads else None
        return job.note("best", known), dict(job.notes)

    seen = run(tmp_path, use)
    assert sorted(seen) == [1, 2]
    assert seen[1] == seen[2]
    # The next leader holds the last note that stood. It did not lead when it was asked.
    stands = number == 2 or (number == 1 and not before)
    values = ["0 by 0", "1 by 0" if stands else "0 by 0", "2 by 1"]
    assert seen[1] == [(value, {"best": value}) for value in values]
    assert verify(tmp_path).problems == ()


def test_notes_are_resumed(tmp_path: Path) -> None:
    def use(job: Job, _rank: RankThread, _step: int) -> Any:
        job.note("best", [1, 0.1])
        state = job.state_dict()
        job.note("best", 2)
        job.load_state_dict(state)
        return job.notes

    assert run(tmp_path, use, steps=1) == {rank: [{"best": [1, 0.1]}] for rank in range(3)}


def test_what_cannot_be_noted(tmp_path: Path) -> None:
    def use(job: Job, rank: RankThread, _step: int) -> None:
        key: Any = 3
        with pytest.raises(UsageError, match="give a string"):
            job.note(key, 1)
        with pytest.raises(UsageError, match="no JSON"):
            job.note("best", torch.ones(1))
        if rank.rank == 0:
            job.note("best", 1)
        else:
            with pytest.raises(UsageError, match="'last' and the leader 'best'"):
                job.note("last", 1)

    run(tmp_path, use, steps=1)

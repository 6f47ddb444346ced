"""Replicas that no longer hold the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from grad_txn.errors import DivergenceError, UsageError
from grad_txn.failures import At, Kill
from grad_txn.job import Job
from grad_txn.log.events import EventLog
from grad_txn.log.verify import verify
from grad_txn.sameness import Sameness, Verdict
from grad_txn.testing.events import read_events
from grad_txn.testing.gradients import PlainGradients
from grad_txn.testing.world import RankThread, ThreadInjector, ThreadWorld
from ulfm_core import ReplicaCondemnedError
from workload_policy import load_policy

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

Damage = Callable[[int, int, nn.Module, torch.optim.Optimizer], None]
"""Given rank, step, model and optimizer, right before the step."""


def train(
    out: Path,
    damage: Damage,
    *,
    replicas: int = 4,
    replica_size: int = 1,
    steps: int = 6,
    check_every: int = 2,
    kills: tuple[Kill, ...] = (),
) -> dict[int, torch.Tensor | str]:
    """Return the parameters of ranks that finished, or why others did not; by rank."""

    def program(rank: RankThread) -> torch.Tensor | str:
        model = nn.Linear(5, 3)
        for parameter in model.parameters():  # threads share the one generator
            filling = torch.linspace(-0.5, 0.5, parameter.numel())
            parameter.data.copy_(filling.view_as(parameter))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        log = EventLog(out, rank.rank)
        job = Job(
            rank,
            PlainGradients(model),
            optimizer,
            policy=load_policy("exact"),
            grad_accum=3,
            log=log,
            check_every=check_every,
            injector=ThreadInjector(kills, rank, log),
        )
        try:
            for step in job.steps(steps):
                damage(rank.rank, step.number, model, optimizer)
                for microbatch in step:
                    data = torch.full((5,), float(microbatch) / 7)
                    step.backward(model(data).square().mean())
            job.finish(list(model.parameters()))
        except (ReplicaCondemnedError, DivergenceError) as error:
            return str(error)
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    return ThreadWorld(replicas, replica_size=replica_size).run(program)


def flips(rank: int, step: int) -> Damage:
    """Return what flips one bit of a weight of one rank."""

    def damage(at: int, number: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if (at, number) == (rank, step):
            bits = model.get_parameter("weight").data.view(torch.int32)
            bits[0, 0] ^= 8  # a small one, but one that an update does not round away

    return damage


def nothing(*_: object) -> None:
    pass


def test_a_flipped_bit_costs_one_replica_and_nothing_else(tmp_path: Path) -> None:
    expected = train(tmp_path / "reference", nothing)
    found = train(tmp_path / "run", flips(2, 3))
    reason = found.pop(2)
    assert isinstance(reason, str)
    assert reason.startswith("replica 2 holds other parameters or another optimizer state before")
    assert "before step 4, since they were compared before step 2" in reason
    assert sorted(found) == [0, 1, 3]
    for rank, parameters in found.items():
        assert torch.allclose(parameters, expected[rank], rtol=1e-5, atol=1e-7)  # type: ignore[arg-type]
    events = read_events(tmp_path / "run")[0]
    told = [event for event in events if event["event"] == "differ"]
    assert [(one["step"], one["replicas"], one["same_before"]) for one in told] == [(4, [2], 2)]
    assert not verify(tmp_path / "run").problems


def test_the_optimizer_state_counts(tmp_path: Path) -> None:
    def damage(rank: int, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if (rank, step) == (1, 2):
            optimizer.state[model.bias]["exp_avg_sq"][0] *= 1.0000002  # type: ignore[index]

    found = train(tmp_path, damage, replicas=3)
    assert isinstance(found[1], str)
    assert isinstance(found[0], torch.Tensor)


def test_other_parameters_at_the_start_are_found_before_the_first_commit(tmp_path: Path) -> None:
    found = train(tmp_path, flips(0, 0), replicas=3, check_every=0)
    assert isinstance(found[0], str)
    assert "before step 0, from the start" in found[0]
    assert isinstance(found[2], torch.Tensor)


def test_a_setting_that_differs_later_shows_at_the_next_comparison(tmp_path: Path) -> None:
    def damage(rank: int, step: int, _: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if (rank, step) == (3, 1):
            optimizer.param_groups[0]["weight_decay"] = 0.3

    found = train(tmp_path, damage)
    assert isinstance(found[3], str)
    assert "before step 2" in found[3]


def test_one_position_takes_its_replica_along(tmp_path: Path) -> None:
    found = train(tmp_path, flips(3, 1), replicas=3, replica_size=2)  # replica 1, position 1
    assert sorted(rank for rank, one in found.items() if isinstance(one, torch.Tensor)) == [
        0, 1, 4, 5,
    ]  # fmt: skip


@pytest.mark.parametrize("replicas", [2, 4])
def test_without_a_majority_all_stop_and_say_since_when(tmp_path: Path, replicas: int) -> None:
    def damage(rank: int, step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if step == 2 and rank >= replicas // 2:
            model.get_parameter("bias").data[0] += 1

    found = train(tmp_path, damage, replicas=replicas)
    assert len(found) == replicas
    for reason in found.values():
        assert isinstance(reason, str)
        assert "no majority holds the same" in reason
        assert "go on from a checkpoint" in reason
    commits = [e for e in read_events(tmp_path)[0] if e["event"] in ("step", "commit")]
    assert max(event["step"] for event in commits) == 1


def test_a_death_amid_the_comparison_changes_nothing(tmp_path: Path) -> None:
    for at in (At.AFTER_SYNC, At.BEFORE_COMMIT, At.DURING_REPAIR):
        kills = (Kill(step=4, replica=4, position=0, at=at),)
        found = train(tmp_path / at.value, flips(2, 3), replicas=5, kills=kills)
        if at is At.DURING_REPAIR:  # there is a repair only because of the difference
            assert 4 not in found
        assert isinstance(found[2], str)
        assert sum(isinstance(one, torch.Tensor) for one in found.values()) == 3
        assert not verify(tmp_path / at.value).problems


def test_the_last_step_is_not_compared_for_nothing(tmp_path: Path) -> None:
    def damage(rank: int, step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if (rank, step) == (1, 5):
            model.get_parameter("bias").data[0] += 1

    found = train(tmp_path, damage, check_every=100)
    assert all(isinstance(one, torch.Tensor) for one in found.values())
    assert verify(tmp_path).problems  # the final digests differ, which the log shows


@pytest.mark.parametrize(
    ("summed", "verdict"),
    [
        ((), Verdict()),
        ((5,), Verdict()),
        ((5, 5, 5), Verdict()),
        ((5, 6, 5), Verdict(differing=(4,))),
        ((5, 6), Verdict(differing=(1, 4), majority=False)),
        ((5, 6, 7), Verdict(differing=(1, 4, 9), majority=False)),
        ((5, 5, 6, 6), Verdict(differing=(1, 4, 9, 12), majority=False)),
    ],
)
def test_verdicts(summed: tuple[int, ...], verdict: Verdict) -> None:
    members = (1, 4, 9, 12)[: len(summed)]
    sameness = Sameness(list, every=10)
    assert sameness.judge(20, members, summed) == verdict
    assert sameness.same_before == (20 if summed and verdict.same else None)


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(UsageError, match="check_every is -1"):
        Sameness(list, every=-1)

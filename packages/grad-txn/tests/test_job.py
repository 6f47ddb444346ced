"""Whole jobs over ranks that are threads: what dies when, and what is committed all the same."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from grad_txn.errors import DivergenceError, InvariantError, StartError, UsageError
from grad_txn.failures import At, Kill, Shape, generate
from grad_txn.job import Job
from grad_txn.log.events import EventLog, read_events
from grad_txn.log.lines import (
    CommitLine,
    ExitLine,
    ExtendLine,
    FailureLine,
    InjectLine,
    Line,
    StepLine,
)
from grad_txn.log.verify import verify
from grad_txn.passes import Pass
from grad_txn.staging import STAGINGS, StagingMode
from grad_txn.testing.gradients import PlainGradients
from grad_txn.testing.world import RankThread, ThreadInjector, ThreadWorld
from workload_policy import load_policy

pytestmark = pytest.mark.torch

OUTSIDE = [at for at in At if not at.in_recovery]
INSIDE = [at for at in At if at.in_recovery]


@dataclass(kw_only=True)
class Seen:
    """An observer, and what one rank had in the end."""

    steps: list[CommitLine] = field(default_factory=list)
    failures: list[FailureLine] = field(default_factory=list)
    parameters: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    state: Mapping[str, Any] = field(default_factory=dict)

    def step(self, line: CommitLine) -> None:
        self.steps.append(line)

    def failure(self, line: FailureLine, *, seconds: float) -> None:
        assert seconds >= 0
        self.failures.append(line)


def train(
    out: Path,
    *,
    replicas: int = 4,
    replica_size: int = 1,
    grad_accum: int = 3,
    steps: int = 5,
    policy: str = "static",
    staging: StagingMode = "no-copy",
    kills: Iterable[Kill] = (),
    lost: Callable[[int, int, int], bool] | None = None,
    state: Mapping[str, Any] | None = None,
    weights: torch.Tensor | None = None,
    initial: int | None = None,
    until: int | None = None,
    at_once: bool = False,
) -> dict[int, Seen]:
    """Train on threads and return what the survivors had, by rank."""
    kills = tuple(kills)

    def program(rank: RankThread) -> Seen:
        seen = Seen()
        model = small_model()
        if weights is not None:
            nn.utils.vector_to_parameters(weights.clone(), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        log = EventLog(out, rank.rank)
        job = Job(
            rank,
            PlainGradients(model),
            optimizer,
            policy=load_policy(policy),
            grad_accum=grad_accum,
            replicas=initial,
            log=log,
            max_norm=1.0,
            staging=staging,
            injector=ThreadInjector(kills, rank, log),
            observers=[seen],
        )
        if state is not None:
            job.load_state_dict(state)
        job.share(model.parameters())
        for step in job.steps(steps):
            if at_once:
                for work in step.passes():
                    work.finish(afab(model, work))
            else:
                for microbatch in step:
                    step.backward(loss_of(model, microbatch))
            if step.number + 1 == until:
                break_off(rank, step.number)
                seen.state = job.state_dict()
                seen.parameters = flat(model)
                return seen
        job.finish(list(model.parameters()))
        seen.parameters = flat(model)
        return seen

    return ThreadWorld(replicas, replica_size=replica_size, lost=lost).run(program)


def afab(model: nn.Module, work: Pass) -> list[torch.Tensor]:
    """All forwards, then all backwards, as a pipeline might."""
    losses = [loss_of(model, microbatch) for microbatch in work]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    return losses


def break_off(rank: RankThread, _step: int) -> None:
    """Wait for the others, or whoever ends first is dead to them."""
    rank.agree(True)


def small_model() -> nn.Module:
    draw = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    return model


def loss_of(model: nn.Module, microbatch: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(microbatch)
    inputs = torch.randn(8, 4, generator=draw, dtype=torch.float64)
    loss: torch.Tensor = ((model(inputs).squeeze(-1) - inputs.sum(-1)) ** 2).mean()
    return loss


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def lines_of(out: Path, rank: int) -> list[Line]:
    return [entry.line for entry in read_events(out)[rank]]


def steps_of(out: Path, rank: int) -> list[StepLine]:
    return [line for line in lines_of(out, rank) if isinstance(line, StepLine)]


def serial(grad_accum: int, replicas: int, steps: int) -> tuple[torch.Tensor, list[float]]:
    """What plain torch makes of the same microbatches, on one process."""
    model, batch = small_model(), grad_accum * replicas
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        mean = torch.stack([loss_of(model, step * batch + i) for i in range(batch)]).mean()
        mean.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(mean.detach()))
    return flat(model), losses


def of_all(out: Path) -> dict[int, tuple[list[StepLine], list[CommitLine]]]:
    """Step -> what its replicas, and then its leader, say of the commit that the others saw."""
    ranks = sorted(int(path.stem) for path in (out / "events").iterdir())
    lines = [line for rank in ranks for line in lines_of(out, rank)]
    last = {line.step: line.epoch for line in lines if isinstance(line, StepLine)}
    for line in lines:
        if isinstance(line, StepLine):
            last[line.step] = max(last[line.step], line.epoch)
    return {
        step: (
            [x for x in lines if isinstance(x, StepLine) and (x.step, x.epoch) == (step, epoch)],
            [x for x in lines if isinstance(x, CommitLine) and (x.step, x.epoch) == (step, epoch)],
        )
        for step, epoch in last.items()
    }


def replayed(out: Path, batch: int) -> tuple[torch.Tensor, dict[int, float], dict[int, float]]:
    """What plain torch makes of the microbatches that the log says were committed.

    Who dies between the agreement and its line leaves none: it did what the others left out, the
    lowest ids but those that a failure has put off.

    Returns:
        The parameters; step -> loss; and step -> loss as it was logged, where it was.
    """
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, logged, done = {}, {}, set[int]()
    told = [line for path in (out / "events").iterdir() for line in lines_of(out, int(path.stem))]
    for step, (own, commits) in sorted(of_all(out).items()):
        counted = [i for line in own for first, last in line.ids for i in range(first, last + 1)]
        complete = len(counted) == batch
        later = {
            i
            for line in told
            if isinstance(line, FailureLine) and line.step == step
            for i in line.queued
        }
        rest = (i for i in itertools.count() if i not in done | later and i not in counted)
        counted += itertools.islice(rest, batch - len(counted))
        done.update(counted)
        optimizer.zero_grad()
        mean = torch.stack([loss_of(model, microbatch) for microbatch in counted]).mean()
        mean.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses[step] = float(mean.detach())
        if complete:
            logged[step] = sum(one.loss_sum for one in own) / sum(one.weight_sum for one in own)
            assert all(line.loss == pytest.approx(logged[step], rel=1e-9) for line in commits)
        elif commits:
            logged[step] = commits[0].loss
    return flat(model), losses, logged


def check(out: Path, survivors: Mapping[int, Seen], expected: Iterable[int]) -> None:
    assert set(survivors) == set(expected)
    verdict = verify(out)
    assert verdict.problems == ()
    first, *others = [seen.parameters for seen in survivors.values()]
    assert all(torch.equal(first, other) for other in others)
    # What was trained is what the log says was committed: no spare slipped in, nothing twice.
    if verdict.runs == 1:
        parameters, losses, logged = replayed(out, verdict.global_batch)
        torch.testing.assert_close(first, parameters)
        # Only a leader that died before its line takes the loss of a step with it.
        assert len(losses) - len(logged) <= verdict.failures
        assert logged == pytest.approx({step: losses[step] for step in logged}, rel=1e-9)


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("at", list(At))
def test_whole_passes_lead_to_the_same(at: At, staging: StagingMode, tmp_path: Path) -> None:
    kills = [Kill(step=2, replica=1, at=at)]
    if at.in_recovery:
        kills.append(Kill(step=2, replica=2, at=At.DURING_SYNC))
    runs = {
        at_once: train(
            tmp_path / str(at_once), policy="exact", staging=staging, kills=kills, at_once=at_once
        )
        for at_once in (False, True)
    }
    for at_once, survivors in runs.items():
        check(tmp_path / str(at_once), survivors, set(range(4)) - {kill.replica for kill in kills})
    torch.testing.assert_close(runs[True][0].parameters, runs[False][0].parameters)


def test_a_replica_without_extra_microbatches_only_reduces_again(tmp_path: Path) -> None:
    # One microbatch is lost, which one of three survivors computes again.
    kills = [Kill(step=1, replica=3, at=At.FORWARD)]
    survivors = train(tmp_path, grad_accum=1, policy="exact", kills=kills, at_once=True)
    check(tmp_path, survivors, range(3))
    extended = [
        [line.microbatches for line in lines_of(tmp_path, rank) if isinstance(line, ExtendLine)]
        for rank in range(3)
    ]
    assert sorted(extended) == [[0], [0], [1]]


def test_the_victim_dies_between_the_microbatches_of_a_pass(tmp_path: Path) -> None:
    kills = [Kill(step=1, replica=0, at=At.FORWARD, microbatch=2)]
    taken: list[int] = []

    def program(rank: RankThread) -> None:
        model, log = small_model(), EventLog(tmp_path, rank.rank)
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("exact"),
            grad_accum=3,
            log=log,
            injector=ThreadInjector(kills, rank, log),
        )
        for step in job.steps(2):
            for work in step.passes():
                losses = []
                for microbatch in work:
                    if rank.rank == 0 and step.number == 1:
                        taken.append(microbatch)
                    losses.append(loss_of(model, microbatch))
                    losses[-1].backward()  # type: ignore[no-untyped-call]
                work.finish(losses)
        job.finish(list(model.parameters()))

    ThreadWorld(2).run(program)
    assert taken == [6, 7]
    assert verify(tmp_path).problems == ()


@pytest.mark.parametrize(
    ("taken", "losses", "message"),
    [(2, 3, "2 were taken"), (3, 2, "2 losses given"), (3, None, "finish.. was not called")],
)
def test_a_pass_is_finished_as_a_whole(
    taken: int, losses: int | None, message: str, tmp_path: Path
) -> None:
    def program(rank: RankThread) -> None:
        model = small_model()
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("static"),
            grad_accum=3,
            log=EventLog(tmp_path, rank.rank),
        )

        def take_and_finish() -> None:
            for work in next(job.steps(1)).passes():
                ids = iter(work)
                for _ in range(taken):
                    loss_of(model, next(ids)).backward()  # type: ignore[no-untyped-call]
                if losses is not None:
                    work.finish([torch.tensor(0.0)] * losses)

        with pytest.raises(UsageError, match=message):
            take_and_finish()

    ThreadWorld(1).run(program)


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("policy", ["static", "exact", "adaptive"])
def test_without_failures_it_is_plain_training(
    policy: str, staging: StagingMode, tmp_path: Path
) -> None:
    ends = train(tmp_path, policy=policy, staging=staging)
    parameters, losses = serial(3, 4, 5)
    check(tmp_path, ends, range(4))
    torch.testing.assert_close(ends[0].parameters, parameters)
    assert [line.loss for line in ends[0].steps] == pytest.approx(losses, rel=1e-12)


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("at", OUTSIDE)
def test_exact_trains_as_if_nobody_had_died(
    at: At, victim: int, staging: StagingMode, tmp_path: Path
) -> None:
    kills = [Kill(step=2, replica=victim, at=at)]
    ends = train(tmp_path, policy="exact", staging=staging, kills=kills)
    check(tmp_path, ends, {0, 1, 2, 3} - {victim})
    parameters, losses = serial(3, 4, 5)
    _, _, logged = replayed(tmp_path, 12)
    assert logged == pytest.approx({step: losses[step] for step in logged}, rel=1e-9)
    torch.testing.assert_close(ends[1].parameters, parameters)


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("policy", ["static", "exact"])
@pytest.mark.parametrize("inside", INSIDE)
def test_a_second_death_in_the_recovery(
    inside: At, policy: str, staging: StagingMode, tmp_path: Path
) -> None:
    kills = [Kill(step=2, replica=1, at=At.FORWARD), Kill(step=2, replica=0, at=inside)]
    ends = train(tmp_path, policy=policy, staging=staging, kills=kills)
    check(tmp_path, ends, {2, 3})


@pytest.mark.parametrize("staging", STAGINGS)
def test_a_promoted_spare_needs_no_extra_microbatch(staging: StagingMode, tmp_path: Path) -> None:
    # After the first death five replicas do 12 microbatches: four majors of 3, and a spare.
    kills = [
        Kill(step=1, replica=0, at=At.DURING_SYNC, bucket=1),
        Kill(step=3, replica=2, at=At.DURING_SYNC, bucket=2),
    ]
    ends = train(tmp_path, replicas=6, grad_accum=2, staging=staging, kills=kills)
    check(tmp_path, ends, {1, 3, 4, 5})
    first, second = (line for line in ends[1].failures)
    assert first.boundary
    assert first.restore == "non_blocking"
    assert not second.boundary
    assert second.restore == "blocking"
    assert second.promoted == {2: 5}
    assert not second.extra_ids


def test_a_death_between_commit_and_optimizer_belongs_to_the_next_step(tmp_path: Path) -> None:
    for at in (At.AFTER_COMMIT, At.OPTIMIZER):
        out = tmp_path / at
        ends = train(out, kills=[Kill(step=2, replica=3, at=at)])
        assert [line.step for line in ends[0].failures] == [3]
        assert ends[0].steps[2].living == 4


def test_a_death_right_before_the_commit_leaves_the_step_standing(tmp_path: Path) -> None:
    ends = train(tmp_path, kills=[Kill(step=2, replica=3, at=At.BEFORE_COMMIT)])
    check(tmp_path, ends, {0, 1, 2})
    # The victim counted in it, and died before it could say so.
    assert [len(steps_of(tmp_path, rank)) for rank in range(4)] == [5, 5, 5, 2]
    assert [steps_of(tmp_path, rank)[2].microbatches for rank in range(3)] == [3, 3, 3]
    assert [line.step for line in ends[0].failures] == [3]


@pytest.mark.parametrize("at", [At.BEFORE_COMMIT, At.AFTER_COMMIT, At.OPTIMIZER])
def test_a_death_at_the_very_end_is_noticed_in_finish(at: At, tmp_path: Path) -> None:
    ends = train(tmp_path, kills=[Kill(step=4, replica=0, at=at)])
    check(tmp_path, ends, {1, 2, 3})
    assert len(steps_of(tmp_path, 1)) == 5
    last = [line for line in lines_of(tmp_path, 1) if isinstance(line, FailureLine)][-1]
    assert last.failed == (0,)


def test_down_to_the_last_one(tmp_path: Path) -> None:
    kills = [
        Kill(step=0, replica=0, at=At.BEFORE_SYNC),
        Kill(step=2, replica=3, at=At.DURING_SYNC),
        Kill(step=3, replica=1, at=At.FORWARD, microbatch=2),
    ]
    ends = train(tmp_path, policy="exact", kills=kills)
    check(tmp_path, ends, {2})
    torch.testing.assert_close(ends[2].parameters, serial(3, 4, 5)[0])


def test_one_that_lost_a_sum_which_the_others_have_is_waited_for(tmp_path: Path) -> None:
    # Completion is not uniform. Nobody died, so the same gradients are reduced again.
    ends = train(
        tmp_path,
        policy="exact",
        staging="snapshot",
        lost=lambda rank, epoch, number: (rank, epoch, number) == (2, 0, 15),
    )
    assert set(ends) == {0, 1, 2, 3}
    assert len(ends[0].failures) == 1
    assert ends[0].failures[0].failed == ()
    torch.testing.assert_close(ends[0].parameters, serial(3, 4, 5)[0])


def test_adaptive_commits_less_and_is_found_out(tmp_path: Path) -> None:
    ends = train(tmp_path, policy="adaptive", kills=[Kill(step=2, replica=1, at=At.FORWARD)])
    assert [line.total for line in ends[0].steps] == [12, 12, 9, 9, 9]
    assert not verify(tmp_path).holds
    assert verify(tmp_path, allow_shrinking_batch=True).holds


def test_replicas_of_two_ranks_die_together(tmp_path: Path) -> None:
    from ulfm_core import ReplicaCondemnedError

    with pytest.raises(ReplicaCondemnedError):
        train(
            tmp_path,
            replicas=3,
            replica_size=2,
            kills=[Kill(step=2, replica=1, position=1, at=At.DURING_SYNC)],
        )
    lines = [
        line
        for rank in (0, 1, 4, 5)
        for line in lines_of(tmp_path, rank)
        if isinstance(line, FailureLine | ExitLine)
    ]
    assert [type(line) for line in lines] == [FailureLine, ExitLine] * 4
    assert {tuple(line.failed) for line in lines if isinstance(line, FailureLine)} == {(1,)}


@pytest.mark.parametrize("replicas", [2, 4, 6])
@pytest.mark.parametrize("policy", ["static", "exact"])
def test_a_job_resumes_with_any_number_of_replicas(
    replicas: int, policy: str, tmp_path: Path
) -> None:
    halves = train(tmp_path, policy=policy, until=3, kills=[Kill(step=1, replica=0, at=At.FORWARD)])
    half = halves[2]
    ends = train(
        tmp_path,
        policy=policy,
        replicas=replicas,
        initial=4,
        state=half.state,
        weights=half.parameters,
    )
    check(tmp_path, ends, range(replicas))
    totals = {
        line.step: line.total
        for rank in (1, 0)
        for line in lines_of(tmp_path, rank)
        if isinstance(line, CommitLine)
    }
    assert totals == dict.fromkeys(range(5), 12)
    if policy == "exact":
        torch.testing.assert_close(ends[0].parameters, serial(3, 4, 5)[0])


@pytest.mark.property
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    replicas=st.integers(2, 6),
    grad_accum=st.integers(1, 4),
    policy=st.sampled_from(["static", "exact"]),
    staging=st.sampled_from(STAGINGS),
    data=st.data(),
)
def test_any_schedule_keeps_the_batch(
    seed: int,
    replicas: int,
    grad_accum: int,
    policy: str,
    staging: StagingMode,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    count = data.draw(st.integers(1, replicas - 1))
    kills = generate(Shape(replicas=replicas, steps=4), seed=seed, count=count)
    out = tmp_path_factory.mktemp("job")
    ends = train(
        out, replicas=replicas, grad_accum=grad_accum, steps=4, policy=policy, staging=staging,
        kills=kills,
    )  # fmt: skip
    died = {
        line.replica
        for rank in range(replicas)
        for line in lines_of(out, rank)
        if isinstance(line, InjectLine)
    }
    check(out, ends, set(range(replicas)) - died)
    # A place in a recovery is passed only where there is something to restore or to extend.
    assert {k.replica for k in kills if not k.at.in_recovery} <= died
    if policy == "exact":
        survivor = min(ends)
        expected, losses = serial(grad_accum, replicas, 4)
        torch.testing.assert_close(ends[survivor].parameters, expected)
        _, _, logged = replayed(out, grad_accum * replicas)
        assert logged == pytest.approx({step: losses[step] for step in logged})


def test_losses_that_are_no_numbers_have_a_sum(tmp_path: Path) -> None:
    """A diverging model is the user's to see, not a crash of the rank that computed it."""

    def body(job: Job, model: nn.Module) -> None:
        for step in job.steps(1):
            for number, _ in enumerate(step):
                step.backward(loss_of(model, 0) * 0 + (math.inf, -math.inf)[number])
        job.finish(list(model.parameters()))

    alone(body, tmp_path)
    (line,) = steps_of(tmp_path, 0)
    assert math.isnan(line.loss_sum)
    assert verify(tmp_path).problems == ()


# ------------------------------------------------------------------------------------------- misuse


def alone(program: Callable[[Job, nn.Module], None], out: Path, **fields: Any) -> None:
    def body(rank: RankThread) -> None:
        model = small_model()
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("static"),
            grad_accum=2,
            log=EventLog(out, rank.rank),
            **fields,
        )
        program(job, model)

    ThreadWorld(1).run(body)


def test_a_step_left_early_is_refused(tmp_path: Path) -> None:
    def program(job: Job, model: nn.Module) -> None:
        for _step in job.steps(2):
            pass

    with pytest.raises(UsageError, match="step 0 was left before its end"):
        alone(program, tmp_path)


def test_a_microbatch_without_backward_is_refused(tmp_path: Path) -> None:
    def program(job: Job, model: nn.Module) -> None:
        for step in job.steps(2):
            for _microbatch in step:
                pass

    with pytest.raises(UsageError, match="backward\\(\\) was not called for microbatch 0"):
        alone(program, tmp_path)


def test_a_second_backward_is_refused(tmp_path: Path) -> None:
    def program(job: Job, model: nn.Module) -> None:
        for step in job.steps(2):
            for microbatch in step:
                step.backward(loss_of(model, microbatch))
                step.backward(loss_of(model, microbatch))

    with pytest.raises(UsageError, match="once for each microbatch"):
        alone(program, tmp_path)


def test_a_step_is_iterated_once(tmp_path: Path) -> None:
    def program(job: Job, model: nn.Module) -> None:
        for step in job.steps(2):
            for microbatch in step:
                step.backward(loss_of(model, microbatch))
            list(step)

    with pytest.raises(UsageError, match="was iterated over already"):
        alone(program, tmp_path)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan])
def test_a_norm_to_clip_to_is_positive(norm: float, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="max_norm"):
        alone(lambda job, model: None, tmp_path, max_norm=norm)


def test_an_unknown_staging_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="use no-copy or snapshot"):
        alone(lambda job, model: None, tmp_path, staging="twice")


def test_replicas_with_other_buckets_are_refused(tmp_path: Path) -> None:
    def body(rank: RankThread) -> None:
        model = nn.Linear(4, 3 + rank.rank)
        Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("static"),
            grad_accum=2,
            log=EventLog(tmp_path, rank.rank),
        )

    with pytest.raises(StartError, match=r"the gradient buckets \(here '1[26] torch"):
        ThreadWorld(2).run(body)


@pytest.mark.parametrize(
    ("forgetful", "error"),
    [({0, 1}, InvariantError), ({1}, DivergenceError)],
    ids=["all alike", "one alone"],
)
def test_a_plan_that_forgets_a_microbatch_is_not_committed(
    tmp_path: Path, forgetful: set[int], error: type[Exception]
) -> None:
    def body(rank: RankThread) -> None:
        model = small_model()
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("static"),
            grad_accum=2,
            log=EventLog(tmp_path, rank.rank),
        )
        before = flat(model)
        try:
            for step in job.steps(1):
                for microbatch in step:
                    step.backward(loss_of(model, microbatch))
                    plan = job.plan
                    if rank.rank in forgetful and microbatch == plan.assigned[rank.rank][-1]:
                        short = {**plan.assigned, 1: plan.assigned[1][:1]}
                        plan = dataclasses.replace(plan, assigned=short)
                        job._progress.plan = job._progress.step_plan = plan
        finally:
            assert torch.equal(before, flat(model))

    with pytest.raises(error):
        ThreadWorld(2).run(body)


def test_what_a_rank_says_while_it_waits(tmp_path: Path) -> None:
    beats: dict[int, Sequence[str]] = {}

    def body(rank: RankThread) -> None:
        model = small_model()
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy("static"),
            grad_accum=1,
            log=EventLog(tmp_path, rank.rank),
        )
        for step in job.steps(1):
            for microbatch in step:
                step.backward(loss_of(model, microbatch))
        job.finish(list(model.parameters()))
        beats[rank.rank] = rank.beats

    ThreadWorld(2).run(body)
    assert beats[1] == [
        "step 0, microbatch 1",
        "step 0, reducing",
        "step 0, agreeing",
        "the end of the job",
    ]

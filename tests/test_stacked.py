"""Redundant stacks (SPARe) in real jobs: each death masked or patched, down to the wipe-out."""

from contextlib import suppress
from dataclasses import replace
from itertools import permutations

import pytest
from conftest import References
from jobs import Case, Run, Trainer, apart, problems_of

from grad_txn.failures import At, Kill
from grad_txn.log.verify import verify
from workload_policy import WorkloadPolicyError, agreed_table, load_policy

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

SIX = Case(replicas=6, grad_accum=2, steps=6, policy="stacked", redundancy=3)
SHARDED = replace(SIX, replicas=3, redundancy=2, shard_size=2, batch=2, grad_accum=3)
OUTSIDE = [at for at in At if not at.in_recovery]
INSIDE = [at for at in At if at.in_recovery]
WAYS = [(staging, mode) for staging in ("no-copy", "snapshot") for mode in ("deferred", "guarded")]


def with_kills(number: int, case: Case, *kills: Kill) -> Case:
    staging, detection = WAYS[number % len(WAYS)]
    return replace(case, staging=staging, detection=detection, kills=kills)


def hosts_of_a_type() -> list[int]:
    """Three of the six replicas that between them host all copies of one type."""
    plan = load_policy("stacked", redundancy=3).start(replicas=6, grad_accum=2)
    return [int(replica) for replica, types in plan.state["order"].items() if 4 in types]


def two_deaths() -> list[Case]:
    """One from which stacks are redundant, then one in each place."""
    first = Kill(step=1, replica=0, at=At.DURING_SYNC)
    return [
        with_kills(number, SIX, first, Kill(step=3, replica=1 + number % 5, at=at))
        for number, at in enumerate(OUTSIDE)
    ]


def in_recovery() -> list[Case]:
    second, third = patched_and_not_wiped_out(first=3)
    return [
        with_kills(
            number,
            SIX,
            Kill(step=1, replica=3, at=At.FORWARD),
            Kill(step=2, replica=second, at=At.DURING_SYNC),
            Kill(step=2, replica=third, at=at),
        )
        for number, at in enumerate(INSIDE)
    ]


def patched_and_not_wiped_out(*, first: int) -> tuple[int, int]:
    """Two more deaths after a first: the next needs a patch, and the last leaves every type."""
    policy = load_policy("stacked", redundancy=3)
    start = policy.start(replicas=6, grad_accum=2)
    _, plan = policy.advance(policy.on_failure(start, agreed_table(start, failed={first})).plan)
    for second, third in permutations(plan.members, 2):
        decision = policy.on_failure(plan, agreed_table(plan, failed={second}))
        with suppress(WorkloadPolicyError):
            policy.on_failure(decision.plan, agreed_table(decision.plan, failed={third}))
            if decision.boundary:
                return second, third
    raise AssertionError("no such deaths")


def together() -> list[Case]:
    return [
        with_kills(
            number,
            SIX,
            Kill(step=1, replica=first, at=At.AFTER_SYNC),
            Kill(step=1, replica=second, at=At.DURING_SYNC),
        )
        for number, (first, second) in enumerate([(0, 1), (5, 2)])
    ]


def sharded() -> list[Case]:
    return [
        with_kills(
            number,
            replace(SHARDED, sharding=sharding),
            Kill(step=1, replica=number % 3, position=number % 2, at=at),
        )
        for number, (sharding, at) in enumerate(
            [("fsdp2", At.DURING_SYNC), ("fsdp2", At.FORWARD), ("fsdp1", At.AFTER_SYNC)]
        )
    ]


def name(case: Case) -> str:
    deaths = ",".join(f"{k.replica}.{k.position}@{k.at}:{k.step}" for k in case.kills)
    return f"{case.replicas}of{case.shard_size}-{case.staging}-{case.detection}-{deaths}"


@pytest.mark.parametrize("job", two_deaths() + in_recovery() + together() + sharded(), ids=name)
def test_every_type_counts_once_whatever_dies(
    job: Case, trainer: Trainer, references: References
) -> None:
    run = trainer.run(job)
    assert problems_of(run, references(job)) == []
    depths = {step: max(line["stacks"].values()) for step, line in run.steps().items()}
    assert depths[0] == 1
    assert depths[job.steps - 1] >= 2


def test_half_the_losses_need_no_work(trainer: Trainer, references: References) -> None:
    """A redundant copy that was computed anyway counts, and the step is no longer."""
    seen = set()
    for replica in range(1, 6):
        job = with_kills(
            0,
            SIX,
            Kill(step=1, replica=0, at=At.DURING_SYNC),
            Kill(step=3, replica=replica, at=At.DURING_SYNC),
        )
        run = trainer.run(job, f"run-{replica}")
        assert problems_of(run, references(job)) == []
        second = max(run.of("failure"), key=lambda line: line["epoch"])
        assert bool(second["extra_ids"]) or second["recounted"]
        seen.add(bool(second["extra_ids"]))
        if not second["extra_ids"]:
            assert not second["boundary"]
            assert run.steps()[3]["total"] == 12
    assert seen == {True, False}


@pytest.mark.parametrize("at", [At.DURING_SYNC, At.FORWARD, At.BEFORE_COMMIT])
def test_a_wipe_out_leaves_a_checkpoint_to_go_on_from(
    at: At, trainer: Trainer, references: References
) -> None:
    victims = hosts_of_a_type()
    kills = [
        Kill(step=step, replica=one, at=at) for step, one in zip((1, 2, 4), victims, strict=True)
    ]
    job = replace(SIX, kills=tuple(kills))
    run = trainer.run(job, "run")
    assert run.code == 1, run.said
    wiped_in = 5 if at is At.BEFORE_COMMIT else 4
    told = [line for line in run.said.splitlines() if "wipe-out" in line]
    assert len(told) == 1, run.said
    assert f"wipe-out in step {wiped_in}: no living group hosts shard type" in told[0]
    assert f"the state before step {wiped_in} is in" in told[0]
    assert not verify(run.out).holds

    again = trainer.run(SIX, "run", "--resume")
    assert again.code == 0, again.said
    assert verify(again.out).problems == ()
    whole = references(SIX)
    found = again.trajectory()
    assert sorted(again.steps()) == list(range(SIX.steps))
    assert set(again.steps()) - set(found) <= set(again.silent())
    assert not [step for step in found if apart(found[step], whole[step])]


def test_resuming_with_too_few_replicas_is_refused(trainer: Trainer) -> None:
    job = replace(SIX, steps=3)
    assert trainer.run(job, "run", "--checkpoint-every", "2").code == 0
    fewer = replace(SIX, steps=5, redundancy=None)
    run: Run = trainer.run(fewer, "run", "--resume", ranks=1)
    assert run.code == 2
    assert "shard types" in run.said

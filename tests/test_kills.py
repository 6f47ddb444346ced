"""Ranks die for real: in every place, alone and in pairs, down to the last one."""

from dataclasses import replace
from itertools import combinations_with_replacement, permutations

import pytest
from conftest import References
from jobs import Case, Trainer, problems_of

from grad_txn.failures import At, Kill
from grad_txn.log.verify import verify

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

OUTSIDE = [at for at in At if not at.in_recovery]
INSIDE = [at for at in At if at.in_recovery]
POLICIES = ("static", "exact")
WAYS = [
    (staging, detection)
    for staging in ("no-copy", "snapshot")
    for detection in ("deferred", "guarded")
]


def case(number: int, kills: tuple[Kill, ...], **fields: object) -> Case:
    """A job whose staging and detection come in turn."""
    staging, detection = WAYS[number % len(WAYS)]
    values: dict[str, object] = {
        "replicas": (4, 3, 5)[number % 3],
        "grad_accum": 3,
        "policy": POLICIES[number % 2],
    }
    values |= {"staging": staging, "detection": detection, "kills": kills}
    return Case(**(values | fields))  # type: ignore[arg-type]


def alone() -> list[Case]:
    return [
        case(number, (Kill(step=2, replica=number % 3, at=at),), policy=policy)
        for policy in POLICIES
        for number, at in enumerate(OUTSIDE, start=POLICIES.index(policy))
    ]


def same_step() -> list[Case]:
    return [
        case(
            number,
            (
                Kill(step=2, replica=number % 4, at=first),
                Kill(step=2, replica=(number + 1) % 4, at=second),
            ),
            replicas=4 + number % 2,
            policy=POLICIES[number // 2 % 2],
        )
        for number, (first, second) in enumerate(combinations_with_replacement(OUTSIDE, 2))
    ]


def successive_steps() -> list[Case]:
    pairs = list(permutations(OUTSIDE, 2))[::3]
    return [
        case(
            number,
            (
                Kill(step=1, replica=number % 3, at=first),
                Kill(step=2, replica=(number + 1) % 3, at=second),
            ),
            policy=POLICIES[number // 2 % 2],
        )
        for number, (first, second) in enumerate(pairs)
    ]


def in_recovery() -> list[Case]:
    kills = [
        (Kill(step=2, replica=first, at=at), Kill(step=2, replica=second, at=inside))
        for inside in INSIDE
        for at, first, second in (
            (At.DURING_SYNC, 2, 0),
            (At.FORWARD, 0, 1),
            (At.AFTER_SYNC, 1, 0),
        )
    ]
    return [
        case(2 * number + POLICIES.index(policy) + number // 2, both, policy=policy, replicas=4)
        for policy in POLICIES
        for number, both in enumerate(kills)
    ]


def kill(replica: int, at: At) -> Kill:
    return Kill(step=3, replica=replica, at=at)


def with_spares() -> list[Case]:
    """Six replicas: five for 12 microbatches are four majors and a spare, replica 5.

    Five for 6 microbatches are three majors and two spares.
    """
    first = Kill(step=1, replica=0, at=At.DURING_SYNC)
    return [
        case(number, (first, *kills), replicas=6, grad_accum=grad_accum, policy="static", steps=6)
        for number, (grad_accum, kills) in enumerate(
            [
                (2, (Kill(step=3, replica=2, at=At.DURING_SYNC),)),  # promoted
                (2, (Kill(step=3, replica=5, at=At.BEFORE_SYNC),)),  # the spare itself
                (2, (kill(1, At.FORWARD), kill(5, At.FORWARD))),
                (1, (kill(1, At.AFTER_SYNC), kill(2, At.DURING_REPAIR))),
                (1, (kill(1, At.DURING_SYNC), kill(4, At.DURING_RESTORE))),
            ]
        )
    ]


def down_to_one() -> list[Case]:
    places = (At.DURING_SYNC, At.AFTER_COMMIT, At.FORWARD, At.BEFORE_COMMIT, At.AFTER_SYNC)
    orders = ((0, 1, 2), (3, 0, 2), (0, 4, 2, 1), (5, 0, 3, 1, 2))
    return [
        case(
            number,
            tuple(
                Kill(step=step, replica=replica, at=places[step])
                for step, replica in enumerate(order)
            ),
            replicas=len(order) + 1,
            grad_accum=2,
            steps=len(order) + 2,
            policy=policy,
        )
        for number, order in enumerate(orders)
        for policy in POLICIES
    ]


def name(one: Case) -> str:
    deaths = ",".join(f"{kill.replica}@{kill.at}:{kill.step}" for kill in one.kills)
    return f"{one.policy}-{one.replicas}x{one.grad_accum}-{one.staging}-{one.detection}-{deaths}"


@pytest.mark.parametrize(
    "job",
    alone() + same_step() + successive_steps() + in_recovery() + with_spares() + down_to_one(),
    ids=name,
)
def test_the_survivors_carry_it_through(
    job: Case, trainer: Trainer, references: References
) -> None:
    run = trainer.run(job)
    assert problems_of(run, references(job)) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replica_without_extra_work_restores_before_it_reduces(
    policy: str, trainer: Trainer, references: References
) -> None:
    # One lost microbatch: most survivors have none to redo, and reduce again at once.
    job = case(
        2,
        tuple(Kill(step=step, replica=step, at=At.DURING_SYNC) for step in range(4)),
        replicas=6,
        grad_accum=1,
        steps=6,
        policy=policy,
    )
    assert job.staging == "snapshot"
    assert problems_of(trainer.run(job), references(job)) == []


@pytest.mark.parametrize("staging", ["no-copy", "snapshot"])
def test_a_spare_is_promoted_without_a_boundary(staging: str, trainer: Trainer) -> None:
    job = with_spares()[0]
    run = trainer.run(replace(job, staging=staging))
    first, second = sorted(
        {json_line["epoch"]: json_line for json_line in run.of("failure")}.items()
    )
    assert first[1]["boundary"]
    assert not second[1]["boundary"]
    assert second[1]["promoted"] == {"2": 5}
    assert run.steps()[5]["contributions"] == {"1": 3, "3": 3, "4": 3, "5": 3}


def test_adaptive_shrinks_the_batch_and_the_verifier_says_so(
    trainer: Trainer, references: References
) -> None:
    job = case(0, (Kill(step=2, replica=0, at=At.DURING_SYNC),), policy="adaptive")
    run = trainer.run(job)
    assert problems_of(run, references(job)) == []
    assert [line["total"] for _, line in sorted(run.steps().items())] == [12, 12, 9, 9, 9]
    assert any("9" in problem for problem in verify(run.out).problems)

"""Replicas of several ranks: any of them dies, and its replica with it, as a whole and at once."""

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from conftest import References
from jobs import Case, Trainer, apart, problems_of

from grad_txn.failures import At, Kill
from grad_txn.log.verify import verify

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

OUTSIDE = [at for at in At if not at.in_recovery]
INSIDE = [at for at in At if at.in_recovery]
TORCH_HSDP = str(Path(__file__).parent / "programs" / "torch_hsdp.py")
WAYS = (("no-copy", "deferred"), ("snapshot", "guarded"), ("snapshot", "deferred"))


def four_of_two(number: int, *kills: Kill, **fields: object) -> Case:
    """Four replicas of two shards."""
    return _case(number, kills, {"replicas": 4, "shard_size": 2, "batch": 2} | fields)


def two_of_three(number: int, *kills: Kill, **fields: object) -> Case:
    """Two replicas of three shards."""
    return _case(number, kills, {"replicas": 2, "shard_size": 3, "batch": 3} | fields)


def _case(number: int, kills: tuple[Kill, ...], fields: dict[str, object]) -> Case:
    staging, detection = WAYS[number % len(WAYS)]
    values = {
        "grad_accum": 2,
        "steps": 4,
        "policy": ("exact", "static")[number % 2],
        "staging": staging,
        "detection": detection,
        "sharding": ("fsdp2", "fsdp2", "fsdp1")[number // 2 % 3],
        "kills": kills,
    }
    return Case(**(values | fields))  # type: ignore[arg-type]


def any_single_rank() -> list[Case]:
    """Each place, and in turn each rank of the job; world rank 0 in three places."""
    jobs = []
    for number, at in enumerate(OUTSIDE):
        replica, position = divmod(3 * number % 8, 2)
        jobs.append(four_of_two(number, Kill(step=1, replica=replica, position=position, at=at)))
        replica, position = divmod(number % 6, 3)
        jobs.append(
            two_of_three(number + 1, Kill(step=1, replica=replica, position=position, at=at))
        )
    jobs += [
        shape(number, Kill(step=2, replica=0, position=0, at=at), policy="exact")
        for number, (shape, at) in enumerate(
            [
                (four_of_two, At.DURING_SYNC),
                (two_of_three, At.FORWARD),
                (four_of_two, At.BEFORE_COMMIT),
            ]
        )
    ]
    return jobs


def both_positions() -> list[Case]:
    """Two ranks of one replica, each in its own place."""
    places = [
        (At.FORWARD, At.FORWARD),
        (At.BEFORE_SYNC, At.DURING_SYNC),
        (At.AFTER_SYNC, At.BEFORE_COMMIT),
        (At.AFTER_COMMIT, At.OPTIMIZER),
    ]
    jobs = []
    for number, (first, second) in enumerate(places):
        kills = (
            Kill(step=1, replica=number % 2, position=0, at=first),
            Kill(step=1, replica=number % 2, position=1, at=second),
        )
        jobs.append((four_of_two, two_of_three)[number % 2](number, *kills))
    return jobs


def two_replicas() -> list[Case]:
    """Two replicas in one step, at positions that see one of the deaths each."""
    places = cycle(OUTSIDE)
    jobs = []
    for number in range(8):
        first, second = next(places), OUTSIDE[(3 * number + 1) % len(OUTSIDE)]
        kills = (
            Kill(step=1, replica=number % 4, position=number % 2, at=first),
            Kill(step=1, replica=(number + 1) % 4, position=(number + 1) % 2, at=second),
        )
        jobs.append(four_of_two(number, *kills))
    return jobs


def in_recovery() -> list[Case]:
    return [
        four_of_two(
            2 * number + turn,
            Kill(step=1, replica=2, position=turn, at=trigger),
            Kill(step=1, replica=number % 2, position=1 - turn, at=at),
            policy="exact",
        )
        for number, at in enumerate(INSIDE)
        for turn, trigger in enumerate((At.DURING_SYNC, At.AFTER_SYNC))
    ]


def half_the_replicas() -> list[Case]:
    return [
        four_of_two(
            0,
            Kill(step=1, replica=3, position=0, at=At.AFTER_SYNC),
            Kill(step=2, replica=0, position=1, at=At.DURING_SYNC, bucket=1),
            policy="exact",
            sharding=sharding,
            steps=5,
        )
        for sharding in ("fsdp2", "fsdp1")
    ]


def name(one: Case) -> str:
    deaths = ",".join(f"{k.replica}.{k.position}@{k.at}:{k.step}" for k in one.kills)
    shape = f"{one.replicas}of{one.shard_size}"
    return f"{shape}-{one.sharding}-{one.policy}-{one.staging}-{one.detection}-{deaths}"


@pytest.mark.parametrize(
    "job",
    any_single_rank() + both_positions() + two_replicas() + in_recovery() + half_the_replicas(),
    ids=name,
)
def test_the_other_replicas_carry_it_through(
    job: Case, trainer: Trainer, references: References
) -> None:
    run = trainer.run(job)
    once = {kill.replica for kill in job.kills}
    # A rank whose peer dies may be gone before it reaches the place where it was to die itself.
    planned = len(once) < len(job.kills)
    assert problems_of(run, references(job), dead=once if planned else None) == []


DISAGREEING = """
import os, signal, sys, time
from pathlib import Path
from grad_txn.failures import At, FailureInjector
from integrations_hsdp.pretrain import main
from ulfm_core import environment

reached = FailureInjector.reached
def watched(injector, at, step, **more):
    replica, position = divmod(environment.rank(), 2)
    if step == 1 and at is At.BEFORE_COMMIT and position == 0:
        Path(f"complete-{{replica}}").touch()
    if step == 1 and at is At.{place} and (replica, position) == (1, 1):
        until = time.monotonic() + 30
        while len(list(Path().glob("complete-*"))) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    reached(injector, at, step, **more)
FailureInjector.reached = watched
sys.exit(main())
"""


@pytest.mark.parametrize("place", ["BEFORE_SYNC", "AFTER_SYNC"])
def test_positions_that_saw_different_things_do_the_same(
    place: str, trainer: Trainer, references: References
) -> None:
    """Position 0 has complete sums on all replicas when a rank at position 1 dies.

    FSDP1 has finished inside the replica before it reduces across, so the dying rank's peer goes on
    with its own reductions, up to the agreement.
    """
    program = trainer.folder / "disagreeing.py"
    program.write_text(DISAGREEING.format(place=place))
    job = four_of_two(2, sharding="fsdp1", policy="exact")
    run = trainer.run(job, program=[str(program)])
    assert problems_of(run, references(job), dead={1}) == []
    complete = {
        rank: line["complete"]
        for rank, lines in run.events.items()
        for line in lines
        if line["event"] == "repair"
    }
    assert complete == {0: True, 4: True, 6: True, 1: False, 5: False, 7: False}


BEHIND_THE_AGREEMENT = """
import os, signal, sys
from integrations_hsdp.pretrain import main
from integrations_hsdp.sharded import ShardedGradients

call = ShardedGradients.{call}
calls = []
def until_killed(gradients, value):
    calls.append(value)
    if len(calls) == 2 and os.environ["OMPI_COMM_WORLD_RANK"] == "{rank}":
        os.kill(os.getpid(), signal.SIGKILL)
    return call(gradients, value)
ShardedGradients.{call} = until_killed
sys.exit(main())
"""


@pytest.mark.parametrize("call", ["mean_losses", "norm"])
@pytest.mark.parametrize("rank", [2, 3])
def test_a_death_while_the_replica_sums_what_was_agreed_on(
    rank: int, call: str, trainer: Trainer, references: References
) -> None:
    """The step is committed, and the dying rank's peer waits for it inside the replica."""
    program = trainer.folder / "behind.py"
    program.write_text(BEHIND_THE_AGREEMENT.format(rank=rank, call=call))
    job = four_of_two(0, policy="exact", sharding="fsdp2")
    run = trainer.run(job, program=[str(program)])
    assert problems_of(run, references(job), dead={1}) == []
    assert {line["step"] for line in run.of("failure")} == {2}


@pytest.mark.parametrize("sharding", ["fsdp2", "fsdp1"])
def test_in_bfloat16_with_recomputation_too(sharding: str, trainer: Trainer) -> None:
    lossy = next(one for one in half_the_replicas() if one.sharding == sharding)
    plain = replace(lossy, kills=())
    more = ("--precision", "bfloat16", "--recompute")
    runs = [trainer.run(case, name, *more) for case, name in ((plain, "plain"), (lossy, "lossy"))]
    for run in runs:
        assert run.code == 0, run.said
        assert verify(run.out).problems == ()
    whole, ours = (run.trajectory() for run in runs)
    # Each microbatch is computed in bfloat16, the sums are of float32: as exact as without.
    assert not any(apart(ours[step], whole[step]) for step in whole), (ours, whole)
    precise = trainer.run(plain, "precise").trajectory()
    assert any(apart(whole[step], precise[step]) for step in whole)


@pytest.mark.parametrize("accumulate", ["sharded", "unsharded"])
@pytest.mark.parametrize("sharding", ["fsdp2", "fsdp1"])
def test_half_the_replicas_lost_or_none_trains_as_torch_hsdp_does(
    sharding: str, accumulate: str, trainer: Trainer
) -> None:
    plain = four_of_two(0, sharding=sharding, policy="exact", steps=5, kills=())
    job = trainer.start(plain, "torch.json", program=[TORCH_HSDP])
    assert job.wait(60) == 0, job.stderr
    theirs = json.loads((trainer.folder / "torch.json").read_text())
    lossy = next(one for one in half_the_replicas() if one.sharding == sharding)
    for name, case in (("plain", plain), ("lossy", lossy)):
        run = trainer.run(case, name, "--accumulate", accumulate)
        assert run.code == 0, run.said
        ours = run.trajectory()
        assert sorted(ours) == list(range(5))
        assert not any(apart(ours[step], tuple(theirs[step])) for step in ours), (ours, theirs)

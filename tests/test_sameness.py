"""Ranks that are not in the same state: at the start, and later."""

from pathlib import Path

import pytest
from conftest import References
from jobs import Case, Trainer, problems_of

from grad_txn.log.verify import verify

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("case", "victim"),
    [
        (Case(replicas=3, grad_accum=2, policy="exact"), 1),
        (Case(replicas=3, grad_accum=2, policy="exact", shard_size=2, batch=2), 5),
    ],
    ids=["ddp", "fsdp2"],
)
def test_a_flipped_bit_costs_one_replica(
    case: Case, victim: int, trainer: Trainer, references: References
) -> None:
    flipped = [str(PROGRAMS / "flipped.py"), str(victim), "2"]
    run = trainer.run(case, "run", "--check-every", "2", program=flipped)
    replica = case.membership.replica_of(victim)
    told = [line for line in run.said.splitlines() if "in their majority: it is lost" in line]
    assert len(told) == 1, run.said
    assert told[0].startswith(f"rank {victim}: replica {replica} holds other parameters or another")
    assert "before step 2, from the start" not in told[0]
    assert "before step 2, since they were compared before step 0" in told[0]
    assert problems_of(run, references(case), dead={replica}) == []
    assert {(line["step"], *line["replicas"]) for line in run.of("differ")} == {(2, replica)}


def test_two_replicas_that_differ_stop_and_say_since_when(trainer: Trainer) -> None:
    case = Case(replicas=2, grad_accum=2)
    flipped = [str(PROGRAMS / "flipped.py"), "0", "3"]
    run = trainer.run(case, "run", "--check-every", "2", program=flipped)
    assert run.code == 1
    told = [line for line in run.said.splitlines() if "no majority holds the same" in line]
    assert len(told) >= 1, run.said
    assert all("go on from a checkpoint of step 2 or older" in line for line in told)
    assert "Traceback" not in run.said
    assert sorted(run.steps()) == [0, 1, 2, 3]


def test_a_stale_listing_does_not_part_the_ranks(trainer: Trainer) -> None:
    case = Case(replicas=2, grad_accum=2, steps=4)
    first = trainer.run(case, "run", "--checkpoint-every", "1")
    assert first.code == 0, first.said
    longer = Case(replicas=2, grad_accum=2, steps=6)
    stale = [str(PROGRAMS / "stale.py"), "1"]
    run = trainer.run(longer, "run", "--resume", program=stale)
    assert run.code == 0, run.said
    starts = [line["first_step"] for line in run.of("start")]
    assert sorted(starts) == [0, 0, 3, 3]
    assert verify(run.out).problems == ()

"""A policy of one's own: a file of functions outside the repository, which trains and is proved."""

import shutil
from pathlib import Path

import pytest
from conftest import References
from jobs import Case, Trainer, problems_of

from grad_txn.failures import At, Kill
from grad_txn.log.verify import verify

pytestmark = [pytest.mark.mpi, pytest.mark.torch]

EXAMPLE = Path(__file__).parents[1] / "packages/workload-policy/examples/slower_gets_less.py"
KILLS = (
    Kill(step=1, replica=0, at=At.DURING_SYNC),
    Kill(step=3, replica=3, at=At.FORWARD),
)
SHRINKING = '''
"""Counts one microbatch less once somebody is gone, although it promises not to."""
from workload_policy import Layout, Response, Role

promise = "batch"


def respond(plan, failed, roles):
    return Response(roles=roles)
'''


def own(trainer: Trainer, text: str) -> str:
    """Lay a policy file where the job runs, and return its name."""
    Path(trainer.folder, "mine.py").write_text(text)
    return "mine.py"


@pytest.mark.parametrize("shard_size", [1, 2])
def test_it_survives_two_kills_and_keeps_its_promise(
    shard_size: int, trainer: Trainer, references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
    monkeypatch.chdir(trainer.folder)  # where the replay finds it, too
    shutil.copy(EXAMPLE, trainer.folder / "mine.py")
    case = Case(
        replicas=4, grad_accum=4, policy="mine.py", kills=KILLS, shard_size=shard_size,
        batch=shard_size, steps=6,
    )  # fmt: skip
    run = trainer.run(case)
    assert problems_of(run, references(case)) == []
    assert {line["promise"] for line in run.of("start")} == {"exact"}
    shares = [line["contributions"] for _, line in sorted(run.steps().items())]
    # Replicas 1 and 2 live on; the file's table says that 2 is the slower one.
    assert all(len(set(share.values())) > 1 for share in shares)
    assert shares[-1]["2"] < shares[-1]["1"]


def test_one_that_breaks_its_promise_is_stopped_before_it_commits(trainer: Trainer) -> None:
    case = Case(
        replicas=3, grad_accum=2, policy=own(trainer, SHRINKING),
        kills=(Kill(step=1, replica=0, at=At.FORWARD),),
    )  # fmt: skip
    run = trainer.run(case)
    assert run.code == 1, run.said
    assert "mine" in run.said
    assert sorted(run.steps()) == [0], "the step that it would have shrunk is not committed"
    assert verify(run.out).problems


def test_one_that_cannot_be_loaded_is_refused_before_anything_starts(trainer: Trainer) -> None:
    case = Case(replicas=2, grad_accum=2, policy=own(trainer, "def respond(:\n"))
    run = trainer.run(case)
    assert run.code == 2, run.said
    assert "mine.py" in run.said
    assert not (run.out / "events").exists()

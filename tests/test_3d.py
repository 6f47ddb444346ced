"""Nanotron with replicas of several ranks: whoever dies, the others train on as Nanotron would."""

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import References
from jobs import Case, Trainer, apart, problems_of
from preload import Launched, Preloaded

from grad_txn.failures import At, Kill
from grad_txn.log.history import read_history
from grad_txn.log.verify import verify

pytestmark = [
    pytest.mark.timeout(300),  # the first one waits for all of torch to be read from a cold disk
    pytest.mark.mpi,
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("nanotron") is None, reason="Nanotron is not installed"
    ),
]

CLOSE = 1e-4
NATIVE = str(Path(__file__).parent / "programs" / "native_nanotron.py")
OUTSIDE = [at for at in At if not at.in_recovery]
INSIDE = [at for at in At if at.in_recovery]
WAYS = cycle((("no-copy", "deferred"), ("snapshot", "guarded"), ("snapshot", "deferred")))


@dataclass(frozen=True, kw_only=True, slots=True)
class Nanotron(Case):
    """A job of the reference program for Nanotron."""

    tp: int = 1
    pp: int = 1
    dp_inner: int = 1
    more: tuple[str, ...] = ()

    def without_failures(self) -> "Nanotron":
        return replace(self, kills=(), policy="exact", staging="no-copy", detection="deferred")

    def flags(self) -> list[str]:
        return [
            "--steps", str(self.steps), "--grad-accum", str(self.grad_accum),
            "--policy", self.policy, "--staging", self.staging, "--detection", self.detection,
            "--tp", str(self.tp), "--pp", str(self.pp), "--dp-inner", str(self.dp_inner),
            "--batch", str(self.batch), "--layers", "4", "--width", "16", "--heads", "2",
            "--sequence", "16", "--bucket-mb", "0.003", "--warmup", "2", *self.more,
        ]  # fmt: skip


def shaped(
    replicas: int, *, tp: int = 1, pp: int = 1, dp_inner: int = 1, **fields: Any
) -> Nanotron:
    values: dict[str, Any] = {"grad_accum": 2, "steps": 4, "batch": dp_inner, "policy": "exact"}
    values |= fields
    return Nanotron(
        replicas=replicas, tp=tp, pp=pp, dp_inner=dp_inner, shard_size=tp * pp * dp_inner, **values
    )


class NanotronTrainer(Trainer):
    def start(self, case: Case, name: str = "run", *more: str, **others: Any) -> Launched:
        others.setdefault("program", ("-m", "integrations_3d.pretrain"))
        return super().start(case, name, *more, **others)


@pytest.fixture(scope="module")
def nanotron_preloaded() -> Iterator[Preloaded]:
    with Preloaded("nanotron_modules") as server:
        yield server


@pytest.fixture(scope="module")
def whole(nanotron_preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(NanotronTrainer(nanotron_preloaded, tmp_path_factory.mktemp("references")))


@pytest.fixture
def nanotron(nanotron_preloaded: Preloaded, tmp_path: Path) -> NanotronTrainer:
    return NanotronTrainer(nanotron_preloaded, tmp_path)


def name(one: Nanotron) -> str:
    deaths = ",".join(f"{k.replica}.{k.position}@{k.at}:{k.step}" for k in one.kills)
    return f"{one.replicas}of{one.tp}x{one.pp}x{one.dp_inner}-{'-'.join(one.more)}-{deaths}"


# -------------------------------------------------------------------------- as Nanotron by itself


ALIKE = [
    shaped(2, tp=2, pp=2),
    shaped(2, tp=2, pp=2, more=("--precision", "bfloat16", "--tie-embeddings")),
    shaped(3, tp=2, more=("--tp-mode", "reduce_scatter")),
    shaped(3, pp=2, grad_accum=3, more=("--tie-embeddings",)),
    # In bfloat16 powers of two: Nanotron rounds a third of a loss's gradient, and of parameters.
    shaped(2, pp=2, grad_accum=4, more=("--pp-engine", "afab", "--precision", "bfloat16")),
    shaped(2, dp_inner=2),
    shaped(2, dp_inner=2, more=("--precision", "bfloat16", "--zero", "1")),
]


@pytest.mark.parametrize("job", ALIKE, ids=name)
def test_it_trains_as_nanotron_by_itself_does(job: Nanotron, nanotron: NanotronTrainer) -> None:
    more = ("--checkpoint-every", str(job.steps))
    native = nanotron.start(job, "native", *more, program=[NATIVE])
    assert native.wait(50) == 0, native.stderr
    theirs = json.loads((nanotron.folder / "native" / "native.json").read_text())
    run = nanotron.run(job, "run", *more, timeout=50)
    assert problems_of(run, run.trajectory()) == []
    for step, (loss, norm) in run.trajectory().items():
        assert loss == pytest.approx(theirs[step][0], rel=CLOSE)
        assert norm == pytest.approx(theirs[step][1], rel=CLOSE)
    # The averages of past gradients that Adam keeps, and the weights.
    compared = set()
    for path in sorted((run.out / "checkpoints" / str(job.steps)).rglob("*")):
        there = nanotron.folder / "native" / path.relative_to(run.out)
        if path.suffix in {".pt", ".safetensors"} and there.exists():
            for one, other in zip(_tensors(path), _tensors(there), strict=True):
                apart = float((one.double() - other.double()).norm() / other.double().norm())
                assert apart <= CLOSE, path
                compared.add(path.suffix)
    # ZeRO's files are named after how many share the state, and natively more do.
    assert compared == ({".safetensors"} if "--zero" in job.more else {".pt", ".safetensors"})


def _tensors(path: Path) -> Iterator[torch.Tensor]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        yield from load_file(path).values()
        return
    state = torch.load(path).get("state", {})  # the learning rate's file has none
    for index in sorted(state):
        yield state[index]["exp_avg"]


# ------------------------------------------------------------------------------- losing replicas


def any_single_rank() -> list[Nanotron]:
    """Each place and in turn each rank, in every kind of replica."""
    shapes: Iterator[Callable[..., Nanotron]] = cycle(
        [
            lambda **f: shaped(2, tp=2, pp=2, more=("--precision", "bfloat16"), **f),
            lambda **f: shaped(3, tp=2, **f),
            lambda **f: shaped(3, pp=2, more=("--tie-embeddings",), **f),
            lambda **f: shaped(2, dp_inner=2, more=("--precision", "bfloat16", "--zero", "1"), **f),
        ]
    )
    jobs = []
    for number, at in enumerate(4 * OUTSIDE):
        shape = next(shapes)
        size = shape().shard_size
        kill = Kill(step=1, replica=number % 2, position=number // 2 % size, at=at)
        staging, detection = next(WAYS)
        policy = ("exact", "static")[number % 2]
        jobs.append(shape(kills=(kill,), policy=policy, staging=staging, detection=detection))
    return jobs


def in_recovery() -> list[Nanotron]:
    return [
        shaped(
            3,
            pp=2,
            more=more,
            kills=(
                Kill(step=1, replica=2, position=turn, at=At.DURING_SYNC),
                Kill(step=1, replica=turn, position=1 - turn, at=at),
            ),
        )
        for at in INSIDE
        for turn, more in enumerate((("--tie-embeddings",), ("--precision", "bfloat16")))
    ]


def half_the_replicas() -> list[Nanotron]:
    kills = (
        Kill(step=1, replica=3, position=0, at=At.AFTER_SYNC),
        Kill(step=2, replica=0, position=1, at=At.DURING_SYNC, bucket=1),
    )
    kinds: list[dict[str, Any]] = [
        {"pp": 2, "more": ("--tie-embeddings",)},
        {"tp": 2, "more": ("--precision", "bfloat16", "--tp-mode", "reduce_scatter")},
    ]
    return [shaped(4, steps=5, kills=kills, **kind) for kind in kinds]


@pytest.mark.parametrize("job", any_single_rank() + in_recovery() + half_the_replicas(), ids=name)
def test_the_other_replicas_carry_it_through(
    job: Nanotron, nanotron: NanotronTrainer, whole: References
) -> None:
    run = nanotron.run(job, timeout=50)
    assert problems_of(run, whole(job), dead={kill.replica for kill in job.kills}) == []


@pytest.mark.parametrize("victim", range(4))
def test_a_stage_that_dies_amid_the_schedule_takes_its_replica_down_at_once(
    victim: int, nanotron: NanotronTrainer, whole: References
) -> None:
    # Its peers wait for it in a send or receive of the pipeline, or in one of tensor parallelism.
    kills = (Kill(step=1, replica=1, position=victim, at=At.FORWARD, microbatch=2),)
    job = shaped(2, tp=2, pp=2, grad_accum=4, kills=kills)
    run = nanotron.run(job, timeout=50)
    assert problems_of(run, whole(job)) == []
    [recovery] = read_history(run.out).recoveries
    [death] = recovery.deaths
    assert death.gone is not None
    assert death.gone < 0.5


def test_more_stages_than_extra_microbatches(nanotron: NanotronTrainer, whole: References) -> None:
    # A pass of one: Nanotron's own 1f1b takes at least as many as stages but one.
    kills = (Kill(step=1, replica=1, position=2, at=At.BEFORE_SYNC),)
    job = shaped(3, pp=3, grad_accum=2, kills=kills, more=("--tie-embeddings",))
    run = nanotron.run(job, timeout=50)
    assert problems_of(run, whole(job)) == []
    assert {line["microbatches"] for line in run.of("extend")} == {1}


def test_a_spare_runs_the_schedule_and_takes_the_place_of_the_dead(
    nanotron: NanotronTrainer, whole: References
) -> None:
    # Three replicas for four microbatches: two of two, and a spare.
    kills = (
        Kill(step=1, replica=0, position=1, at=At.BEFORE_SYNC),
        Kill(step=3, replica=1, position=0, at=At.DURING_SYNC),
    )
    job = shaped(4, pp=2, grad_accum=1, steps=5, kills=kills, policy="static")
    run = nanotron.run(job, timeout=50)
    assert problems_of(run, whole(job)) == []
    assert run.steps()[2]["contributions"] == {"1": 2, "2": 2, "3": 0}
    assert run.steps()[3]["contributions"] == {"2": 2, "3": 2}
    assert {str(line["promoted"]) for line in run.of("failure") if line["step"] == 3} == {
        "{'1': 3}"
    }
    assert not any(line["step"] == 3 for line in run.of("extend"))


# ----------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    "more",
    [
        ("--pp", "2", "--tie-embeddings"),
        ("--dp-inner", "2", "--precision", "bfloat16", "--zero", "1"),
    ],
    ids=" ".join,
)
def test_two_replicas_go_on_from_the_checkpoint_of_three(
    more: tuple[str, ...], nanotron: NanotronTrainer
) -> None:
    """What 6 steps of three replicas make, two make of it from step 3 on."""
    kind = {"pp": 2} if "--pp" in more else {"dp_inner": 2}
    three = shaped(3, steps=6, more=more, **kind)
    two = shaped(2, steps=6, more=more, **kind)
    through = nanotron.run(three, "through", "--checkpoint-every", "3", timeout=50)
    shorter = shutil.copytree(
        through.out / "checkpoints", nanotron.folder / "from", ignore=lambda *_: {"6"}
    )
    resumed = nanotron.run(
        two, "resumed", "--checkpoint-every", "3", "--resume", str(shorter), timeout=50
    )
    for run in (through, resumed):
        assert run.code == 0, run.said
        assert verify(run.out).problems == ()
    assert sorted(resumed.steps()) == [3, 4, 5]
    assert {line["total"] for line in resumed.steps().values()} == {6}
    for step, values in resumed.trajectory().items():
        assert not apart(values, through.trajectory()[step])
    one, other = (
        json.loads((run.out / "checkpoints" / "6" / "checkpoint_metadata.json").read_text())
        for run in (through, resumed)
    )
    assert one["metas"] == other["metas"]
    samples = three.replicas * three.grad_accum * three.batch
    assert one["metas"]["consumed_train_samples"] == 6 * samples
    one, other = (
        torch.load(run.out / "checkpoints" / "6" / "lr_scheduler" / "lr_scheduler.pt")
        for run in (through, resumed)
    )
    assert one["_last_lr"] == other["_last_lr"]


def test_who_dies_while_it_writes_leaves_no_checkpoint_behind(nanotron: NanotronTrainer) -> None:
    job = shaped(2, pp=2)
    run = nanotron.run(job, "run", "--checkpoint-every", "2", timeout=50)
    assert run.code == 0, run.said
    torn = run.out / "checkpoints" / "4"
    (torn / "grad_txn.json").unlink()  # it is written last
    assert (run.out / "checkpoints" / "latest.txt").read_text() == "4"
    again = nanotron.run(job, "again", "--resume", str(run.out / "checkpoints"), timeout=50)
    assert again.code == 0, again.said
    assert sorted(again.steps()) == [2, 3]

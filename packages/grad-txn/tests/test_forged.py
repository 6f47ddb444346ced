"""Logs of real jobs, forged at random: none may pass; and none that is as it was written may fail.

The jobs are real but for their ranks, which are threads. What is forged is what a survivor says of
the batch: measured times, the norm that only the leader knows, and names for people are left alone.
So are the lines of the dead and the steps in which one died before its line could be written: what
such a step cost is said by one line only (docs/limits.md).
"""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from grad_txn.failures import Shape, generate
from grad_txn.job import Job
from grad_txn.log.events import EventLog
from grad_txn.log.lines import ExitLine
from grad_txn.log.verify import verify
from grad_txn.testing.events import Events, read_events, write_events
from grad_txn.testing.gradients import PlainGradients
from grad_txn.testing.played import LEFT
from grad_txn.testing.world import RankThread, ThreadInjector, ThreadWorld
from ulfm_core.errors import ReplicaCondemnedError
from workload_policy import load_policy

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

RUNS = 500
FORGERIES = 2000

WITNESSED = {
    "start": (
        "run", "rank", "replica", "position", "replicas", "living", "grad_accum", "replica_size",
        "global_batch", "promise", "first_step", "cursor", "queue", "steps",
    ),
    "step": (
        "step", "epoch", "replica", "life", "ids", "loss_sum", "weight_sum", "plan", "losses",
    ),
    "commit": ("step", "epoch", "generation", "total", "loss", "living", "plan", "tokens"),
    "failure": (
        "step", "epoch", "failed", "failed_ranks", "queued", "contributions", "promoted",
        "extra_ids", "restore", "boundary", "recounted",
    ),
    "exit": ("code", "step", "parameters"),
}  # fmt: skip
"""Line -> the fields that say what was committed, by whom, in which world."""


def train(out: Path, draw: random.Random) -> None:
    """Run a small job that loses replicas but two at most."""
    replicas, size = draw.randint(3, 5), draw.choice([1, 1, 2])
    steps, grad_accum = draw.randint(2, 5), draw.randint(1, 4)
    policy, each = draw.choice(["static", "exact"]), draw.random() < 0.3
    shape = Shape(replicas=replicas, replica_size=size, steps=steps)
    kills = generate(shape, seed=draw.randrange(2**32), count=draw.randint(0, replicas - 2))

    def program(rank: RankThread) -> None:
        model = nn.Linear(2, 1).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.5)
        log = EventLog(out, rank.rank)
        job = Job(
            rank,
            PlainGradients(model),
            torch.optim.SGD(model.parameters(), lr=0.1),
            policy=load_policy(policy),
            grad_accum=grad_accum,
            log=log,
            log_losses=each,
            injector=ThreadInjector(kills, rank, log),
        )
        try:
            for step in job.steps(steps):
                for microbatch in step:
                    inputs = torch.tensor([[1.0, microbatch % 7]], dtype=torch.float64)
                    step.backward((model(inputs) - microbatch % 5).square().mean())
            job.finish(list(model.parameters()))
        except ReplicaCondemnedError as error:  # what a guard does in a process
            log.write(ExitLine(code=LEFT, reason=str(error)))

    ThreadWorld(replicas, replica_size=size).run(program)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Events]:
    """Logs of real jobs."""
    out, draw = tmp_path_factory.mktemp("runs"), random.Random(9)
    for number in range(RUNS):
        train(out / str(number), draw)
    return [read_events(out / str(number)) for number in range(RUNS)]


def test_no_real_log_is_rejected(logs: list[Events], tmp_path: Path) -> None:
    rejected = {}
    for number, log in enumerate(logs):
        write_events(log, tmp_path)
        problems = verify(tmp_path).problems
        if problems:
            rejected[number] = problems
    assert not rejected


def witnessed(log: Events) -> list[tuple[int, int]]:
    """Rank and index of the lines that can be forged."""
    dead = {e["replica"] for events in log.values() for e in events if e["event"] == "inject"}
    replicas = {events[0]["replica"] for events in log.values()}
    lines = [e for events in log.values() for e in events]
    told = {r: set[int]() for r in replicas}
    for line in lines:
        if line["event"] == "step":
            told[line["replica"]].add(line["step"])
    reported = {r: f["step"] for f in lines if f["event"] == "failure" for r in f["failed"]}
    last = max(step for steps in told.values() for step in steps)
    silent = {
        step
        for replica in dead
        for step in range(last + 1)
        if step < reported.get(replica, last + 1) and step not in told[replica]
    }
    return [
        (rank, index)
        for rank, events in log.items()
        for index, event in enumerate(events)
        if event["event"] in WITNESSED
        and (event["event"] == "start" or events[0]["replica"] not in dead)
        and not (event["event"] in ("step", "commit") and event["step"] in silent)
    ]


def other(value: Any, draw: random.Random) -> Any:
    """Return a value of the same kind that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw.choice([-7, -1, 1, 2, 40])
    if isinstance(value, float):
        return draw.choice([value * (1 + 1e-5) + 1e-5, value - 0.5, value + 3, "nan", "inf"])
    if isinstance(value, str):
        return value[:-1] + ("0" if value[-1:] != "0" else "1")
    if isinstance(value, dict):
        keys = list(value)
        if keys and draw.random() < 0.5:
            return {**value, (key := draw.choice(keys)): other(value[key], draw)}
        if keys:
            return {key: one for key, one in value.items() if key != keys[0]}
        return {"0": draw.choice([1, [1]])}
    assert isinstance(value, list)
    if not value:
        return [draw.choice([0, 5, [3, 3]])]
    at, how = draw.randrange(len(value)), draw.random()
    if how < 0.3:
        return value[:at] + value[at + 1 :]
    if how < 0.5:
        return [*value, value[at]]
    return [*value[:at], other(value[at], draw), *value[at + 1 :]]


def change(log: Events, rank: int, index: int, draw: random.Random) -> str:
    event = log[rank][index]
    name = draw.choice([name for name in WITNESSED[event["event"]] if name in event])
    before = event[name]
    event[name] = other(before, draw)
    return f"{event['event']}.{name} {before} -> {event[name]}"


def remove(log: Events, rank: int, index: int, _: random.Random) -> str:
    return f"without {log[rank].pop(index)}"


def repeat(log: Events, rank: int, index: int, draw: random.Random) -> str:
    again = copy.deepcopy(log[rank][index])
    log[rank].insert(draw.randint(index, len(log[rank])), again)
    return f"twice {again}"


def move(log: Events, rank: int, index: int, draw: random.Random) -> str:
    target = draw.choice([name for name in log if name != rank])
    moved = log[rank].pop(index)
    log[target].insert(draw.randint(1, len(log[target])), moved)
    return f"from {rank} to {target}: {moved}"


def exchange(log: Events, rank: int, index: int, draw: random.Random) -> str:
    """Exchange what two lines say in one field.

    Of two replicas in one step only who they are: else the batch and its loss stay what they were.
    """
    event = log[rank][index]
    name = draw.choice([name for name in WITNESSED[event["event"]] if name in event])
    fitting = [
        log[r][i]
        for r, i in witnessed(log)
        if log[r][i]["event"] == event["event"] != "start"
        and log[r][i].get(name, event[name]) != event[name]
        and (name in ("step", "replica") or log[r][i]["step"] != event["step"])
    ]
    if not fitting:
        return change(log, rank, index, draw)
    with_ = draw.choice(fitting)
    event[name], with_[name] = with_[name], event[name]
    return f"{event['event']}.{name} {with_[name]} <-> {event[name]}"


FORGE: list[Callable[[Events, int, int, random.Random], str]] = [
    change, change, change, change, exchange, remove, repeat, move,
]  # fmt: skip


def test_no_forged_log_passes(logs: list[Events], tmp_path: Path) -> None:
    draw, passed = random.Random(11), []
    for number in range(FORGERIES):
        log = copy.deepcopy(logs[number % len(logs)])
        rank, index = draw.choice(witnessed(log))
        what = draw.choice(FORGE)(log, rank, index, draw)
        write_events(log, tmp_path)
        if verify(tmp_path).holds:
            passed.append(f"{number}: rank {rank}: {what}")
    assert not passed, f"{len(passed)} of {FORGERIES}:\n" + "\n".join(passed[:40])

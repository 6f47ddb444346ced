"""Real training jobs for tests: start one, read what it wrote, and judge it."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from preload import Launched, Preloaded

from grad_txn.failures import Kill, dump_schedule
from grad_txn.log.verify import verify
from ulfm_core import Membership
from workload_policy import Policy, Promise, agreed_table, load_policy

PRETRAIN = "integrations_hsdp.pretrain"
SMALL = (
    "--layers", "2", "--width", "32", "--sequence", "32", "--bucket-mb", "0.02", "--warmup", "2",
)  # fmt: skip
CLOSE = 1e-5
"""Relative: what float32 sums in another order may differ by."""

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One job."""

    replicas: int
    grad_accum: int
    steps: int = 5
    policy: str = "static"
    staging: str = "no-copy"
    detection: str = "deferred"
    kills: tuple[Kill, ...] = ()
    shard_size: int = 1
    sharding: str | None = None
    batch: int = 1
    redundancy: int | None = None

    def without_failures(self) -> "Case":
        """Return the reference: its losses depend on the stream of ids alone.

        Not on what shards the parameters either, so it is one of DDP's.
        """
        return Case(
            replicas=self.replicas, grad_accum=self.grad_accum, steps=self.steps, batch=self.batch
        )

    def flags(self) -> list[str]:
        return [
            "--steps", str(self.steps), "--grad-accum", str(self.grad_accum),
            "--policy", self.policy, "--staging", self.staging, "--detection", self.detection,
            "--shard-size", str(self.shard_size), "--batch", str(self.batch),
            *(["--sharding", self.sharding] if self.sharding else []),
            *(["--redundancy", str(self.redundancy)] if self.redundancy else []),
            *SMALL,
        ]  # fmt: skip

    @property
    def membership(self) -> Membership:
        """Everyone at the start."""
        return Membership.initial(self.replicas * self.shard_size, self.shard_size)

    def ranks_of(self, replicas: Iterable[int]) -> list[int]:
        """The ranks of these replicas."""
        return [rank for one in sorted(replicas) for rank in self.membership.ranks_of(one)]

    def chosen_policy(self) -> Policy:
        """The policy that decides."""
        chosen = {} if self.redundancy is None else {"redundancy": self.redundancy}
        return load_policy(self.policy, **chosen)


@dataclass(kw_only=True, slots=True)
class Run:
    """A job that has ended, and its log."""

    case: Case
    out: Path
    code: int
    said: str

    @property
    def events(self) -> dict[int, list[Event]]:
        """Every rank's lines, of all runs in the log."""
        files = sorted((self.out / "events").glob("*.jsonl"))
        return {int(file.stem): list(_lines(file)) for file in files}

    def of(self, kind: str) -> list[Event]:
        """The lines of this kind, of all ranks in turn."""
        return [line for lines in self.events.values() for line in lines if line["event"] == kind]

    def steps(self) -> dict[int, Event]:
        """What the log says of every step, of those committed twice the last.

        The commit line, if the leader lived to write it, with ``ids``, ``contributions`` and
        ``stacks`` of each replica, by its own step line.
        """
        told = sorted(self.of("step"), key=lambda line: float(line["time"]))
        plans = {line["step"]: line["plan"] for line in told}
        steps: dict[int, Event] = {
            step: {"ids": {}, "contributions": {}, "stacks": {}} for step in sorted(plans)
        }
        for line in (one for one in told if one["plan"] == plans[one["step"]]):
            step, replica = steps[line["step"]], str(line["replica"])
            ids = [i for first, last in line["ids"] for i in range(first, last + 1)]
            step["ids"][replica] = ids
            step["contributions"][replica] = len(ids)
            step["stacks"][replica] = line.get("stacks", 0)
        for line in self.of("commit"):
            if line["plan"] == plans.get(line["step"]):
                steps[line["step"]] |= line
        return steps

    def trajectory(self) -> dict[int, tuple[float, float]]:
        """Step -> loss and norm, of those whose leader lived to write them down."""
        return {
            step: (line["loss"], line["grad_norm"])
            for step, line in self.steps().items()
            if "loss" in line
        }

    def silent(self) -> dict[int, set[str]]:
        """Step -> the replicas that may have died in it, behind the agreement."""
        dead: dict[int, set[str]] = {}
        for line in self.of("inject"):
            dead.setdefault(line["step"], set()).add(str(line["replica"]))
        for line in self.of("failure"):
            dead.setdefault(line["step"] - 1, set()).update(map(str, line["failed"]))
        return dead

    def finishers(self) -> list[int]:
        """The ranks that wrote a last line, with code 0."""
        return [
            rank
            for rank, lines in self.events.items()
            if any(line["event"] == "exit" and line["code"] == 0 for line in lines)
        ]

    def died(self) -> list[tuple[int, int, str]]:
        """Step, replica and place of every planned death that happened."""
        return sorted((line["step"], line["replica"], line["at"]) for line in self.of("inject"))

    def first_failure(self) -> int:
        """The first step that saw a failure."""
        return min((line["step"] for line in self.of("failure")), default=self.case.steps)


class Trainer:
    """Starts jobs in one folder."""

    def __init__(self, preloaded: Preloaded, folder: Path) -> None:
        self.preloaded = preloaded
        self.folder = folder

    def start(
        self,
        case: Case,
        name: str = "run",
        *more: str,
        ranks: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", PRETRAIN),
    ) -> Launched:
        """Start one; its log goes to the folder `name`."""
        flags = [*case.flags(), "--out", name, *more]
        if case.kills:
            schedule = self.folder / f"{name}.yaml"
            schedule.write_text(dump_schedule(case.kills))
            flags += ["--failures", str(schedule)]
        ranks = ranks or case.replicas * case.shard_size
        command = ["-n", str(ranks), *options, *program, *flags]
        return self.preloaded.start(command, out=self.folder / f"{name}-output", env=env)

    def run(
        self, case: Case, name: str = "run", *more: str, timeout: float = 60.0, **others: Any
    ) -> Run:
        """Run one to its end."""
        job = self.start(case, name, *more, **others)
        code = job.wait(timeout)
        return Run(case=case, out=self.folder / name, code=code, said=job.stdout + job.stderr)


def problems_of(
    run: Run, reference: Mapping[int, tuple[float, float]], *, dead: Iterable[int] | None = None
) -> list[str]:
    """Return what is wrong with a run that ought to have carried its failures through.

    Args:
        run: The run.
        reference: Loss and norm of every step without failures.
        dead: The replicas that were killed; by default those that the schedule names.
    """
    case = run.case
    shrinks = case.chosen_policy().promise is Promise.NONE
    problems = list(verify(run.out, allow_shrinking_batch=shrinks).problems)
    if run.code != 0:
        problems.append(f"ulfmrun ended with {run.code}: {run.said[-1500:]}")
    if dead is None:
        planned = sorted((kill.step, kill.replica, str(kill.at)) for kill in case.kills)
        if run.died() != planned:
            problems.append(f"deaths {run.died()}, planned {planned}")
        dead = {kill.replica for kill in case.kills}
    survivors = case.ranks_of(set(range(case.replicas)) - set(dead))
    if run.finishers() != survivors:
        problems.append(f"extra lost: ranks {run.finishers()} finished, expected {survivors}")
    for position in range(case.shard_size):
        shards = {
            line["parameters"]
            for rank, lines in run.events.items()
            for line in lines
            if line["event"] == "exit" and line["code"] == 0
            if case.membership.position_of(rank) == position
        }
        if len(shards) != 1:
            problems.append(f"divergent: parameters {shards} at position {position}")
    steps = sorted(run.steps())
    if steps != list(range(case.steps)):
        problems.append(f"steps {steps}")
    unknown = set(steps) - set(run.trajectory()) - set(run.silent())
    if unknown:
        problems.append(f"nobody wrote the loss of steps {sorted(unknown)}")
    problems += _differences(run, reference)
    problems += _replayed_otherwise(run)
    return problems


def apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether loss and gradient norm differ by more than rounding."""
    return not all(math.isclose(a, b, rel_tol=CLOSE) for a, b in zip(one, other, strict=True))


def _differences(run: Run, reference: Mapping[int, tuple[float, float]]) -> Iterator[str]:
    exact = run.case.chosen_policy().promise is Promise.EXACT
    equal_until = run.case.steps if exact else run.first_failure()
    for step, values in run.trajectory().items():
        if step < equal_until and apart(values, reference[step]):
            yield f"step {step}: loss and norm {values}, without failures {reference[step]}"


def _replayed_otherwise(run: Run) -> Iterator[str]:
    """Decide once more upon the failures that the log tells of; the log has to say the same."""
    policy = run.case.chosen_policy()
    plan = policy.start(replicas=run.case.replicas, grad_accum=run.case.grad_accum)
    silent = run.silent()
    failures = {(line["epoch"], line["step"], tuple(line["failed"])) for line in run.of("failure")}
    for step, line in sorted(run.steps().items()):
        for _, when, failed in sorted(failures):
            if when == step:
                plan = policy.on_failure(plan, agreed_table(plan, failed)).plan
        counted = {str(replica): list(ids) for replica, ids in plan.committed_ids.items()}
        for replica in silent.get(step, ()):
            if replica not in line["ids"]:
                counted.pop(replica, None)
        if line["ids"] != counted:
            yield f"step {step} committed {line['ids']}, by its policy {counted}"
            return
        _, plan = policy.advance(plan)


def _lines(file: Path) -> Iterator[Event]:
    for text in file.read_text().splitlines():
        try:
            yield json.loads(text)
        except ValueError:  # the last words of a rank that was killed from outside
            return


def exact(case: Case) -> Case:
    return replace(case, policy="exact")

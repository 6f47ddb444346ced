"""Event logs of runs that were only played: real policies, real files, no processes, no waiting.

For tests of whatever reads a log. The policy decides as it would in a job, each rank writes the
lines it would write, and a killed rank falls silent after its ``inject`` line. Times, losses and
digests are made up, but hang on the committed ids as real ones do: a run with policy ``exact`` has
the losses of the run without failures.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grad_txn.events import EventLog
from grad_txn.schedule import At, Kill
from workload_policy import Decision, Plan, SurvivorRecord, policy_named

__all__ = ["play_run"]

_MICROBATCH = 0.03
_SYNC = 0.02
_GUARD = 0.006
_TOKENS = 512


def play_run(
    out: str | os.PathLike[str],
    *,
    policy: str = "static",
    replicas: int = 4,
    grad_accum: int = 8,
    replica_size: int = 1,
    steps: int = 8,
    kills: Iterable[Kill] = (),
    run: str = "first",
    begin: float = 1.7e9,
    resume: Plan | None = None,
    stop: int | None = None,
) -> Plan:
    """Write the log of a run as its ranks would have written it.

    Args:
        out: Directory of the run; its logs are appended to.
        policy: Name of the policy that decides.
        replicas: Replicas in this run's world. With `resume` they may be fewer or more than the
            first run had; the batch stays that of the plan.
        grad_accum: Microbatches per replica and step at the start of the first run.
        replica_size: Ranks in one replica.
        steps: Optimizer steps of the run; the last is ``steps - 1``.
        kills: Who dies when. Deaths inside a recovery come one recovery after the other.
        run: Name of the run in its start lines.
        begin: Time of the start, in seconds since the epoch.
        resume: Plan to go on from, as it was returned by an earlier call with `stop`.
        stop: Step before which the whole job is lost: no exit lines are written.

    Returns:
        The plan of the step after the last one committed.
    """
    chooser = policy_named(policy)
    if resume is None:
        plan = chooser.start(replicas=replicas, grad_accum=grad_accum)
    else:
        plan = chooser.advance(resume, range(replicas))
    world = [divmod(rank, replica_size) for rank in range(replicas * replica_size)]
    job = _Job(plan=plan, run=run, begin=begin, clock=begin, replica_size=replica_size)
    job.logs = {rank: EventLog(out, rank, clock=lambda: job.clock) for rank in range(len(world))}
    job.living = set(range(replicas))
    for rank, (replica, position) in enumerate(world):
        job.logs[rank].write(
            "start",
            run=run, rank=rank, replica=replica, position=position, replicas=plan.replicas,
            grad_accum=plan.grad_accum, replica_size=replica_size,
            global_batch=plan.global_batch, policy=policy, first_step=plan.step, steps=steps,
            tokens_per_microbatch=_TOKENS, seed=0, detection="deferred", staging="out_of_place",
            host="node0", pid=1000 + rank,
        )  # fmt: skip
    due = sorted(kills, key=lambda kill: kill.step)
    for step in range(plan.step, steps if stop is None else stop):
        job.play_step([kill for kill in due if kill.step == step], chooser.name)
    if stop is None:
        job.finish()
    for log in job.logs.values():
        log.close()
    return job.plan


@dataclass(kw_only=True)
class _Job:
    plan: Plan
    run: str
    begin: float
    clock: float
    replica_size: int
    logs: dict[int, EventLog] = field(default_factory=dict)
    living: set[int] = field(default_factory=set)
    unseen: list[Kill] = field(default_factory=list)
    waiting: list[Kill] = field(default_factory=list)
    epoch: int = 0

    def ranks(self, replica: int) -> range:
        return range(replica * self.replica_size, (replica + 1) * self.replica_size)

    def survivors(self) -> Iterable[EventLog]:
        return (self.logs[rank] for replica in sorted(self.living) for rank in self.ranks(replica))

    def play_step(self, kills: Sequence[Kill], policy: str) -> None:
        began = self.clock
        self.clock += _MICROBATCH * max(len(ids) for ids in self.plan.assigned.values()) + _SYNC
        # Who dies right before the commit has given its part: the step stands.
        stands = [kill for kill in kills if kill.at is At.BEFORE_COMMIT or kill.at.committed]
        for kill in kills:
            if not kill.at.in_recovery and kill not in stands:
                self.kill(kill)
        self.waiting += [kill for kill in kills if kill.at.in_recovery]
        if self.unseen:
            self.recover(policy)
            for kill in self.waiting:
                self.kill(kill)
                self.recover(policy)
            self.waiting.clear()
        plan = self.plan
        loss = 2.5 * 0.97**plan.step + sum(
            _noise(i) for ids in plan.committed_ids.values() for i in ids
        ) / max(plan.total, 1)
        for kill in stands:
            if kill.at is At.BEFORE_COMMIT:
                self.kill(kill)
        for replica in sorted(self.living):
            self.logs[self.ranks(replica)[0]].write(
                "step",
                step=plan.step, epoch=self.epoch, loss=loss, grad_norm=1 + 1 / (plan.step + 1),
                replica=replica, replicas=len(plan.members), contributions=plan.contributions,
                ids=plan.committed_ids, roles={m: r.label for m, r in plan.roles.items()},
                total=plan.total, boundary=plan.boundary, extra=plan.extra,
                seconds=self.clock - began, tokens=plan.total * _TOKENS,
            )  # fmt: skip
        for kill in stands:
            if kill.at.committed:
                self.kill(kill)
        _, self.plan = policy_named(policy).commit(plan)

    def kill(self, kill: Kill) -> None:
        self.logs[self.ranks(kill.replica)[kill.rank]].write(
            "inject",
            step=kill.step, at=kill.at, replica=kill.replica, position=kill.rank,
            bucket=kill.bucket, microbatch=kill.microbatch,
        )  # fmt: skip
        peers = [rank for rank in self.ranks(kill.replica) if rank % self.replica_size != kill.rank]
        self.clock += _GUARD if peers else 0.0
        for rank in peers:
            self.logs[rank].write("exit", code=75, reason="a peer died")
        self.living.discard(kill.replica)
        self.unseen.append(kill)

    def recover(self, policy: str) -> None:
        """Detect, repair, record, decide, restore, extend."""
        plan = self.plan
        table = [
            SurvivorRecord(
                replica=replica,
                role=plan.roles[replica],
                contributed=len(plan.assigned[replica]),
                microbatch=0,
            )
            for replica in sorted(self.living)
        ]
        decision = policy_named(policy).on_failure(plan, table)
        ranks = sorted({self.ranks(kill.replica)[kill.rank] for kill in self.unseen})
        self.epoch += 1
        self.unseen.clear()
        self.plan = decision.plan
        where = {"step": plan.step, "epoch": self.epoch}
        self.everyone("repair", 0.02, **where, detect=0.004, repair=0.013, record=0.003, rounds=1)
        self.everyone("failure", 0.0, **where, failed_ranks=ranks, **_decided(decision))
        self.everyone(
            "restore", 0.012, **where, mode=decision.restore.value, buckets=3, seconds=0.002,
            rereduce=0.0 if decision.boundary else 0.01,
        )  # fmt: skip
        if decision.extra:
            most = max(map(len, decision.extra.values()))
            self.everyone(
                "extend", most * _MICROBATCH + _SYNC, **where, microbatches=most,
                seconds=most * _MICROBATCH, rereduce=_SYNC,
            )  # fmt: skip

    def everyone(self, event: str, lasts: float, **fields: object) -> None:
        self.clock += lasts
        for log in self.survivors():
            log.write(event, **fields)

    def finish(self) -> None:
        for replica in sorted(self.living):
            for position, rank in enumerate(self.ranks(replica)):
                digest = hashlib.sha256(f"{self.plan.cursor} {position}".encode()).hexdigest()
                self.logs[rank].write(
                    "exit", code=0, step=self.plan.step - 1, reason="finished", parameters=digest
                )


def _decided(decision: Decision) -> Mapping[str, object]:
    return {
        "failed": decision.failed,
        "boundary": decision.boundary,
        "restore": decision.restore.value,
        "promoted": decision.promoted,
        "extra": decision.extra,
        "queued": decision.queued,
        "contributions": decision.plan.contributions,
    }


def _noise(microbatch: int) -> float:
    """What this microbatch adds to the mean loss, in -0.25 to 0.25."""
    digest = hashlib.sha256(str(microbatch).encode()).digest()
    return int.from_bytes(digest[:4]) / 2**33 - 0.25

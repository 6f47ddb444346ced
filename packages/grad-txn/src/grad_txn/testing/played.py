"""Event logs of runs that were only played: real policies, real files, no processes, no waiting.

For tests of whatever reads a log. The policy decides as it would in a job, each rank writes the
lines it would write, and a killed rank falls silent after its ``inject`` line. Times, losses and
digests are made up, but hang on the committed ids as real ones do: a run with policy ``exact`` has
the losses of the run without failures.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from grad_txn.failures.places import At
from grad_txn.failures.schedule import Kill
from grad_txn.log.events import EventLog
from grad_txn.log.lines import (
    CommitLine,
    ExitLine,
    ExtendLine,
    FailureLine,
    InjectLine,
    Line,
    RepairLine,
    RestoreLine,
    StartLine,
    StepLine,
)
from workload_policy import Decision, Plan, Policy, agreed_table, load_policy, ranges_of

__all__ = ["LEFT", "play_run"]

LEFT = os.EX_TEMPFAIL
"""The exit code of a rank that its guard has ended, as a guard leaves it behind."""

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
        policy: The policy that decides, as `workload_policy.load_policy` names it.
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
    chooser = load_policy(policy)
    if resume is None:
        plan = chooser.start(replicas=replicas, grad_accum=grad_accum)
    else:
        plan = chooser.relayout(resume, range(replicas))
    job = _Job(policy=chooser, plan=plan, clock=begin, living=set(range(replicas)))
    places = [
        (replica, position) for replica in range(replicas) for position in range(replica_size)
    ]
    for rank, (replica, position) in enumerate(places):
        log = EventLog(out, rank, clock=lambda: job.clock)
        job.ranks.setdefault(replica, []).append(_Rank(number=rank, log=log))
        log.write(
            StartLine(
                run=run,
                rank=rank,
                replica=replica,
                position=position,
                replicas=plan.replicas,
                living=replicas,
                grad_accum=plan.grad_accum,
                replica_size=replica_size,
                global_batch=plan.global_batch,
                policy=plan.policy,
                promise=chooser.promise,
                first_step=plan.step,
                cursor=plan.cursor,
                queue=ranges_of(plan.queue),
                steps=steps,
                tokens_per_microbatch=_TOKENS,
                staging="no-copy",
                host="node0",
                pid=1000 + rank,
                about={"seed": 0},
            )
        )
    due = sorted(kills, key=lambda kill: kill.step)
    for step in range(plan.step, steps if stop is None else stop):
        job.play_step([kill for kill in due if kill.step == step])
    if stop is None:
        job.finish()
    for ranks in job.ranks.values():
        for one in ranks:
            one.log.close()
    return job.plan


@dataclass(kw_only=True)
class _Rank:
    number: int
    log: EventLog


@dataclass(kw_only=True)
class _Job:
    """What the ranks of a job share; `ranks` is replica -> its ranks by position."""

    policy: Policy
    plan: Plan
    clock: float
    living: set[int]
    ranks: dict[int, list[_Rank]] = field(default_factory=dict)
    unseen: list[Kill] = field(default_factory=list)
    waiting: list[Kill] = field(default_factory=list)
    epoch: int = 0

    def play_step(self, kills: Sequence[Kill]) -> None:
        began = self.clock
        self.clock += _MICROBATCH * max(len(ids) for ids in self.plan.assigned.values()) + _SYNC
        # Who dies right before the commit has given its part: the step stands.
        stands = [kill for kill in kills if kill.at is At.BEFORE_COMMIT or kill.at.committed]
        for kill in kills:
            if not kill.at.in_recovery and kill not in stands:
                self.kill(kill)
        self.waiting += [kill for kill in kills if kill.at.in_recovery]
        if self.unseen:
            self.recover()
            for kill in self.waiting:
                self.kill(kill)
                self.recover()
            self.waiting.clear()
        plan = self.plan
        for kill in stands:
            if kill.at is At.BEFORE_COMMIT:
                self.kill(kill)
        for replica in sorted(self.living):
            counted = plan.committed_ids[replica]
            self.ranks[replica][0].log.write(
                StepLine(
                    step=plan.step,
                    epoch=self.epoch,
                    replica=replica,
                    life=0,
                    role=plan.roles[replica].label,
                    ids=ranges_of(counted),
                    loss_sum=sum(_loss(plan.step, i) for i in counted),
                    weight_sum=float(len(counted)),
                    plan=plan.digest,
                    stacks=0 if plan.stacks is None else len(plan.stacks[replica]),
                )
            )
        leader = min(plan.members)
        if leader in self.living:  # else it died behind the agreement, and nobody replaces it yet
            self.ranks[leader][0].log.write(self.commit_line(self.clock - began))
        for kill in stands:
            if kill.at.committed:
                self.kill(kill)
        _, self.plan = self.policy.advance(plan)

    def commit_line(self, seconds: float) -> CommitLine:
        plan = self.plan
        ids = [i for some in plan.committed_ids.values() for i in some]
        return CommitLine(
            step=plan.step,
            epoch=self.epoch,
            generation=0,
            total=plan.total,
            loss=sum(_loss(plan.step, i) for i in sorted(ids)) / max(plan.total, 1),
            grad_norm=1 + 1 / (plan.step + 1),
            living=len(plan.members),
            boundary=plan.boundary,
            extra=plan.extra,
            plan=plan.digest,
            seconds=seconds,
            tokens=plan.total * _TOKENS,
        )

    def kill(self, kill: Kill) -> None:
        victim = self.ranks[kill.replica][kill.position]
        victim.log.write(
            InjectLine(
                step=kill.step,
                at=kill.at,
                replica=kill.replica,
                position=kill.position,
                bucket=kill.bucket,
                microbatch=kill.microbatch,
            )
        )
        peers = [rank for rank in self.ranks[kill.replica] if rank is not victim]
        self.clock += _GUARD if peers else 0.0
        for rank in peers:
            rank.log.write(ExitLine(code=LEFT, reason="a peer died"))
        self.living.discard(kill.replica)
        self.unseen.append(kill)

    def recover(self) -> None:
        """Detect, repair, record, decide, restore, extend."""
        dead = {kill.replica for kill in self.unseen}
        decision = self.policy.on_failure(self.plan, agreed_table(self.plan, dead))
        victims = {self.ranks[kill.replica][kill.position].number for kill in self.unseen}
        step = self.plan.step
        self.epoch += 1
        epoch = self.epoch
        self.unseen.clear()
        self.plan = decision.plan
        self.everyone(
            0.02,
            RepairLine(
                step=step, epoch=epoch, detect=0.004, repair=0.013, record=0.003, rounds=1,
                complete=False,
            ),
        )  # fmt: skip
        self.everyone(0.0, _failure(decision, epoch=epoch, ranks=sorted(victims)))
        self.everyone(
            0.012,
            RestoreLine(
                step=step, epoch=epoch, mode=decision.restore.value, buckets=3, seconds=0.002,
                rereduce=0.0 if decision.boundary else 0.01,
            ),
        )  # fmt: skip
        if decision.extra_ids:
            most = max(map(len, decision.extra_ids.values()))
            self.everyone(
                most * _MICROBATCH + _SYNC,
                ExtendLine(
                    step=step, epoch=epoch, microbatches=most, seconds=most * _MICROBATCH,
                    rereduce=_SYNC,
                ),
            )  # fmt: skip

    def everyone(self, lasts: float, line: Line) -> None:
        """Have all survivors write a line after that many seconds."""
        self.clock += lasts
        for replica in sorted(self.living):
            for rank in self.ranks[replica]:
                rank.log.write(line)

    def finish(self) -> None:
        for replica in sorted(self.living):
            for position, rank in enumerate(self.ranks[replica]):
                digest = hashlib.sha256(f"{self.plan.cursor} {position}".encode()).hexdigest()
                rank.log.write(
                    ExitLine(code=0, reason="finished", step=self.plan.step - 1, parameters=digest)
                )


def _failure(decision: Decision, *, epoch: int, ranks: Sequence[int]) -> FailureLine:
    return FailureLine(
        step=decision.plan.step,
        epoch=epoch,
        failed=decision.failed,
        failed_ranks=ranks,
        boundary=decision.boundary,
        restore=decision.restore.value,
        promoted=decision.promoted,
        extra_ids=decision.extra_ids,
        queued=decision.queued,
        contributions=decision.plan.contributions,
        recounted=decision.recounted,
    )


def _loss(step: int, microbatch: int) -> float:
    return 2.5 * 0.97**step + _noise(microbatch)


def _noise(microbatch: int) -> float:
    """What this microbatch adds to the mean loss, in -0.25 to 0.25."""
    digest = hashlib.sha256(str(microbatch).encode()).digest()
    return int.from_bytes(digest[:4]) / 2**33 - 0.25

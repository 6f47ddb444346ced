"""The job: optimizer steps that commit the same batch, whatever dies.

.. code-block:: python

    for step in job.steps(max_steps):
        for microbatch in step:      # ids of this replica; more when a failure leaves work to redo
            step.backward(model(*batch(microbatch)))
        # here the step is committed and the optimizer has stepped

The gradients are staged, reduced and restored by a `StepTransaction`; the world below tells, once a
step and on all survivors alike, whether all went well; the policy turns the table of survivors into
a decision. `Step` runs them in order (ReCoVer, Algorithm 1).
"""

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from grad_txn.communicator import Communicator
from grad_txn.errors import DivergenceError, UsageError
from grad_txn.events import EventLog
from grad_txn.gradients import Gradients, local_part
from grad_txn.reserve import Reserve
from grad_txn.runtime import Observer, Runtime
from grad_txn.schedule import At, FailureInjector
from grad_txn.step import Step
from grad_txn.transaction import Staging, StepTransaction
from workload_policy import Plan, Policy

__all__ = ["Job", "Observer", "Step"]

# The guard's own line: it knows of no step.
_LAST_WORDS = '{"event": "exit", "time": {time}, "code": 75, "reason": "{reason}"}\n'
_DIED_IN_SET_UP = "a rank died while the job was being set up: start it again"


class Job:
    """A training job over the living replicas.

    Args:
        world: The communicator, of which this process is one rank.
        gradients: Where the framework keeps this rank's accumulated gradients.
        optimizer: Stepped once for each committed step.
        policy: Who computes what.
        grad_accum: Microbatches per replica and step at the start, G_init. B = replicas *
            grad_accum, for good.
        log: The event log of this rank.
        replicas: Replicas that the run was started with, W_init; by default as many as there are.
        scheduler: Learning-rate scheduler, stepped after the optimizer.
        max_norm: Clip the gradients to this global norm.
        staging: ``no-copy`` or ``snapshot``, see `StepTransaction`.
        injector: Kills this process where a schedule says so.
        observers: Told about steps and failures.
        tokens_per_microbatch: For the log's token counts.
        about: Further fields for the log's ``start`` line.

    Collective over the world: all ranks make it with the same arguments, and call everything in the
    same order.

    Raises:
        UsageError: An argument has a value that cannot work.
        DivergenceError: The replicas' gradient buckets differ, or a rank died meanwhile.
    """

    def __init__(
        self,
        world: Communicator,
        gradients: Gradients,
        optimizer: Optimizer,
        *,
        policy: Policy,
        grad_accum: int,
        log: EventLog,
        replicas: int | None = None,
        scheduler: LRScheduler | None = None,
        max_norm: float | None = None,
        staging: Staging = "no-copy",
        injector: FailureInjector | None = None,
        observers: Sequence[Observer] = (),
        tokens_per_microbatch: int = 0,
        about: Mapping[str, object] | None = None,
    ) -> None:
        if max_norm is not None and not max_norm > 0:
            raise UsageError(f"max_norm is {max_norm}; give a positive norm, or None not to clip")
        self._replicas_now = world.initial_size // world.replica_size
        plan = policy.start(replicas=replicas or self._replicas_now, grad_accum=grad_accum)
        self._staging = staging
        self._about = dict(about or {})
        self._run = _agree_on_start(world, gradients.buckets)
        self._runtime = Runtime(
            world=world,
            gradients=gradients,
            transaction=StepTransaction(world, gradients.buckets, staging=staging),
            optimizer=optimizer,
            scheduler=scheduler,
            max_norm=max_norm,
            policy=policy,
            plan=plan,
            step_plan=plan,
            log=log,
            injector=injector,
            observers=tuple(observers),
            tokens_per_microbatch=tokens_per_microbatch,
            reserve=Reserve(gradients.buckets),
        )
        self._lay_out(plan)
        world.set_last_words(log.fileno(), _LAST_WORDS)
        optimizer.register_step_pre_hook(self._on_optimizer_step)
        world.on_repair_phase(self._on_repair_phase)

    @property
    def plan(self) -> Plan:
        """The plan of the step in progress, or between steps of the next one."""
        return self._runtime.plan

    @property
    def global_batch(self) -> int:
        """B: microbatches in every committed step."""
        return self.plan.global_batch

    @property
    def leads(self) -> bool:
        """Whether this rank leads the lowest living replica, which prints and saves."""
        return self._runtime.leads

    def steps(self, max_steps: int) -> Iterator[Step]:
        """Yield the steps from the current one to number ``max_steps - 1``.

        Raises:
            UsageError: A step was left before it was committed.
        """
        runtime, world, plan = self._runtime, self._runtime.world, self.plan
        runtime.log.write(
            "start",
            run=self._run,
            rank=world.rank,
            replica=world.replica,
            position=world.position,
            replicas=plan.replicas,
            grad_accum=plan.grad_accum,
            replica_size=world.replica_size,
            global_batch=plan.global_batch,
            policy=plan.policy,
            first_step=plan.step,
            steps=max_steps,
            tokens_per_microbatch=runtime.tokens_per_microbatch,
            staging=self._staging,
            host=socket.gethostname(),
            pid=os.getpid(),
            **self._about,
        )
        runtime.gradients.zero()
        runtime.committed_at = time.perf_counter()
        while self.plan.step < max_steps:
            step = Step(runtime)
            yield step
            if not step.committed:
                raise UsageError(
                    f"step {step.number} was left before its end; iterate over it until it stops"
                )

    def finish(self, parameters: Sequence[Tensor], *, reason: str = "finished") -> None:
        """Agree that the steps are done, and write this rank's last line.

        Args:
            parameters: The model's, sharded or not, for the digest that shows that all replicas
                hold the same.
            reason: Why the job ends.

        Collective over the world: a death in the last step is noticed here.
        """
        runtime = self._runtime
        runtime.world.beat("the end of the job")
        while runtime.broken_in is not None or not runtime.world.agree(True).all_alive:
            runtime.repair(detect_seconds=0.0, computed=0)
        digest = _digest(parameters)
        runtime.world.set_last_words(None)
        runtime.log.write("exit", code=0, step=self.plan.step - 1, reason=reason, parameters=digest)
        runtime.log.close()

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give every replica the values that the lowest one has, in place: shard by shard.

        Collective over the cross-replica group; before the first step.

        Raises:
            DivergenceError: A rank died meanwhile.
        """
        for tensor in tensors:
            part = local_part(tensor.detach())
            flat = part.cpu().contiguous()
            if self._runtime.world.broadcast(flat, root=0).wait().name != "OK":
                raise DivergenceError(_DIED_IN_SET_UP)
            part.copy_(flat)

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs besides model and optimizer. Local.

        That is the step, the policy's state and the cursor of the stream, ready for JSON. Within a
        step that cannot be finished it is the state that the step began with, as that of model and
        optimizer is.
        """
        return {"plan": self._runtime.step_plan.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, with as many replicas as there are now; B stays B.

        Collective over the world; before the first step.

        Raises:
            workload_policy.PlanError: The state is damaged, or of another policy.
        """
        self._lay_out(Plan.from_dict(state["plan"]))

    def _lay_out(self, plan: Plan) -> None:
        """Put a plan into force, for the replicas that are there, numbered from 0."""
        runtime, members = self._runtime, tuple(range(self._replicas_now))
        same = plan.members == members and plan.policy == runtime.policy.name
        runtime.plan = plan if same else runtime.policy.advance(plan, members)
        runtime.step_plan = runtime.plan

    def _on_optimizer_step(self, *_: object) -> None:
        self._runtime.reached(At.OPTIMIZER, self.plan.step - 1)

    def _on_repair_phase(self, phase: str, _round: int) -> None:
        if phase == "shrink":
            self._runtime.reached(At.DURING_REPAIR, self.plan.step)
            if self._runtime.broken_in is not None:
                self._runtime.reached(At.DURING_REPAIR, self._runtime.broken_in)


def _agree_on_start(world: Communicator, buckets: Sequence[Tensor]) -> str:
    """Refuse replicas whose buckets differ, and return a name for this run.

    Sums of differing buckets would mix the gradients of different parameters.
    """
    text = "; ".join(f"{bucket.numel()} {bucket.dtype}" for bucket in buckets)
    layout = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    name = torch.tensor([secrets.randbits(62)], dtype=torch.int64)
    if world.replica_size > 1:  # one name for all positions: that of the first replica's first rank
        first = world.replica * world.replica_size
        replica = world.subgroup(range(first, first + world.replica_size))
        if world.broadcast(name, root=0, among=replica).wait().name != "OK":
            raise DivergenceError(_DIED_IN_SET_UP)
    mine = torch.cat((torch.tensor([layout]), name))
    gathered = torch.empty(2 * world.group_size, dtype=torch.int64)
    if world.all_gather(mine, gathered).wait().name != "OK":
        raise DivergenceError(_DIED_IN_SET_UP)
    if not bool((gathered[::2] == layout).all()):
        raise DivergenceError(
            f"the replicas' gradient buckets differ, this one has {text}; build the same model "
            "everywhere"
        )
    return f"{int(gathered[1]):016x}"


def _digest(parameters: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for parameter in parameters:
        flat = local_part(parameter.detach()).cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

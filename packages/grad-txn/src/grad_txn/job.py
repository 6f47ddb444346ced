"""The job: optimizer steps that commit the same batch, whatever dies.

.. code-block:: python

    for step in job.steps(max_steps):
        for microbatch in step:      # ids of this replica; more when a failure leaves work to redo
            step.backward(model(*batch(microbatch)))
        # here the step is committed and the optimizer has stepped

`Step` goes from microbatches to the commit; the world below tells, once a step and on all survivors
alike, whether all went well; the policy turns the table of survivors into a decision (ReCoVer,
Algorithm 1).
"""

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grad_txn.between import Between
from grad_txn.communicator import Communicator, Control, Reducer
from grad_txn.errors import UsageError
from grad_txn.failures.places import NOWHERE, At, Places
from grad_txn.fingerprint import held_by
from grad_txn.gradients import Gradients, local_part
from grad_txn.log.events import EventLog
from grad_txn.log.lines import ExitLine, StartLine, last_words
from grad_txn.log.observer import Observer
from grad_txn.notes import Notes
from grad_txn.parts import Parts, Progress, Steppable
from grad_txn.recovery import repair
from grad_txn.reserve import Reserve
from grad_txn.sameness import Sameness
from grad_txn.staging import Staging, StagingMode
from grad_txn.start import complete, require_same
from grad_txn.step import Step
from ulfm_core.codes import CONDEMNED, FINISHED
from workload_policy import Plan, Policy, ranges_of

__all__ = ["Job"]

_PLAIN = (bool, int, float, str, tuple, type(None))


class Job(Between):
    """A training job over the living replicas.

    Args:
        world: The communicator, of which this process is one rank.
        gradients: Where the framework keeps this rank's accumulated gradients.
        optimizer: Stepped once for each committed step.
        policy: Who computes what.
        grad_accum: Microbatches per replica and step at the start, G_init. B = replicas *
            grad_accum, for good.
        log: The event log of this rank.
        reducer: What sums buckets across replicas, where that is not the world itself.
        replicas: Replicas that the run was started with, W_init; by default as many as there are.
        scheduler: Learning-rate scheduler, stepped after the optimizer.
        max_norm: Clip the gradients to this global norm.
        staging: ``no-copy`` or ``snapshot``, see `grad_txn.staging`.
        injector: Told where in a step this process is, to kill it where a schedule says so.
        observers: Told about steps and failures on the leader.
        tokens_per_microbatch: For the log's token counts.
        check_every: Compare what the replicas hold at the first step, and before every so manieth;
            0 for the first alone. See `grad_txn.sameness`.
        held: Returns the tensors of this rank that must be the same in all replicas; by default
            the optimizer's parameters and their state.
        log_losses: Log the loss of each microbatch, not only their sum.
        about: Further fields for the log's ``start`` line.

    Collective over the world: all ranks make it with the same arguments, and call everything in the
    same order.

    Raises:
        UsageError: An argument has a value that cannot work.
        StartError: The replicas' gradient buckets differ.
        DivergenceError: A rank died meanwhile.
    """

    def __init__(
        self,
        world: Communicator,
        gradients: Gradients,
        optimizer: Steppable,
        *,
        policy: Policy,
        grad_accum: int,
        log: EventLog,
        reducer: Reducer | None = None,
        replicas: int | None = None,
        scheduler: Steppable | None = None,
        max_norm: float | None = None,
        staging: StagingMode = "no-copy",
        injector: Places = NOWHERE,
        observers: Sequence[Observer] = (),
        tokens_per_microbatch: int = 0,
        check_every: int = 100,
        held: Callable[[], Iterable[Tensor]] | None = None,
        log_losses: bool = False,
        about: Mapping[str, object] | None = None,
    ) -> None:
        if max_norm is not None and not max_norm > 0:
            raise UsageError(f"max_norm is {max_norm}; give a positive norm, or None not to clip")
        self._living_at_start = world.membership.living
        self._about = dict(about or {})
        plan = policy.start(replicas=replicas or len(self._living_at_start), grad_accum=grad_accum)
        self._run = _name_of_run(world, gradients.buckets)
        self._parts = Parts(
            control=world,
            gradients=gradients,
            staging=Staging(reducer or world, gradients.buckets, mode=staging),
            sameness=Sameness(held or partial(held_by, optimizer), every=check_every),
            reserve=Reserve(gradients.buckets),
            optimizer=optimizer,
            scheduler=scheduler,
            policy=policy,
            log=log,
            places=injector,
            observers=tuple(observers),
            max_norm=max_norm,
            tokens_per_microbatch=tokens_per_microbatch,
            log_losses=log_losses,
        )
        self._progress = Progress(plan=plan, step_plan=plan)
        self._notes = Notes()
        self._lay_out(plan)
        world.set_last_words(log.fileno(), last_words(CONDEMNED))
        world.on_repair_phase(self._on_repair_phase)

    @property
    def plan(self) -> Plan:
        """The plan of the step in progress, or between steps of the next one."""
        return self._progress.plan

    @property
    def global_batch(self) -> int:
        """B: microbatches in every committed step."""
        return self.plan.global_batch

    @property
    def leads(self) -> bool:
        """Whether this rank leads the lowest living replica, which prints and saves."""
        return self._parts.leads

    def steps(self, max_steps: int) -> Iterator[Step]:
        """Yield the steps from the current one to number ``max_steps - 1``.

        Collective over the world: before the first, all ranks make sure that they start alike.

        Raises:
            StartError: They do not: another step, plan, number of steps, or optimizer setting.
            UsageError: A step was left before it was committed.
        """
        parts, progress = self._parts, self._progress
        self._require_same_start(max_steps)
        parts.log.write(self._start_line(max_steps))
        parts.gradients.zero()
        progress.committed_at = time.perf_counter()
        while progress.plan.step < max_steps:
            step = Step(parts, progress)
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
        parts, progress = self._parts, self._progress
        parts.control.beat("the end of the job")
        while progress.broken_in is not None or not parts.control.agree(True).all_alive:
            repair(parts, progress)
        digest = _digest(parameters)
        parts.control.set_last_words(None)
        parts.log.write(
            ExitLine(code=FINISHED, step=self.plan.step - 1, reason=reason, parameters=digest)
        )
        parts.log.close()

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Give every replica the values that the lowest one has, in place: shard by shard.

        Collective over the cross-replica group; before the first step.

        Raises:
            DivergenceError: A rank died meanwhile.
        """
        for tensor in tensors:
            part = local_part(tensor.detach())
            flat = part.cpu().contiguous()
            complete(self._parts.control.broadcast(flat, root=0))
            part.copy_(flat)

    def state_dict(self) -> dict[str, Any]:
        """Return what resuming needs besides model and optimizer. Local.

        That is the step, the policy's state, the cursor of the stream and the notes, ready for
        JSON. Within a
        step that cannot be finished it is the state that the step began with, as that of model and
        optimizer is.
        """
        return {"plan": self._progress.step_plan.to_dict(), "notes": self._notes.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, with as many replicas as there are now; B stays B.

        Collective over the world; before the first step.

        Raises:
            workload_policy.PlanError: The state is damaged, or of another policy.
        """
        self._lay_out(Plan.from_dict(state["plan"]))
        self._notes.load(state["notes"])

    def _lay_out(self, plan: Plan) -> None:
        """Put a plan into force, for the replicas that are there."""
        policy, members = self._parts.policy, self._living_at_start
        same = plan.members == members and plan.policy == policy.name
        now = plan if same else policy.relayout(plan, members)
        self._progress.plan = self._progress.step_plan = now

    def _require_same_start(self, max_steps: int) -> None:
        plan, parts = self.plan, self._parts
        settings = [
            {name: value for name, value in group.items() if isinstance(value, _PLAIN)}
            for group in getattr(parts.optimizer, "param_groups", ())
        ]
        facts: dict[str, tuple[object, bool]] = {
            "the step": (plan.step, True),
            "the plan": (plan.digest, True),
            "the last step": (max_steps, True),
            "check_every": (parts.sameness.every, True),
            "max_norm": (parts.max_norm, True),
            "the optimizer's settings": (settings, False),
        }
        require_same(parts.control, facts)

    def _start_line(self, max_steps: int) -> StartLine:
        parts, plan, control = self._parts, self.plan, self._parts.control
        return StartLine(
            run=self._run,
            rank=control.rank,
            replica=control.replica,
            position=control.position,
            replicas=plan.replicas,
            living=len(plan.members),
            grad_accum=plan.grad_accum,
            replica_size=len(control.membership.ranks_of(control.replica)),
            global_batch=plan.global_batch,
            policy=plan.policy,
            promise=parts.policy.promise.value,
            first_step=plan.step,
            cursor=plan.cursor,
            queue=ranges_of(plan.queue),
            steps=max_steps,
            tokens_per_microbatch=parts.tokens_per_microbatch,
            staging=parts.staging.mode,
            host=socket.gethostname(),
            pid=os.getpid(),
            about=self._about,
        )

    def _on_repair_phase(self, phase: str, _round: int) -> None:
        if phase == "shrink":
            places, progress = self._parts.places, self._progress
            places.reached(At.DURING_REPAIR, progress.plan.step)
            if progress.broken_in is not None:
                places.reached(At.DURING_REPAIR, progress.broken_in)


def _name_of_run(world: Control, buckets: Sequence[Tensor]) -> str:
    """Refuse replicas whose buckets differ, and return a name for this run.

    Sums of differing buckets would mix the gradients of different parameters.
    """
    layout = "; ".join(f"{bucket.numel()} {bucket.dtype}" for bucket in buckets)
    require_same(world, {"the gradient buckets": (layout, False)})
    name = torch.tensor([secrets.randbits(62)], dtype=torch.int64)
    complete(world.broadcast(name, root=0, among=world.subgroup(world.membership.ranks)))
    return f"{int(name):016x}"


def _digest(parameters: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for parameter in parameters:
        flat = local_part(parameter.detach()).cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

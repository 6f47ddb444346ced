"""Nanotron's trainer, resilient: it trains on when replicas are lost.

.. code-block:: python

    trainer = ResilientTrainer("config.yaml", Resilience(out=Path("run")))
    trainer.train(lambda number: batch_of(trainer.rows(number)))

Every replica is a Nanotron world of its own, with the parallelism that the configuration names; its
`dp` is that inside a replica. Nanotron's train() runs as it is, loop, logs and checkpoints. What is
replaced is one training step: between the pipeline and the optimizer stands a `grad_txn` step,
which reduces gradients across replicas, recovers from losses, and commits the same batch each time.
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from grad_txn.errors import CheckpointError
from grad_txn.failures import FailureInjector
from grad_txn.fingerprint import held_by
from grad_txn.job import Job
from grad_txn.log.events import EventLog
from grad_txn.log.lines import CheckpointLine
from grad_txn.passes import Pass
from grad_txn.replica import join
from integrations_3d.config import replica_size_of
from integrations_3d.errors import NanotronMissingError
from integrations_3d.placement import take_device
from integrations_3d.resumption import choose, complete_optimizer, read_state, write_state
from integrations_3d.settings import Resilience
from integrations_3d.stream import Microbatch, Stream, Times, loss_of
from ulfm_core import Membership, environment
from workload_policy import PlanError, load_policy

try:
    from nanotron import logging as nanotron_logging
    from nanotron.parallel.pipeline_parallel.engine import AllForwardAllBackwardPipelineEngine
    from nanotron.trainer import DistributedTrainer

    from integrations_3d.gradients import NanotronGradients
except ImportError as error:
    raise NanotronMissingError(str(error), name=error.name) from error

__all__ = ["Resilient", "ResilientTrainer"]


class Resilient:
    """Makes a Nanotron trainer resilient: ``class Mine(Resilient, MyTrainer)``.

    Args:
        config: Path of the Nanotron configuration. In it `parallelism` describes one replica, and
            `tokens.batch_accumulation_per_replica` is what a replica computes in a step while all
            are there.
        resilience: How to go about failures.
        **arguments: Of the trainer.

    Attributes:
        world: The job's communicator.
        job: The job; its `plan` tells who computes what.

    Joins the job's world, so once a process, under ``ulfmrun``. Collective over the job.

    Raises:
        ConfigError: The configuration cannot work.
        CheckpointError: There is nothing to resume from where it says so, or no checkpoint that
            all ranks see.
        NothingLeftError: What it resumes from is the state after its last step.
    """

    config: Any
    model: Any
    unwrapped_model: Any
    optimizer: Any
    grad_accumulator: Any
    lr_scheduler: Any
    parallel_context: Any
    pipeline_engine: Any
    iteration_step: int

    def __init__(
        self, config: str | os.PathLike[str], resilience: Resilience, **arguments: Any
    ) -> None:
        self._settings = resilience
        here = join(
            replica_size=replica_size_of(config),
            detection=resilience.detection,
            step_limit=resilience.step_limit,
            place=take_device,
            libraries=("nanotron", "integrations_3d"),
        )
        self.world = here.world
        self._resumed_from: Path | None = None
        super().__init__(os.fspath(config), **arguments)  # type: ignore[call-arg]

    # ------------------------------------------------------------- what Nanotron's trainer calls

    def pre_init(self) -> None:
        """Choose the checkpoint to resume from, before anything is loaded."""
        checkpoints = self.config.checkpoints
        if checkpoints.resume_checkpoint_path is not None:
            self._resumed_from = checkpoints.resume_checkpoint_path = choose(
                self.world,
                Path(checkpoints.resume_checkpoint_path),
                own=Path(checkpoints.checkpoints_path),
                last=self.config.tokens.train_steps,
            )
        self._quiet = self.world.replica != 0
        if self._quiet:  # every replica would say the same
            self._loud = self.config.logging.log_level
            self.config.logging.log_level = "error"
        super().pre_init()  # type: ignore[misc]

    def post_init(self) -> None:
        """Make the job, and go on from its state where there is one."""
        if self._quiet:
            self.config.logging.log_level = self._loud
        super().post_init()  # type: ignore[misc]
        world, settings, tokens = self.world, self._settings, self.config.tokens
        self._gradients = NanotronGradients(
            self.model,
            accumulator=self.grad_accumulator,
            context=self.parallel_context,
            output_stage=self.unwrapped_model.output_pp_rank,
            bucket_mb=settings.bucket_mb,
        )
        # The pipeline divides a loss by the number of microbatches of its pass. In 16-bit floats
        # their gradients would be rounded otherwise in a longer pass: one that makes up for a loss.
        self._undivide = Times()
        self.model.register_forward_hook(self._undivide)
        samples = tokens.micro_batch_size * self.parallel_context.dp_pg.size()
        log = EventLog(settings.out, world.rank)
        policy = settings.policy
        first = Membership.initial(environment.initial_size(), world.replica_size)
        self.job = Job(
            world,
            self._gradients,
            self.optimizer,
            policy=load_policy(policy) if isinstance(policy, str) else policy,
            grad_accum=tokens.batch_accumulation_per_replica,
            replicas=len(first.living),
            log=log,
            scheduler=self.lr_scheduler,
            max_norm=self.config.optimizer.clip_grad,
            staging=settings.staging,
            injector=FailureInjector(settings.schedule, world.replica, world.position, log),
            observers=settings.observers,
            log_losses=settings.log_losses,
            tokens_per_microbatch=samples * tokens.sequence_length,
            check_every=settings.check_every,
            held=self._held,
            about={
                "seed": self.config.general.seed,
                "detection": settings.detection,
                **settings.about,
            },
        )
        self._log = log
        if self._resumed_from is not None:
            try:
                self.job.load_state_dict(read_state(self._resumed_from))
            except PlanError as error:
                raise CheckpointError(
                    f"{self._resumed_from} cannot be resumed from ({error}); go on under the "
                    "policy it was written with"
                ) from error
            complete_optimizer(self.optimizer, self.lr_scheduler)
        self.job.share(self._all_parameters())
        # Nanotron's counts of samples rest on it: what all replicas together commit in a step.
        self._samples_per_microbatch = samples
        self.global_batch_size = samples * self.job.global_batch

    def train(self, microbatch: Callable[[int], Microbatch], **arguments: Any) -> None:
        """Train up to the configuration's last step.

        Args:
            microbatch: Returns what this rank needs of the microbatch with a number, the same
                whenever and on whichever replica it is asked for. Numbers count from 0 through the
                whole run. Where `dp` is more than 1, the ranks along it share a microbatch; see
                `rows`.
            **arguments: Of Nanotron's train().
        """
        self._stream = Stream(microbatch)
        self._steps = self.job.steps(self.config.tokens.train_steps)
        # Newer versions know stages of training, each with data of its own.
        stages = getattr(self.config, "data_stages", None)
        loader = self._stream if stages is None else {one.name: self._stream for one in stages}
        super().train(loader, **arguments)  # type: ignore[misc]
        self.job.finish(list(self.model.parameters()))

    def training_step(self, dataloader: Iterator[Microbatch]) -> tuple[Any, ...]:
        """Run one step until it is committed, whoever dies meanwhile."""
        step = next(self._steps)
        outputs: Sequence[Mapping[str, Any]] = ()
        for work in step.passes():
            outputs = self._compute(work, dataloader)
        assert step.line is not None
        self.grad_norm_unclipped = torch.tensor(step.line.grad_norm)
        self.global_batch_size = self._samples_per_microbatch * step.line.total
        self.post_train_step()  # type: ignore[attr-defined]
        return (outputs, torch.tensor(step.loss), *([None] * self._further_losses()))

    def train_step_logs(self, *arguments: Any, **named: Any) -> None:
        """Log, on the lowest living replica alone."""
        if self.leads:
            if self._quiet:
                self._quiet = False
                nanotron_logging.set_verbosity(nanotron_logging.log_levels[self._loud])
            super().train_step_logs(*arguments, **named)  # type: ignore[misc]

    def save_checkpoint(self) -> Path:
        """Write a checkpoint of Nanotron's, from the lowest living replica.

        Collective over that replica; the others go on.
        """
        path = Path(self.config.checkpoints.checkpoints_path) / str(self.iteration_step)
        if not self.leads:
            return path
        begun = time.perf_counter()
        self.world.beat(f"writing checkpoint {path}")
        if self.world.position == 0:
            path.mkdir(parents=True, exist_ok=True)
        super().save_checkpoint()  # type: ignore[misc]
        dist.barrier(group=self.parallel_context.world_pg)
        if self.world.position == 0:
            write_state(path, self.job.state_dict())
            seconds = time.perf_counter() - begun
            self._log.write(
                CheckpointLine(step=self.iteration_step, path=str(path), seconds=seconds)
            )
        return path

    # -------------------------------------------------------------------------------- for users

    @property
    def leads(self) -> bool:
        """Whether this rank's replica is the lowest living one, which logs and saves."""
        return self.world.replica == self.job.plan.members[0]

    def rows(self, number: int) -> range:
        """Return which samples of the data set this rank computes of a microbatch.

        Rows are numbered through the whole run: whatever dies, over all steps each is trained on
        at most once. They are the same for the tensor-parallel ranks and pipeline stages.
        """
        size = self.config.tokens.micro_batch_size
        part = dist.get_rank(self.parallel_context.dp_pg)
        first = number * self._samples_per_microbatch + part * size
        return range(first, first + size)

    # ----------------------------------------------------------------------------------- inside

    def _compute(self, work: Pass, dataloader: Iterator[Microbatch]) -> Sequence[Mapping[str, Any]]:
        """Run the pipeline over the microbatches of a pass. Collective over the replica."""
        engine, count = self.pipeline_engine, len(work)
        self._undivide.by = count
        if count < self.parallel_context.pp_pg.size() - 1:
            # One-forward-one-backward is not defined for so few.
            engine = AllForwardAllBackwardPipelineEngine()
        outputs = list(
            engine.train_batch_iter(
                model=self.model,
                pg=self.parallel_context.pp_pg,
                batch=self._stream.drawn(work, dataloader),
                nb_microbatches=count,
                grad_accumulator=self.grad_accumulator,
            )
        )
        work.finish([loss_of(output) for output in outputs])
        return outputs

    def _all_parameters(self) -> list[Tensor]:
        parameters: list[Tensor] = list(self.model.parameters())
        if self.grad_accumulator is not None:
            copies = self.grad_accumulator.parameters.values()
            parameters += [copy["fp32"] for copy in copies]
        return parameters

    def _held(self) -> list[Tensor]:
        """Return what must be the same in all replicas, at this position."""
        parameters = [parameter.detach() for parameter in self._all_parameters()]
        return parameters + held_by(self.optimizer.get_base_optimizer())

    def _further_losses(self) -> int:
        """How many losses the trainer's logs take beside the usual one: newer ones take some."""
        named = inspect.signature(super().train_step_logs).parameters  # type: ignore[misc]
        return sum(name.endswith("_avg") for name in named) - 1


class ResilientTrainer(Resilient, DistributedTrainer):  # type: ignore[misc]
    """Nanotron's `DistributedTrainer`, made resilient; see `Resilient`."""

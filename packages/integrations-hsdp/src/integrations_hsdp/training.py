"""The reference program's training: what a training program of one's own needs, in one place."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.lr_scheduler import LambdaLR

from grad_txn.checkpoint import Checkpoints, candidates
from grad_txn.errors import CheckpointError
from grad_txn.failures import FailureInjector
from grad_txn.job import Job
from grad_txn.log.events import EventLog
from grad_txn.log.lines import CheckpointLine
from grad_txn.programs.flags import OptionError
from grad_txn.programs.run import LostError, Setting, source_of
from grad_txn.programs.text import ByteText, read_text
from grad_txn.replica import join
from integrations_hsdp.model import Decoder, ModelShape
from integrations_hsdp.wrapping import wrap
from ulfm_core import World, environment
from workload_policy import PlanError, WorkloadPolicyError

__all__ = ["train", "warm_up_then_cosine"]


def train(setting: Setting) -> None:
    """Train as the flags say. Collective over all ranks of the job.

    Raises:
        OptionError, CheckpointError: The input is wrong; nothing has been trained.
        LostError: The living cannot go on; the state is saved.
    """
    options = setting.options
    text, shape = _inputs(options)
    here = join(
        replica_size=setting.replica_size,
        detection=options.detection,
        step_limit=options.step_limit,
        place=_device_of,
    )
    world, device = here.world, here.device
    if options.threads is not None:
        torch.set_num_threads(options.threads)

    torch.manual_seed(options.seed)
    gradients = wrap(
        Decoder(shape).to(device),
        process_group=here.process_group,
        sharding=options.sharding,
        bucket_mb=options.bucket_mb,
        accumulate=options.accumulate,
        low_precision=options.precision != "float32",
        recompute=options.recompute,
    )
    model = gradients.model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    scheduler = LambdaLR(optimizer, warm_up_then_cosine(options.warmup, options.steps))
    log = EventLog(options.out, world.rank)
    job = Job(
        world,
        gradients,
        optimizer,
        policy=setting.policy,
        grad_accum=options.grad_accum,
        replicas=setting.replicas,
        log=log,
        scheduler=scheduler,
        max_norm=options.clip,
        staging=options.staging,
        injector=FailureInjector(setting.schedule, world.replica, world.position, log),
        observers=setting.observers(),
        tokens_per_microbatch=options.batch * options.sequence,
        check_every=options.check_every,
        log_losses=options.log_losses,
        about={
            "seed": options.seed,
            "detection": options.detection,
            "device": str(device),
            "sharding": options.sharding,
        },
    )
    checkpoints = Checkpoints(
        options.out / "checkpoints",
        process_group=here.process_group,
        written=lambda step, path, seconds: log.write(
            CheckpointLine(step=step, path=str(path), seconds=seconds)
        ),
    )
    state = _State(model, optimizer, scheduler, job)
    _resume(options, world, state, checkpoints, job)
    job.share(model.parameters())

    # The ranks of a replica share a microbatch among them.
    rows = options.batch // setting.replica_size
    mine = slice(world.position * rows, (world.position + 1) * rows)

    try:
        for step in job.steps(options.steps):
            for microbatch in step:
                tokens, targets = (part[mine].to(device) for part in text.microbatch(microbatch))
                step.backward(model(tokens, targets))
            due = options.checkpoint_every and job.plan.step % options.checkpoint_every == 0
            if due and world.replica == job.plan.members[0]:
                checkpoints.save(state.dict(), job.plan.step)
            checkpoints.poll()
        checkpoints.wait()
    except WorkloadPolicyError as error:  # all survivors get it alike, and none can go on
        told = ""
        if world.replica == world.living[0]:
            world.beat("the last checkpoint")
            checkpoints.save(state.dict(), job.plan.step)
            checkpoints.wait()
            told = (
                f"{error}; the state before step {job.plan.step} is in {checkpoints.directory}: "
                f"start {setting.replicas} replicas again with --resume"
            )
        raise LostError(told if job.leads else "") from error
    job.finish(list(model.parameters()))


def _device_of(_world: World) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", environment.local_rank() % torch.cuda.device_count())


def _inputs(options: argparse.Namespace) -> tuple[ByteText, ModelShape]:
    try:
        shape = ModelShape(
            layers=options.layers,
            width=options.width,
            heads=options.heads,
            sequence=options.sequence,
        )
    except ValueError as error:
        raise OptionError(str(error)) from error
    text = ByteText(
        read_text(options.text), batch=options.batch, sequence=options.sequence, seed=options.seed
    )
    return text, shape


class _State:
    """What a checkpoint holds."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: LambdaLR, job: Job
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._job = job

    def dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            # As text: these are small trees of numbers, not tensors to be sharded.
            "scheduler": json.dumps(self._scheduler.state_dict()),
            "job": json.dumps(self._job.state_dict()),
        }

    def load(self, checkpoints: Checkpoints, path: Path) -> None:
        # A checkpoint is read into what is there, and a new optimizer has no moments yet. torch
        # makes them only where no gradients exist; here they are views of DDP's buckets, and zero.
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = 0.0
        self._optimizer.step()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        state = self.dict()
        checkpoints.load(state, path)
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self._scheduler.load_state_dict(json.loads(state["scheduler"]))
        try:
            self._job.load_state_dict(json.loads(state["job"]))
        except PlanError as error:
            raise CheckpointError(
                f"{path} cannot be resumed from ({error}); go on under the --policy it was written "
                "with"
            ) from error


def _resume(
    options: argparse.Namespace, world: World, state: _State, checkpoints: Checkpoints, job: Job
) -> None:
    """Load the checkpoint that the flags ask for, if they do."""
    source = source_of(options, world, candidates, naming="step-N")
    if source is None:
        return
    state.load(checkpoints, source)
    # Started again by ulfmrun, a job may well find that all is done.
    if not environment.restart() and job.plan.step >= options.steps:
        raise OptionError(
            f"--steps {options.steps}: {source} is the state before step {job.plan.step}, "
            "so nothing is left to do; give more steps"
        )


def warm_up_then_cosine(warmup: int, steps: int) -> Callable[[int], float]:
    """Return by what the peak learning rate is multiplied in each step."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))

    return factor

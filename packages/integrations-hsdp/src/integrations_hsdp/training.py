"""The reference program's training: what a training program of one's own needs, in one place."""

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.lr_scheduler import LambdaLR

import ulfm_core
from grad_txn.checkpoint import Checkpoints, newest
from grad_txn.errors import CheckpointError
from grad_txn.events import EventLog
from grad_txn.job import Job
from grad_txn.options import observers_of, restarted
from grad_txn.schedule import FailureInjector, Schedule
from integrations_hsdp.data import ByteText, read_text
from integrations_hsdp.model import Decoder, ModelShape
from integrations_hsdp.options import OptionError, policy_of
from integrations_hsdp.replica import replica_world
from integrations_hsdp.wrapping import wrap
from workload_policy import PlanError, WorkloadPolicyError

__all__ = ["LostError", "train", "warm_up_then_cosine"]


class LostError(Exception):
    """Those who are left cannot finish the step; says so on the rank that speaks for all."""


def train(options: argparse.Namespace, schedule: Schedule) -> None:
    """Train as the flags say. Collective over all ranks of the job.

    Raises:
        OptionError, CheckpointError: the input is wrong; nothing has been trained.
        LostError: the survivors cannot go on; the state is saved.
    """
    text, shape = _inputs(options)
    # Longer than the step limit: who hangs is ended by its own guard, which says where, and not by
    # those who wait for it.
    patience = 2 * options.step_limit + 60
    world = ulfm_core.init(
        replica_size=options.shard_size,
        detection=options.detection,
        wait_limit=patience,
    )
    world.set_step_limit(options.step_limit)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device(
            "cuda", int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]) % torch.cuda.device_count()
        )
        torch.cuda.set_device(device)

    torch.manual_seed(options.seed)
    group = replica_world(world, device=device, timeout=patience)
    gradients = wrap(
        Decoder(shape).to(device),
        group=group,
        sharding=options.sharding,
        bucket_mb=options.bucket_mb,
        low_precision=options.precision != "float32",
        recompute=options.recompute,
    )
    model = gradients.model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1
    )
    scheduler = LambdaLR(optimizer, warm_up_then_cosine(options.warmup, options.steps))
    log = EventLog(options.out, world.rank)
    started = int(os.environ.get("ULFM_INITIAL_WORLD_SIZE", world.initial_size))
    replicas = started // world.replica_size
    job = Job(
        world,
        gradients,
        optimizer,
        policy=policy_of(options),
        grad_accum=options.grad_accum,
        replicas=replicas,
        log=log,
        scheduler=scheduler,
        max_norm=options.clip,
        staging=options.staging,
        injector=FailureInjector(schedule, world.replica, world.position, log),
        observers=observers_of(options, replicas=replicas),
        tokens_per_microbatch=options.batch * options.sequence,
        about={
            "seed": options.seed,
            "detection": options.detection,
            "device": str(device),
            "sharding": options.sharding,
        },
    )
    checkpoints = Checkpoints(
        options.out / "checkpoints",
        group=group,
        written=lambda step, path, seconds: log.write(
            "checkpoint", step=step, path=str(path), seconds=seconds
        ),
    )
    state = _State(model, optimizer, scheduler, job)
    source = _source(options)
    if source is not None:
        state.load(checkpoints, source)
        # Started again by ulfmrun, a job may well find that all is done.
        if not restarted() and job.plan.step >= options.steps:
            raise OptionError(
                f"--steps {options.steps}: {source} is the state before step {job.plan.step}, "
                "so nothing is left to do; give more steps"
            )
    job.share(model.parameters())

    # The ranks of a replica share a microbatch among them.
    rows = options.batch // world.replica_size
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
        if world.replica == world.replicas[0]:
            world.beat("the last checkpoint")
            checkpoints.save(state.dict(), job.plan.step)
            checkpoints.wait()
            told = (
                f"{error}; the state before step {job.plan.step} is in {checkpoints.directory}: "
                f"start {replicas} replicas again with --resume"
            )
        raise LostError(told if job.leads else "") from error
    job.finish(list(model.parameters()))


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


def _source(options: argparse.Namespace) -> Path | None:
    """The checkpoint to go on from, if any."""
    if options.resume is None and not restarted():
        return None
    directory = Path(options.resume or options.out / "checkpoints")
    found = newest(directory)
    if found is not None:
        return found[1]
    if options.resume is not None:
        message = (
            f"no complete checkpoint in {directory}: --resume takes a directory with step-N in it"
        )
        raise CheckpointError(message)
    return None  # restarted before the first checkpoint: from the beginning


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


def warm_up_then_cosine(warmup: int, steps: int) -> Callable[[int], float]:
    """Return by what the peak learning rate is multiplied in each step."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))

    return factor

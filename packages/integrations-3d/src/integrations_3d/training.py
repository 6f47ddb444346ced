"""The reference program's training: what a training program of one's own needs, in one place."""

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from grad_txn.errors import CheckpointError
from grad_txn.options import OptionError, observers_of, policy_of, restarted
from grad_txn.schedule import Schedule
from grad_txn.text import ByteText, read_text
from integrations_3d.options import replica_size_of
from integrations_3d.resumption import newest, read_state
from integrations_3d.settings import Resilience

__all__ = ["train"]


def train(options: argparse.Namespace, schedule: Schedule) -> None:
    """Train as the flags say. Collective over all ranks of the job.

    Raises:
        OptionError, CheckpointError: The input is wrong; nothing has been trained.
        NanotronMissingError: Nanotron is not installed.
    """
    text = ByteText(
        read_text(options.text), batch=options.batch, sequence=options.sequence, seed=options.seed
    )
    source = _source(options)
    if source is not None:
        step = read_state(source)["plan"]["step"]
        if step >= options.steps:
            if restarted():
                return  # all was done when the job was lost
            raise OptionError(
                f"--steps {options.steps}: {source} is the state before step {step}, so nothing is "
                "left to do; give more steps"
            )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if not torch.cuda.is_available():
        from integrations_3d import cpu

        cpu.enable()
    from integrations_3d.reference import StageText, configuration
    from integrations_3d.trainer import ResilientTrainer

    ranks = int(os.environ.get("ULFM_INITIAL_WORLD_SIZE", os.environ["OMPI_COMM_WORLD_SIZE"]))
    resilience = Resilience(
        out=options.out,
        policy=policy_of(options),
        detection=options.detection,
        staging=options.staging,
        bucket_mb=options.bucket_mb,
        step_limit=options.step_limit,
        schedule=schedule,
        observers=observers_of(options, replicas=ranks // replica_size_of(options)),
        about={name: getattr(options, name) for name in ("tp", "pp", "dp_inner", "zero")},
    )
    with _written(configuration(options, resume=source)) as path:
        trainer = ResilientTrainer(path, resilience)
    stage = StageText(
        text,
        trainer.parallel_context,
        input_stage=trainer.unwrapped_model.input_pp_rank,
        output_stage=trainer.unwrapped_model.output_pp_rank,
        part=dist.get_rank(trainer.parallel_context.dp_pg),
        parts=options.dp_inner,
    )
    trainer.train(stage.microbatch)


def _source(options: argparse.Namespace) -> Path | None:
    """The checkpoint to go on from, if any."""
    if options.resume is None and not restarted():
        return None
    directory = Path(options.resume or options.out / "checkpoints")
    found = newest(directory)
    if found is None and options.resume is not None:
        raise CheckpointError(
            f"no complete checkpoint in {directory}: --resume takes a directory with numbered "
            "checkpoints in it"
        )
    return found  # None if restarted before the first checkpoint: from the beginning


@contextmanager
def _written(configuration: Mapping[str, Any]) -> Iterator[Path]:
    """A configuration as the file that Nanotron takes, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="nanotron-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(dict(configuration)), encoding="utf-8")
        yield path

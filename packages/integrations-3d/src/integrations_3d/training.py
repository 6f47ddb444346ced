"""The reference program's training: what a training program of one's own needs, in one place."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml

from grad_txn.programs.flags import OptionError
from grad_txn.programs.run import Setting, resumed_directory
from grad_txn.programs.text import ByteText, read_text
from integrations_3d.errors import NothingLeftError
from integrations_3d.settings import Resilience
from ulfm_core import environment

__all__ = ["train"]


def train(setting: Setting) -> None:
    """Train as the flags say. Collective over all ranks of the job.

    Raises:
        OptionError, CheckpointError: The input is wrong; nothing has been trained.
        NanotronMissingError: Nanotron is not installed.
    """
    options = setting.options
    text = ByteText(
        read_text(options.text), batch=options.batch, sequence=options.sequence, seed=options.seed
    )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if not torch.cuda.is_available():
        from integrations_3d import cpu

        cpu.enable()
    from integrations_3d.reference import StageText, configuration
    from integrations_3d.trainer import ResilientTrainer

    resilience = Resilience(
        out=options.out,
        policy=setting.policy,
        detection=options.detection,
        staging=options.staging,
        bucket_mb=options.bucket_mb,
        check_every=options.check_every,
        step_limit=options.step_limit,
        schedule=setting.schedule,
        observers=setting.observers(),
        log_losses=options.log_losses,
        about={name: getattr(options, name) for name in ("tp", "pp", "dp_inner", "zero")},
    )
    try:
        with _written(configuration(options, resume=resumed_directory(options))) as path:
            trainer = ResilientTrainer(path, resilience)
    except NothingLeftError as done:
        if environment.restart():
            return  # all was done when the job was lost
        raise OptionError(f"--steps {options.steps}: {done}") from done
    stage = StageText(
        text,
        trainer.parallel_context,
        input_stage=trainer.unwrapped_model.input_pp_rank,
        output_stage=trainer.unwrapped_model.output_pp_rank,
        part=dist.get_rank(trainer.parallel_context.dp_pg),
        parts=options.dp_inner,
    )
    trainer.train(stage.microbatch)


@contextmanager
def _written(configuration: Mapping[str, Any]) -> Iterator[Path]:
    """A configuration as the file that Nanotron takes, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="nanotron-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(dict(configuration)), encoding="utf-8")
        yield path

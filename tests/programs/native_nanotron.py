"""Nanotron as it is, on gloo: what the product is compared with.

    ulfmrun -n 8 native_nanotron.py --tp 2 --pp 2 --steps 4 --grad-accum 2 ... --out DIR

No failure is survived here. It takes the reference program's flags and data, and trains on the same
batches with Nanotron's own data parallelism; DIR gets the losses and gradient norms, a JSON list a
step, and Nanotron's checkpoints.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import yaml

from grad_txn.programs.run import parse
from grad_txn.programs.text import ByteText, read_text
from integrations_3d import cpu
from integrations_3d.options import replica_size_of
from integrations_3d.pretrain import PROGRAM

cpu.enable()

from nanotron.trainer import DistributedTrainer  # noqa: E402 - only now can it be imported

from integrations_3d.reference import StageText, configuration  # noqa: E402


class Recorded(DistributedTrainer):  # type: ignore[misc]
    """Keeps what it would log."""

    def train_step_logs(self, outputs: Any, loss_avg: Any) -> None:
        if loss_avg is not None:
            self.lines.append([float(loss_avg), float(self.grad_norm_unclipped)])


def main() -> None:
    options = parse(PROGRAM)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    replicas = dist.get_world_size() // replica_size_of(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(configuration(options, replicas=replicas)))
        trainer = Recorded(str(path))
    trainer.lines = []
    replica, part = divmod(dist.get_rank(trainer.parallel_context.dp_pg), options.dp_inner)
    text = ByteText(
        read_text(options.text), batch=options.batch, sequence=options.sequence, seed=options.seed
    )
    stage = StageText(
        text,
        trainer.parallel_context,
        input_stage=trainer.unwrapped_model.input_pp_rank,
        output_stage=trainer.unwrapped_model.output_pp_rank,
        part=part,
        parts=options.dp_inner,
    )

    def batches() -> Iterator[Mapping[str, Any]]:
        for step in range(options.steps):
            first = (step * replicas + replica) * options.grad_accum
            for number in range(first, first + options.grad_accum):
                yield stage.microbatch(number)

    trainer.train(batches())
    if dist.get_rank() == trainer.logger_ranks[0]:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "native.json").write_text(json.dumps(trainer.lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

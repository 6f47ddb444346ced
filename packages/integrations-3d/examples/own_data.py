"""One's own Nanotron configuration and data, resilient.

ulfmrun -n 4 own_data.py tiny.yaml run
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():  # for a trial; without this, it is for GPUs
    from integrations_3d import cpu

    cpu.enable()

from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer

from integrations_3d import Resilience, ResilientTrainer

trainer = ResilientTrainer(sys.argv[1], Resilience(out=Path(sys.argv[2]), policy="exact"))

# Any map from row numbers to samples will do: here sequences that count up, each from its start.
LENGTH = trainer.config.tokens.sequence_length
model = trainer.unwrapped_model
stage = trainer.parallel_context.pp_pg.rank()


def microbatch(number: int) -> Mapping[str, Any]:
    """Return what this rank's pipeline stage needs of a microbatch."""
    rows = torch.tensor(list(trainer.rows(number)))
    tokens = (rows[:, None] + torch.arange(LENGTH + 1)) % 256
    mask = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
    inputs: Any = (tokens[:, :-1], mask)
    labels: Any = (tokens[:, 1:], mask)
    if stage != model.input_pp_rank:
        inputs = [TensorPointer(group_rank=model.input_pp_rank)] * 2
    if stage != model.output_pp_rank:
        labels = [TensorPointer(group_rank=model.output_pp_rank)] * 2
    return {
        "input_ids": inputs[0],
        "input_mask": inputs[1],
        "label_ids": labels[0],
        "label_mask": labels[1],
    }


trainer.train(microbatch)

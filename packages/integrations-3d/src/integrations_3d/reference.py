"""The reference program's Nanotron configuration, and its data as a pipeline stage takes it."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer

from grad_txn.programs.text import ByteText
from integrations_3d.gradients import ParallelContext

__all__ = ["StageText", "configuration"]

_BYTES = 256


def configuration(
    options: argparse.Namespace, *, replicas: int = 1, resume: Path | None = None
) -> dict[str, Any]:
    """Return a Nanotron configuration, ready for YAML.

    Args:
        options: The flags.
        replicas: By how much more `dp` is than the flags say, for a Nanotron without us.
        resume: The checkpoint to go on from.
    """
    low = options.precision != "float32"
    return {
        "general": {
            "project": "integrations_3d",
            "run": "pretrain",
            "seed": options.seed,
        },
        "parallelism": {
            "dp": options.dp_inner * replicas,
            "pp": options.pp,
            "tp": options.tp,
            "pp_engine": options.pp_engine,
            "tp_mode": options.tp_mode.upper(),
            "tp_linear_async_communication": False,
        },
        "model": {
            "dtype": options.precision,
            "init_method": {"std": 0.02},
            "make_vocab_size_divisible_by": 1,
            "model_config": {
                "is_llama_config": True,
                "vocab_size": _BYTES,
                "hidden_size": options.width,
                "intermediate_size": 4 * options.width,
                "num_hidden_layers": options.layers,
                "num_attention_heads": options.heads,
                "num_key_value_heads": options.heads,
                "max_position_embeddings": options.sequence,
                "tie_word_embeddings": options.tie_embeddings,
            },
        },
        "tokenizer": {"tokenizer_name_or_path": None},
        "checkpoints": {
            "checkpoints_path": str(options.out / "checkpoints"),
            "checkpoint_interval": options.checkpoint_every or options.steps + 1,
            "checkpoints_path_is_shared_file_system": True,
            "resume_checkpoint_path": None if resume is None else str(resume),
        },
        # What is to be seen of a run is the console's.
        "logging": {"log_level": "error", "log_level_replica": "error"},
        "tokens": {
            "sequence_length": options.sequence,
            "train_steps": options.steps,
            "micro_batch_size": options.batch // options.dp_inner,
            "batch_accumulation_per_replica": options.grad_accum,
        },
        "optimizer": {
            "zero_stage": options.zero,
            "weight_decay": 0.1,
            "clip_grad": options.clip,
            "accumulate_grad_in_fp32": low,
            "adam_eps": 1e-8,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "torch_adam_is_fused": False,
            "learning_rate_scheduler": {
                "learning_rate": options.lr,
                "lr_warmup_steps": options.warmup,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
                "min_decay_lr": options.lr / 10,
            },
        },
        "data": {"dataset": None, "seed": options.seed},
    }


class StageText:
    """Microbatches of a text, as this rank's pipeline stage takes them.

    Args:
        text: The text.
        context: Nanotron's parallel context.
        input_stage: The pipeline rank that takes tokens.
        output_stage: The pipeline rank that takes what they are to be followed by.
        part: Which of `parts` equal parts of a microbatch this rank takes.
        parts: Among how many ranks a microbatch is shared.
    """

    def __init__(
        self,
        text: ByteText,
        context: ParallelContext,
        *,
        input_stage: int,
        output_stage: int,
        part: int,
        parts: int,
    ) -> None:
        self._text = text
        self._part = part
        self._parts = parts
        stage = dist.get_rank(context.pp_pg)
        self._input: TensorPointer | None = None
        self._output: TensorPointer | None = None
        if stage != input_stage:
            self._input = TensorPointer(group_rank=input_stage)
        if stage != output_stage:
            self._output = TensorPointer(group_rank=output_stage)

    def microbatch(self, number: int) -> Mapping[str, Any]:
        """Return the model's arguments for a microbatch."""
        tokens, targets = (
            whole.chunk(self._parts)[self._part].contiguous()
            for whole in self._text.microbatch(number)
        )
        everything = torch.ones_like(tokens, dtype=torch.bool)
        return {
            "input_ids": self._input or tokens,
            "input_mask": self._input or everything,
            "label_ids": self._output or targets,
            "label_mask": self._output or everything,
        }

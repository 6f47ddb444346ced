"""Nanotron on CPUs, for tests and demonstrations: never on a machine with GPUs.

Nanotron is written for CUDA. Here what it asks of CUDA is given by CPUs, at run time and without an
edit of it: tensors on "cuda" are made on the CPU, flash attention and its Triton kernels are plain
torch, and what is about devices does nothing. Slow, and numerically not what a GPU computes; the
trainer, its parallel layers, pipeline, accumulator, optimizer and checkpoints are the real ones.

`provide_modules` makes Nanotron importable, `enable` makes it run; both once a process.
"""

import importlib
import importlib.util
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from integrations_3d.errors import NanotronMissingError

__all__ = ["enable", "provide_modules"]

if torch.cuda.is_available():
    raise ImportError(
        "integrations_3d.cpu changes what torch takes for a GPU, and this machine has one: "
        "Nanotron runs here as it is"
    )


# ---------------------------------------------------------------------------------- its imports


def provide_modules() -> None:
    """Let ``import nanotron`` find all that it imports.

    Raises:
        NanotronMissingError: Nanotron is not installed.
    """
    if importlib.util.find_spec("nanotron") is None:
        raise NanotronMissingError("it is not installed", name="nanotron")
    importlib.import_module("torch._dynamo")  # which looks at torch.cuda: before that is changed
    if "flash_attn" not in sys.modules and importlib.util.find_spec("flash_attn") is None:
        _put("flash_attn")
        _put("flash_attn.bert_padding")
        _put(
            "flash_attn.flash_attn_interface",
            flash_attn_varlen_func=attention,
            flash_attn_with_kvcache=_only_training,
        )
        _put("flash_attn.layers")
        _put("flash_attn.layers.rotary", RotaryEmbedding=Rotary)
        _put("flash_attn.ops")
        _put("flash_attn.ops.triton")
        _put("flash_attn.ops.triton.layer_norm", layer_norm_fn=layer_norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about data sets and deprecations, in other people's code
        try:
            importlib.import_module("nanotron.config")
        except ImportError:
            _break_the_cycle()
        importlib.import_module("nanotron.trainer")


def _break_the_cycle() -> None:
    """Import `nanotron.logging`, which needs a name of `nanotron.config`, which needs it.

    Nanotron 0.4 as it was published cannot be imported otherwise.
    """
    for name in [name for name in sys.modules if name.startswith("nanotron.")]:
        del sys.modules[name]
    stand_ins = (_put("nanotron.config"), _put("nanotron.config.config", LoggingArgs=object))
    importlib.import_module("nanotron.logging")
    for stand_in in stand_ins:
        del sys.modules[stand_in.__name__]
    delattr(sys.modules["nanotron"], "config")
    importlib.import_module("nanotron.config")


def _put(name: str, **content: object) -> ModuleType:
    module = ModuleType(name)
    module.__path__ = []
    vars(module).update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


# ---------------------------------------------------------------- what flash attention would do


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,  # noqa: ARG001
    max_seqlen_k: int,  # noqa: ARG001
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,  # noqa: FBT001, FBT002
    **_others: object,
) -> Tensor:
    """Attention within each of several sequences that lie one after the other.

    Args:
        q: Queries, (total queries, heads, width).
        k: Keys, (total keys, heads or fewer, [1,] width).
        v: Values, like the keys.
        cu_seqlens_q: Where each sequence's queries begin, and where the last ones end.
        cu_seqlens_k: The same for keys and values.
        dropout_p: Dropout of attention weights.
        softmax_scale: What the scores are multiplied by; 1/sqrt(width) by default.
        causal: Whether a query sees only keys at or before its own place.
    """
    heads, width = q.shape[1:]
    k, v = (part.reshape(len(part), -1, width) for part in (k, v))
    ends = zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)
    parts, begin = [], next(ends)
    for end in ends:
        q_one, k_one, v_one = (
            tensor[first:last].repeat_interleave(heads // tensor.shape[1], dim=1).transpose(0, 1)
            for tensor, first, last in (
                (q, begin[0], end[0]),
                (k, begin[1], end[1]),
                (v, begin[1], end[1]),
            )
        )
        mixed = nn.functional.scaled_dot_product_attention(
            q_one, k_one, v_one, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale
        )
        parts.append(mixed.transpose(0, 1))
        begin = end
    return torch.cat(parts)


def _only_training(*_: object, **__: object) -> None:
    raise NotImplementedError("integrations_3d.cpu trains, it does not generate")


class Rotary(nn.Module):
    """Rotary positions for queries (batch, sequence, heads, width) and keys with values."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,  # noqa: FBT001, FBT002
        **_others: object,
    ) -> None:
        super().__init__()
        self._dim = dim
        self._base = base
        self._interleaved = interleaved

    def forward(self, qkv: Tensor, kv: Tensor | None = None, **_others: object) -> Any:
        """Turn queries and keys; kv is (batch, sequence, 2, heads, width)."""
        if kv is None:
            turned = [self._turn(qkv[:, :, part]) for part in (0, 1)]
            return torch.stack((*turned, qkv[:, :, 2]), dim=2)
        keys, values = kv.unbind(dim=2)
        return self._turn(qkv), torch.stack((self._turn(keys), values), dim=2)

    def _turn(self, x: Tensor) -> Tensor:
        exponents = torch.arange(0, self._dim, 2, dtype=torch.float32) / self._dim
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), self._base**-exponents)
        cosine, sine = (part[:, None, :] for part in (angles.cos(), angles.sin()))
        wide = x.float()
        if self._interleaved:
            one, two = wide[..., ::2], wide[..., 1::2]
        else:
            one, two = wide.chunk(2, dim=-1)
        parts = (one * cosine - two * sine, one * sine + two * cosine)
        turned = (
            torch.stack(parts, dim=-1).flatten(-2) if self._interleaved else torch.cat(parts, -1)
        )
        return turned.type_as(x)


def layer_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    prenorm: bool = False,  # noqa: FBT001, FBT002
    is_rms_norm: bool = False,  # noqa: FBT001, FBT002
    **_others: object,
) -> Any:
    """Layer norm or RMS norm over the last dimension, of `x` plus `residual`."""
    x = nn.functional.dropout(x, dropout_p) if dropout_p else x
    whole = x if residual is None else x + residual
    wide = whole.float()
    if is_rms_norm:
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
        normal = normal if bias is None else normal + bias.float()
    else:
        normal = nn.functional.layer_norm(
            wide, weight.shape, weight.float(), None if bias is None else bias.float(), eps
        )
    result = normal.type_as(x)
    return (result, whole) if prenorm else result


# ------------------------------------------------------------------------------- its devices


class _OnCpu(TorchFunctionMode):
    """Makes on the CPU what is to be made on, or moved to, "cuda"."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items()}
        if func is Tensor.to:
            args = [_on_cpu(value) for value in args]
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


_entered: list[TorchFunctionMode] = []


def enable() -> None:
    """Have Nanotron run on CPUs, in this process and from now on.

    Raises:
        NanotronMissingError: Nanotron is not installed.
    """
    if _entered:
        return
    provide_modules()
    for told in (".*all_reduce_coalesced.* will be deprecated", ".*an autograd kernel was not"):
        warnings.filterwarnings("ignore", message=told)  # of Nanotron's use of torch
    # Asked for by Nanotron's asynchronous tensor parallelism, and of no meaning here.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    cuda: Any = torch.cuda
    for name in ("set_device", "synchronize", "reset_peak_memory_stats"):
        setattr(cuda, name, _do_nothing)

    from nanotron import distributed
    from nanotron.models import llama
    from nanotron.parallel.pipeline_parallel.p2p import P2P

    # No function mode is in force inside backward(), where the pipeline makes its buffers.
    _replace(P2P, "__init__", _with_device_on_cpu)
    # NCCL's sends return at once, and stages do send to each other at the same time.
    _replace(distributed, "send", lambda _: _send_and_go_on)
    _replace(P2P, "isend_tensors", _without_waiting)
    # It asserts that its table is on a GPU. Training uses flash attention's, see Rotary.
    _replace(llama.RotaryEmbedding, "init_rotary_embeddings", lambda _: _do_nothing)
    # gloo averages in place, which autograd refuses for parameters.
    _replace(distributed, "all_reduce", torch.no_grad())
    mode = _OnCpu()
    mode.__enter__()  # type: ignore[no-untyped-call]
    _entered.append(mode)


def _replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    setattr(owner, name, change(getattr(owner, name)))


_on_their_way: deque[tuple[Any, Tensor]] = deque()
_AT_MOST = 512


def _send_and_go_on(tensor: Tensor, **where: Any) -> None:
    """Send a copy of a tensor, without waiting for the other side to receive it."""
    copy = tensor.clone()
    _let_go(torch.distributed.isend(copy, **where), copy)


def _without_waiting(isend: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def sent(self: object, tensors: Sequence[Tensor], to_rank: int, tag: int = 0) -> list[Any]:
        for tensor in tensors:
            # What is received is told whether it wants a gradient.
            copy = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            for work in isend(self, [copy], to_rank, tag):
                _let_go(work, copy)
        return []

    return sent


def _let_go(work: Any, tensor: Tensor) -> None:
    _on_their_way.append((work, tensor))
    if len(_on_their_way) > _AT_MOST:  # gloo does not tell of a send's end, but to who waits for it
        _on_their_way.popleft()[0].wait()


def _do_nothing(*_: object, **__: object) -> None:
    pass


def _with_device_on_cpu(make: Callable[..., None]) -> Callable[..., None]:
    def made(self: object, pg: Any, device: torch.device) -> None:
        make(self, pg, _on_cpu(device))

    return made

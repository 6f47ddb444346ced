"""What a rank of a sharded replica holds: two ranks, of which one is here and one is pretended.

torch's fake process group does no communication, so what is computed is wrong, and every tensor has
the size that it has in a replica of two ranks.
"""

from collections.abc import Iterable, Iterator
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.distributed.fake_pg import FakeStore

from grad_txn.gradients import local_part
from grad_txn.staging import STAGINGS, Staging, StagingMode
from grad_txn.testing.world import RankThread, ThreadWorld
from integrations_hsdp.fsdp1 import FSDP1Gradients
from integrations_hsdp.fsdp2 import FSDP2Gradients
from integrations_hsdp.model import Decoder, ModelShape
from integrations_hsdp.sharded import Accumulate
from integrations_hsdp.wrapping import Sharding, wrap

pytestmark = pytest.mark.torch

SHAPE = ModelShape(layers=2, width=64, heads=2, sequence=16)
CASES = [
    pytest.param(sharding, accumulate, low, id=f"{sharding}-{accumulate}-{'bf16' if low else 32}")
    for sharding, accumulate, low in product(
        ("fsdp2", "fsdp1"), ("sharded", "unsharded"), (False, True)
    )
    if (sharding, accumulate, low) != ("fsdp1", "unsharded", True)  # refused
]


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[dist.ProcessGroup]:
    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=2)
    group = dist.group.WORLD
    assert group is not None
    yield group
    dist.destroy_process_group()


def wrapped(
    group: dist.ProcessGroup, sharding: Sharding, accumulate: Accumulate, *, low: bool
) -> FSDP2Gradients | FSDP1Gradients:
    torch.manual_seed(0)
    gradients = wrap(
        Decoder(SHAPE),
        process_group=group,
        sharding=sharding,
        bucket_mb=0.1,
        accumulate=accumulate,
        low_precision=low,
        recompute=low,
    )
    assert isinstance(gradients, FSDP2Gradients | FSDP1Gradients)
    return gradients


def microbatch(gradients: FSDP2Gradients | FSDP1Gradients, *, last: bool) -> None:
    tokens = torch.zeros(1, SHAPE.sequence, dtype=torch.int64)
    gradients.begin_microbatch(last=last, ready=lambda _: None)
    gradients.model(tokens, tokens).backward()
    gradients.end_microbatch()


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind the tensors, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def held_by_torch(model: nn.Module) -> int:
    """Bytes of gradients that FSDP and its parameters hold, wherever it may keep them."""
    held: list[Tensor | None] = [parameter.grad for parameter in model.parameters()]
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            flat: Tensor = module._handle.flat_param  # type: ignore[union-attr]
            held += [flat.grad, getattr(flat, "_saved_grad_shard", None)]
        elif isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            group = state._fsdp_param_group
            for of_module in () if group is None else group.fsdp_params:
                held.append(of_module.unsharded_accumulated_grad)
                held.append(getattr(getattr(of_module, "_unsharded_param", None), "grad", None))
                held.append(of_module.sharded_param.grad)
    return size_of(local_part(grad) for grad in held if grad is not None)


@pytest.mark.parametrize(("sharding", "accumulate", "low"), CASES)
def test_between_microbatches_a_rank_holds_its_shard_or_the_whole(
    group: dist.ProcessGroup, sharding: Sharding, accumulate: Accumulate, low: bool
) -> None:
    whole = 4 * sum(parameter.numel() for parameter in Decoder(SHAPE).parameters())
    gradients = wrapped(group, sharding, accumulate, low=low)
    shard = size_of(gradients.buckets)
    assert shard == whole // 2
    gradients.zero()
    for number in range(6):  # two passes: an extended one adds to the first
        microbatch(gradients, last=number % 3 == 2)
        held = held_by_torch(gradients.model)
        if accumulate == "unsharded" and number % 3 != 2:
            assert held == whole
        else:
            assert held <= (0 if sharding == "fsdp2" else shard)


@pytest.mark.parametrize("sharding", ["fsdp2", "fsdp1"])
def test_the_process_holds_a_whole_gradient_less(
    group: dist.ProcessGroup, sharding: Sharding
) -> None:
    """Counted by torch's allocator, whoever holds it."""
    grown = {}
    for accumulate in ("sharded", "unsharded"):
        gradients = wrapped(group, sharding, accumulate, low=False)
        for last in (False, True, False, True):  # what is allocated once lies behind it
            microbatch(gradients, last=last)
        gradients.zero()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            microbatch(gradients, last=False)
        grown[accumulate] = sum(one.self_cpu_memory_usage for one in seen.key_averages())
    whole = 4 * sum(parameter.numel() for parameter in Decoder(SHAPE).parameters())
    # FSDP1 keeps what it has reduced until the next forward: one shard, of two.
    saved = whole if sharding == "fsdp2" else whole // 2
    assert grown["unsharded"] - grown["sharded"] == pytest.approx(saved, rel=0.01), grown


@pytest.mark.parametrize("staging", STAGINGS)
@pytest.mark.parametrize("sharding", ["fsdp2", "fsdp1"])
def test_every_buffer_of_a_rank_is_of_its_shard(
    group: dist.ProcessGroup, sharding: Sharding, staging: StagingMode
) -> None:
    """The table in docs/limits.md: 4 bytes for each of the rank's numbers, AdamW's moments 8."""
    gradients = wrapped(group, sharding, "sharded", low=False)
    numbers = sum(parameter.numel() for parameter in Decoder(SHAPE).parameters()) // 2

    def seconds(rank: RankThread) -> int:
        return size_of(Staging(rank, gradients.buckets, mode=staging)._second)

    (second,) = ThreadWorld(1).run(seconds).values()
    optimizer = torch.optim.AdamW(gradients.model.parameters())
    gradients.expose()
    optimizer.step()
    moments = [
        local_part(value)
        for state in optimizer.state.values()
        for key, value in state.items()
        if key.startswith("exp_")
    ]
    held = {
        "parameters": size_of(local_part(p.detach()) for p in gradients.model.parameters()),
        "gradients": size_of(gradients.buckets),
        "staging": second,
        "optimizer": size_of(moments),
    }
    assert held == {
        "parameters": 4 * numbers,
        "gradients": 4 * numbers,
        "staging": 4 * numbers,
        "optimizer": 8 * numbers,
    }

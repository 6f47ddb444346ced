"""Where FSDP leaves gradients, against plain autograd; a world of one rank, real FSDP."""

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from grad_txn.errors import UsageError
from grad_txn.gradients import local_part
from grad_txn.replica import lone_world
from grad_txn.reserve import Reserve
from integrations_hsdp.fsdp1 import FSDP1Gradients
from integrations_hsdp.fsdp2 import FSDP2Gradients
from integrations_hsdp.sharded import Accumulate

pytestmark = pytest.mark.torch

Wrap = Callable[[nn.Module], FSDP2Gradients | FSDP1Gradients]
SMALL = 1e-4  # a bucket of about one parameter


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    yield lone_world()
    dist.destroy_process_group()


@pytest.fixture(params=["sharded", "unsharded"])
def accumulate(request: pytest.FixtureRequest) -> Accumulate:
    mode: Accumulate = request.param
    return mode


@pytest.fixture(params=["fsdp2", "fsdp1", "fsdp1 with one flat parameter"])
def wrap(request: pytest.FixtureRequest, group: dist.ProcessGroup, accumulate: Accumulate) -> Wrap:
    def fsdp2(model: nn.Module) -> FSDP2Gradients:
        mesh = DeviceMesh.from_group(group, "cpu")
        for child in model.children():
            if isinstance(child, nn.Linear):
                fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return FSDP2Gradients(model, process_group=group, bucket_mb=SMALL, accumulate=accumulate)

    def fsdp1(model: nn.Module) -> FSDP1Gradients:
        wrapped = FullyShardedDataParallel(
            model,
            process_group=group,
            sharding_strategy=ShardingStrategy.NO_SHARD,  # what FSDP1 makes of one rank anyway
            device_id=torch.device("cpu"),
            use_orig_params=request.param == "fsdp1",
        )
        return FSDP1Gradients(wrapped, process_group=group, bucket_mb=SMALL, accumulate=accumulate)

    return fsdp2 if request.param == "fsdp2" else fsdp1


class Net(nn.Module):
    """A tied weight, one that is used or not, and by default one that is frozen."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.sometimes = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.last.requires_grad_(True)
        if frozen:
            self.sometimes.bias.requires_grad_(False)

    def forward(self, inputs: Tensor, sometimes: bool = True) -> Tensor:  # noqa: FBT002
        hidden = self.first(inputs).tanh()
        if sometimes:
            hidden = self.sometimes(hidden)
        total: Tensor = self.last(hidden).square().sum()
        return total


class Plain(nn.Module):
    """Two layers, each used always."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        total: Tensor = self.second(self.first(inputs).tanh()).square().sum()
        return total


def inputs(number: int) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(number))


def one_pass(gradients: FSDP2Gradients | FSDP1Gradients, *numbers: int) -> list[int]:
    """Run microbatches; return the buckets in the order they were told of."""
    told: list[int] = []
    for number in numbers:
        gradients.begin_microbatch(last=number == numbers[-1], ready=told.append)
        gradients.model(inputs(number)).backward()
        gradients.end_microbatch()
    return told


def shown(gradients: FSDP2Gradients | FSDP1Gradients) -> Tensor:
    """Everything that the optimizer would see, in the order of the parameters."""
    gradients.expose()
    parts = []
    for parameter in gradients.model.parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            parts.append(local_part(parameter.grad).flatten())
    return torch.cat(parts)


def by_hand(model: nn.Module, *numbers: int) -> Tensor:
    model.zero_grad()
    for number in numbers:
        model(inputs(number)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def same(seed: int, make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    one = make()
    torch.manual_seed(seed)
    return one, make()


def test_the_optimizer_sees_the_sums_of_a_step_without_a_microbatch(wrap: Wrap) -> None:
    # As where there are more replicas than microbatches: all that it has is what others computed.
    _, model = same(0, Plain)
    gradients = wrap(model)
    one_pass(gradients, 1)
    gradients.zero()
    for bucket in gradients.buckets:
        bucket.fill_(3.0)
    assert bool((shown(gradients) == 3.0).all())


def test_a_pass_sums_its_microbatches_and_another_adds_to_it(wrap: Wrap) -> None:
    plain, model = same(0, Plain)
    gradients = wrap(model)
    gradients.zero()
    assert one_pass(gradients, 1, 2, 3) == list(range(len(gradients.buckets)))
    torch.testing.assert_close(shown(gradients), by_hand(plain, 1, 2, 3))
    one_pass(gradients, 4)  # an extended pass
    torch.testing.assert_close(shown(gradients), by_hand(plain, 1, 2, 3, 4))
    one_pass(gradients, 5, 6)
    torch.testing.assert_close(shown(gradients), by_hand(plain, 1, 2, 3, 4, 5, 6))
    gradients.zero()
    assert all(parameter.grad is None for parameter in gradients.model.parameters())
    one_pass(gradients, 7)
    torch.testing.assert_close(shown(gradients), by_hand(plain, 7))


def test_redundant_stacks_are_kept_apart_from_what_counts(wrap: Wrap) -> None:
    plain, model = same(0, Plain)
    gradients = wrap(model)
    reserve = Reserve(gradients.buckets)
    for step in range(2):  # in the second one the buckets are not fresh from their making
        gradients.zero()
        reserve.clear()
        one_pass(gradients, 1, 2)
        reserve.keep(1)
        one_pass(gradients, 3, 4)
        torch.testing.assert_close(shown(gradients), by_hand(plain, 3, 4))
        if step:  # its supplier has died, and an extended pass comes besides
            reserve.count([1])
            one_pass(gradients, 5, 6)
            for index in range(len(gradients.buckets)):
                reserve.complete(index)
            torch.testing.assert_close(shown(gradients), by_hand(plain, 1, 2, 3, 4, 5, 6))


def test_what_the_optimizer_sees_is_the_buckets(wrap: Wrap) -> None:
    _, model = same(0, Plain)
    gradients = wrap(model)
    gradients.zero()
    one_pass(gradients, 1)
    for bucket in gradients.buckets:
        bucket.fill_(2.0)
    assert set(shown(gradients).tolist()) == {2.0}
    optimizer = torch.optim.SGD(gradients.model.parameters(), lr=1.0)
    before = [local_part(p.detach()).clone() for p in gradients.model.parameters()]
    optimizer.step()
    for was, parameter in zip(before, gradients.model.parameters(), strict=True):
        torch.testing.assert_close(local_part(parameter.detach()), was - 2.0)


def test_several_steps_train_as_without_fsdp(wrap: Wrap) -> None:
    plain, model = same(1, Plain)
    gradients = wrap(model)
    ours = torch.optim.AdamW(gradients.model.parameters(), lr=0.01)
    theirs = torch.optim.AdamW(plain.parameters(), lr=0.01)
    gradients.zero()
    for step in range(4):
        numbers = (10 * step, 10 * step + 1)
        one_pass(gradients, *numbers[: 1 + step % 2])
        gradients.expose()
        ours.step()
        gradients.zero()
        by_hand(plain, *numbers[: 1 + step % 2])
        theirs.step()
    found = torch.cat([local_part(p.detach()).flatten() for p in gradients.model.parameters()])
    torch.testing.assert_close(found, torch.cat([p.detach().flatten() for p in plain.parameters()]))


def test_tied_frozen_and_unused_parameters(
    group: dist.ProcessGroup, accumulate: Accumulate
) -> None:
    plain, model = same(2, Net)
    mesh = DeviceMesh.from_group(group, "cpu")
    fully_shard(model, mesh=mesh)
    gradients = FSDP2Gradients(model, process_group=group, bucket_mb=SMALL, accumulate=accumulate)
    gradients.zero()
    told: list[int] = []
    for number, sometimes in ((1, False), (2, False)):
        gradients.begin_microbatch(last=number == 2, ready=told.append)
        model(inputs(number), sometimes).backward()
        gradients.end_microbatch()
    assert told == list(range(len(gradients.buckets)))
    gradients.expose()
    assert isinstance(plain, Net)
    for number in (1, 2):
        plain(inputs(number), False).backward()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if not ours.requires_grad:
            assert ours.grad is None, name
            continue
        assert ours.grad is not None, name
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(local_part(ours.grad), expected, msg=name)
    # And used, after a step in which it was not.
    gradients.zero()
    plain.zero_grad()
    gradients.begin_microbatch(last=True, ready=told.append)
    model(inputs(3)).backward()
    gradients.end_microbatch()
    gradients.expose()
    plain(inputs(3)).backward()
    assert plain.sometimes.weight.grad is not None
    assert isinstance(model, Net)
    assert model.sometimes.weight.grad is not None
    torch.testing.assert_close(local_part(model.sometimes.weight.grad), plain.sometimes.weight.grad)


def test_a_module_that_only_an_early_microbatch_uses_keeps_its_gradient(
    group: dist.ProcessGroup, accumulate: Accumulate
) -> None:
    plain, model = same(3, Net)
    mesh = DeviceMesh.from_group(group, "cpu")
    assert isinstance(model, Net)
    assert isinstance(plain, Net)
    fully_shard(model.sometimes, mesh=mesh)
    fully_shard(model, mesh=mesh)
    gradients = FSDP2Gradients(model, process_group=group, bucket_mb=SMALL, accumulate=accumulate)
    gradients.zero()
    for number, used in ((1, True), (2, False)):
        gradients.begin_microbatch(last=number == 2, ready=lambda _: None)
        model(inputs(number), used).backward()
        gradients.end_microbatch()
        plain(inputs(number), used).backward()
    gradients.expose()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if ours.requires_grad:
            assert ours.grad is not None
            assert theirs.grad is not None
            torch.testing.assert_close(local_part(ours.grad), theirs.grad, msg=name)


def test_microbatches_in_bfloat16_are_summed_in_float32(
    group: dist.ProcessGroup, accumulate: Accumulate
) -> None:
    # After the first microbatch each other is less than half a unit in bfloat16's last place of the
    # sum: added in bfloat16 they would all be lost.
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"), mp_policy=policy)
    gradients = FSDP2Gradients(model, process_group=group, accumulate=accumulate)
    gradients.zero()
    for number, value in enumerate((256.0, *[0.5] * 8)):
        gradients.begin_microbatch(last=number == 8, ready=lambda _: None)
        model(torch.full((1, 1), value)).sum().backward()
        gradients.end_microbatch()
    assert [bucket.tolist() for bucket in gradients.buckets] == [[260.0]]


def test_norm_and_loss_of_a_replica_of_one(wrap: Wrap) -> None:
    gradients = wrap(Plain())
    sums = [torch.full((2,), 3.0), torch.full((2,), 4.0)]
    assert gradients.norm(sums) == pytest.approx(50**0.5)
    assert gradients.mean_losses([1.25, 2.5]) == [1.25, 2.5]


def test_losses_that_are_no_numbers_have_a_mean(
    wrap: Wrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = wrap(Plain())
    of_all = [[math.inf, 1.0], [-math.inf, 2.0]]
    monkeypatch.setattr(gradients, "_of_all", lambda _: of_all)
    first, second = gradients.mean_losses([math.inf, 1.0])
    assert math.isnan(first)
    assert second == 1.5


def test_what_is_not_sharded_is_refused(group: dist.ProcessGroup) -> None:
    with pytest.raises(UsageError, match="Plain is not sharded by FSDP2"):
        FSDP2Gradients(Plain(), process_group=group)
    with pytest.raises(UsageError, match="Plain is not wrapped by FSDP1"):
        FSDP1Gradients(Plain(), process_group=group)
    lossy = FullyShardedDataParallel(
        Plain(),
        process_group=group,
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        sharding_strategy=ShardingStrategy.NO_SHARD,
    )
    with pytest.raises(UsageError, match=r"FSDP1 would sum microbatches in torch\.bfloat16"):
        FSDP1Gradients(lossy, process_group=group, accumulate="unsharded")
    with pytest.raises(UsageError, match="accumulate='each': use"):
        FSDP1Gradients(lossy, process_group=group, accumulate="each")  # type: ignore[arg-type]
    model = Plain()
    mesh = DeviceMesh.from_group(group, "cpu")
    fully_shard(model, mesh=mesh, ignored_params={model.first.bias})
    with pytest.raises(UsageError, match=r"parameter first\.bias is not sharded"):
        FSDP2Gradients(model, process_group=group)


def test_buckets_hold_one_type(group: dist.ProcessGroup) -> None:
    model = Plain()
    model.second.to(torch.float64)
    mesh = DeviceMesh.from_group(group, "cpu")
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    gradients = FSDP2Gradients(model, process_group=group, bucket_mb=100)
    assert [bucket.dtype for bucket in gradients.buckets] == [torch.float64, torch.float32]
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())

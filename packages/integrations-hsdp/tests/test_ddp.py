"""DDP over a group of one: its buckets and gradients. No MPI is needed."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from grad_txn.errors import UsageError
from grad_txn.replica import lone_world
from integrations_hsdp.ddp import DDPGradients

pytestmark = pytest.mark.torch


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    yield lone_world()
    dist.destroy_process_group()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))


def run(gradients: DDPGradients, inputs: torch.Tensor, *, last: bool) -> list[int]:
    told: list[int] = []
    gradients.begin_microbatch(last=last, ready=told.append)
    gradients.model(inputs).square().mean().backward()
    gradients.end_microbatch()
    return told


def test_every_parameter_is_in_one_bucket(group: dist.ProcessGroup) -> None:
    module = network()
    gradients = DDPGradients(module, process_group=group, bucket_mb=0.02)
    assert len(gradients.buckets) > 2
    elements = sum(parameter.numel() for parameter in module.parameters())
    assert sum(bucket.numel() for bucket in gradients.buckets) == elements
    assert all(bucket.ndim == 1 and bucket.is_contiguous() for bucket in gradients.buckets)


def test_settling_leaves_no_gradient_and_no_forward_behind(group: dist.ProcessGroup) -> None:
    module = network()
    gradients = DDPGradients(module, process_group=group)
    assert all(not bucket.any() for bucket in gradients.buckets)
    inputs = torch.randn(2, 64)
    torch.testing.assert_close(gradients.model(inputs), network()(inputs))


def test_buckets_tell_in_order_and_only_in_the_last_microbatch(group: dist.ProcessGroup) -> None:
    gradients = DDPGradients(network(), process_group=group, bucket_mb=0.02)
    inputs = torch.randn(2, 64)
    assert run(gradients, inputs, last=False) == []
    assert run(gradients, inputs, last=True) == list(range(len(gradients.buckets)))


def test_buckets_keep_their_place_and_size_over_steps(group: dist.ProcessGroup) -> None:
    gradients = DDPGradients(network(), process_group=group, bucket_mb=0.02)
    before = [(bucket.data_ptr(), bucket.numel()) for bucket in gradients.buckets]
    for _ in range(4):
        run(gradients, torch.randn(2, 64), last=True)
        gradients.zero()
    assert [(bucket.data_ptr(), bucket.numel()) for bucket in gradients.buckets] == before


def test_gradients_accumulate_in_the_buckets(group: dist.ProcessGroup) -> None:
    module, plain = network(), network()
    gradients = DDPGradients(module, process_group=group, bucket_mb=0.02)
    batches = [torch.randn(2, 64) for _ in range(3)]
    for index, inputs in enumerate(batches):
        run(gradients, inputs, last=index == 2)
        plain(inputs).square().mean().backward()
    for mine, expected in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad)
    # What is written into a bucket is what the optimizer sees.
    for bucket in gradients.buckets:
        bucket.zero_()
    assert all(
        parameter.grad is not None and not parameter.grad.any() for parameter in module.parameters()
    )


@pytest.mark.parametrize("microbatches", [1, 3])
def test_after_zero_the_next_microbatch_starts_afresh(
    group: dist.ProcessGroup, microbatches: int
) -> None:
    module, plain = network(), network()
    gradients = DDPGradients(module, process_group=group, bucket_mb=0.02)
    for _ in range(3):
        plain.zero_grad()
        gradients.zero()
        for bucket in gradients.buckets:
            bucket.fill_(float("nan"))  # of no interest any more
        for index in range(microbatches):
            inputs = torch.randn(2, 64)
            run(gradients, inputs, last=index == microbatches - 1)
            plain(inputs).square().mean().backward()
        for mine, expected in zip(module.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad)
    assert all(bucket.isfinite().all() for bucket in gradients.buckets)


def test_a_parameter_without_a_gradient_is_named(group: dist.ProcessGroup) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always = nn.Linear(64, 64)
            self.sometimes = nn.Linear(64, 64)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.always(inputs)
            used = inputs.shape[0] > 2
            return self.sometimes(hidden) if used else hidden  # type: ignore[no-any-return]

    gradients = DDPGradients(Sometimes(), process_group=group, bucket_mb=0.02)
    run(gradients, torch.randn(3, 64), last=True)
    gradients.zero()
    with pytest.raises(UsageError, match=r"no gradient to one or more of .*sometimes\.bias"):
        run(gradients, torch.randn(2, 64), last=True)


def test_norm(group: dist.ProcessGroup) -> None:
    gradients = DDPGradients(network(), process_group=group, bucket_mb=0.02)
    sums = [torch.full_like(bucket, 0.5) for bucket in gradients.buckets]
    elements = sum(bucket.numel() for bucket in sums)
    assert gradients.norm(sums) == pytest.approx(0.5 * elements**0.5)


def test_two_worlds_in_a_process_are_refused(group: dist.ProcessGroup) -> None:
    with pytest.raises((RuntimeError, ValueError), match="twice"):
        lone_world()

"""Calls of torch.distributed without a group: refused to a script, left to torch."""

from collections.abc import Callable, Iterator
from inspect import signature
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from grad_txn.errors import UsageError
from grad_txn.plain_calls import CALLS, refuse_plain_calls
from grad_txn.replica import lone_world

pytestmark = pytest.mark.torch

ones = torch.ones


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    made = lone_world()
    refuse_plain_calls(made, libraries=("framework",))
    yield made
    dist.destroy_process_group()


PLAIN: dict[str, Callable[..., Any]] = {
    "get_rank": dist.get_rank,
    "get_world_size": dist.get_world_size,
    "all_reduce": lambda **group: dist.all_reduce(ones(1), **group),
    "broadcast": lambda **group: dist.broadcast(ones(1), 0, **group),
    "reduce": lambda **group: dist.reduce(ones(1), 0, **group),
    "all_gather": lambda **group: dist.all_gather([ones(1)], ones(1), **group),
    "all_gather_object": lambda **group: dist.all_gather_object([None], 1, **group),
    "broadcast_object_list": lambda **group: dist.broadcast_object_list([1], 0, **group),
    "gather_object": lambda **group: dist.gather_object(1, [None], 0, **group),
    "barrier": dist.barrier,
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_script_is_told_what_to_call_instead(name: str, group: dist.ProcessGroup) -> None:
    instead = "job.leads or world.rank" if name.startswith("get_") else "job.reduce"
    with pytest.raises(UsageError, match=rf"{name}\(\) without a group .* {instead}") as caught:
        PLAIN[name]()
    assert "\n" not in str(caught.value)
    PLAIN[name](group=group)  # who names the group means it


def test_no_collective_of_torch_is_forgotten() -> None:
    about_groups = {
        "destroy_process_group", "get_backend", "get_backend_config", "get_global_rank",
        "get_group_rank", "get_process_group_ranks", "new_subgroups", "shrink_group",
    }  # fmt: skip
    functions = {name: vars(c10d)[name] for name in c10d.__all__ if name in vars(c10d)}
    taking = {
        name
        for name, function in functions.items()
        if type(function) is FunctionType and "group" in signature(function).parameters
    }
    assert taking - about_groups <= CALLS


@pytest.mark.usefixtures("group")
def test_however_it_was_imported() -> None:
    imported = dist.distributed_c10d.get_rank
    with pytest.raises(UsageError, match="get_rank"):
        imported()


@pytest.mark.usefixtures("group")
def test_a_named_library_means_the_replica() -> None:
    library = ModuleType("framework.parallel")
    exec("def rank(dist): return dist.get_rank()", library.__dict__)
    assert library.rank(dist) == 0


def test_torch_itself_goes_on(group: dist.ProcessGroup, tmp_path: Any) -> None:
    model = DistributedDataParallel(nn.Linear(2, 1), process_group=group)
    model(ones(1, 2)).sum().backward()
    sharded = nn.Linear(2, 1)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    sharded(ones(1, 2)).sum().backward()
    save({"model": sharded.state_dict()}, checkpoint_id=tmp_path / "saved")
    dist.new_group([0])
    assert dist.is_initialized()


def test_another_default_group_is_nobodys_business(group: dist.ProcessGroup) -> None:
    assert group.size() == 1
    dist.destroy_process_group()
    lone_world()
    assert dist.get_rank() == 0

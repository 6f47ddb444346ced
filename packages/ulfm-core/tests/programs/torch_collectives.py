"""Every operation of the torch backend, in a 2 x 2 world, against what it must give."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

from ulfm_core.testing import say
from ulfm_core.torch_backend import default_group

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
Op = dist.ReduceOp
EXACT: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    Op.SUM: lambda wide: wide.sum(0),
    Op.AVG: lambda wide: wide.mean(0),
    Op.MIN: lambda wide: wide.amin(0),
    Op.MAX: lambda wide: wide.amax(0),
    Op.PRODUCT: lambda wide: wide.prod(0),
}

dist.init_process_group("ulfm")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
TOTAL = sum(range(SIZE))


def move_store() -> None:
    """Let the next rendezvous not meet rank 0's old store, which may live for a moment longer."""
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 100)


def mine(*shape: int) -> torch.Tensor:
    return torch.full(shape, float(RANK))


def reductions() -> int:
    cases = 0
    for dtype in FLOATS + INTEGERS:
        for op, exact in EXACT.items():
            if op == Op.AVG and dtype in INTEGERS:
                continue
            for count in (1, 7, 30_000):
                parts = [
                    torch.randint(0, 4, (count,), generator=torch.Generator().manual_seed(rank))
                    for rank in range(SIZE)
                ]
                tensor = parts[RANK].to(dtype, copy=True)
                dist.all_reduce(tensor, op)
                expected = exact(torch.stack(parts).double()).to(dtype)
                assert torch.equal(tensor, expected), (dtype, op, count)
                cases += 1
    scalar = torch.tensor(float(RANK))
    dist.all_reduce(scalar)
    assert scalar == TOTAL
    pair = [mine(3), mine(2)]
    default_group().allreduce_coalesced(pair).wait()
    assert all((tensor == TOTAL).all() for tensor in pair)
    return cases


def moves() -> None:
    for dtype in (torch.float32, torch.complex64, torch.bool, torch.float8_e5m2, torch.uint16):
        tensor = torch.full((3, 4), RANK % 3).to(dtype)
        dist.broadcast(tensor, 2)
        expected = torch.full((3, 4), 2).to(dtype)
        assert torch.equal(tensor.view(torch.uint8), expected.view(torch.uint8)), dtype
    rows = torch.empty(SIZE, 3)
    default_group().all_gather_single(rows, mine(3)).wait()
    assert rows[:, 1].tolist() == list(range(SIZE))
    listed = [torch.empty(2, 2) for _ in range(SIZE)]
    dist.all_gather(listed, mine(2, 2))
    assert [tensor[1, 1].item() for tensor in listed] == list(range(SIZE))
    dist.barrier()


def built_on_others() -> None:
    given = torch.arange(SIZE * 2).float() + RANK
    expected = (torch.arange(SIZE * 2).float() * SIZE + TOTAL)[2 * RANK : 2 * RANK + 2]
    part = torch.empty(2)
    default_group().reduce_scatter_single(part, given).wait()
    assert torch.equal(part, expected)
    dist.reduce_scatter(part, list(given.chunk(SIZE)), Op.AVG)
    assert torch.equal(part, expected / SIZE)
    tensor = mine(3)
    dist.reduce(tensor, 1)
    assert (tensor == (TOTAL if RANK == 1 else RANK)).all()
    gathered = [torch.empty(2) for _ in range(SIZE)] if RANK == 2 else None
    dist.gather(mine(2), gathered, dst=2)
    assert gathered is None or [row[0].item() for row in gathered] == list(range(SIZE))
    dealt = [torch.full((2,), float(rank)) for rank in range(SIZE)] if RANK == 0 else None
    dist.scatter(part, dealt, src=0)
    assert (part == RANK).all()


def objects() -> None:
    everyone: list[Any] = [None] * SIZE
    dist.all_gather_object(everyone, {"rank": RANK})
    assert [one["rank"] for one in everyone] == list(range(SIZE))
    box = ["three" if RANK == 3 else None]
    dist.broadcast_object_list(box, src=3)
    assert box == ["three"]


def works() -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    (tensor,) = work.get_future().wait()
    assert (tensor == SIZE).all()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert (work.outcome.name, work.epoch) == ("OK", 0)
    averaged = dist.all_reduce(mine(4), Op.AVG, async_op=True)
    chained = averaged.get_future().then(lambda future: future.value()[0] * 2)
    assert (chained.wait() == TOTAL / SIZE * 2).all()


def subgroups() -> None:
    odd = dist.new_group([1, 3], backend="ulfm")
    even = dist.new_group([2, 0], backend="ulfm")
    group = odd if RANK % 2 else even
    assert (dist.get_rank(group), dist.get_world_size(group)) == (RANK // 2, 2)
    tensor = mine(1)
    dist.all_reduce(tensor, group=group)
    assert tensor == (4 if RANK % 2 else 2)
    tensor = mine(1)
    dist.broadcast(tensor, src=RANK % 2 + 2, group=group)
    assert tensor == RANK % 2 + 2

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    tensor = mine(3)
    dist.all_reduce(tensor, group=mesh.get_group("rows"))
    assert (tensor == (4 if RANK % 2 else 2)).all()
    columns = mesh.get_group("columns")
    summed = functional.all_reduce(torch.ones(3), "sum", columns)
    assert (summed == 2).all()


def refusals() -> list[str]:
    said = []
    for call in (
        lambda: dist.send(torch.ones(1), (RANK + 1) % SIZE),
        lambda: dist.recv(torch.ones(1), (RANK + 1) % SIZE),
        lambda: dist.all_to_all_single(torch.ones(SIZE), torch.ones(SIZE)),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), Op.BAND),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.int32), Op.AVG),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool)),
        lambda: dist.all_reduce(torch.ones(4, 4)[:, :2]),
        lambda: dist.broadcast(torch.ones(4, 4)[:, :2], 0),
        lambda: dist.all_gather([torch.ones(1)], torch.ones(1)),
        lambda: default_group().reduce_scatter_single(torch.ones(2), torch.ones(SIZE)),
    ):
        try:
            call()
        except (NotImplementedError, TypeError, ValueError) as error:
            said.append(str(error))
    return said


cases = reductions()
moves()
built_on_others()
objects()
works()
subgroups()
say(cases=cases, backend=dist.get_backend(), refusals=refusals())
# A group can be left and joined again: the world stays.
dist.destroy_process_group()
move_store()
dist.init_process_group("ulfm")
tensor = mine(3)
dist.all_reduce(tensor)
say(again=bool((tensor == TOTAL).all()))
dist.destroy_process_group()
move_store()

# Under a default group of another backend.
dist.init_process_group("gloo")
mesh = init_device_mesh(
    "cpu", (2, 2), mesh_dim_names=("replicate", "shard"), backend_override={"replicate": "ulfm"}
)
replicate = mesh.get_group("replicate")
tensor = mine(3)
dist.all_reduce(tensor, group=replicate)
say(override=dist.get_backend(replicate), right=bool((tensor == (4 if RANK % 2 else 2)).all()))

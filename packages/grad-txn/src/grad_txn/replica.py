"""A replica as a torch.distributed world of its own."""

import os
import socket
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ulfm_core import Subgroup, UlfmError, World

__all__ = ["of_all_ranks", "replica_world"]

_ADDRESS_BYTES = 256


def replica_world(
    world: World, *, device: torch.device | None = None, timeout: float = 600.0
) -> dist.ProcessGroup:
    """Make the ranks of this rank's replica a torch.distributed world, and return its group.

    Position 0 holds the store, on a port of its own choosing, so a replica that dies takes nothing
    along that others need. The variables that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT) are set to those of the replica. Collective over the replica.

    Args:
        world: The job's world, made with the replica's size.
        device: Of the training; a CUDA device gets NCCL beside gloo.
        timeout: Seconds that an operation inside the replica may take. It should be longer than the
            world's step limit, which says where a rank stood.

    Raises:
        UlfmError: A rank of the replica died meanwhile.
        RuntimeError: torch.distributed is initialised already.
    """
    size, position = world.replica_size, world.position
    limit = timedelta(seconds=timeout)
    if size == 1:
        store: Any = dist.HashStore()  # type: ignore[attr-defined]
        host, port = "127.0.0.1", 0
    else:
        first = world.replica * size
        replica = world.subgroup(range(first, first + size))
        if position == 0:
            host = _address(world)
            store = dist.TCPStore(  # type: ignore[attr-defined]
                host, 0, size, is_master=True, timeout=limit, wait_for_workers=False
            )
            port = store.port
            _tell(world, replica, f"{host} {port}")
        else:
            host, number = _tell(world, replica, "").split()
            port = int(number)
            store = dist.TCPStore(  # type: ignore[attr-defined]
                host, port, size, is_master=False, timeout=limit
            )
    os.environ |= {
        "RANK": str(position),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
    backend = "gloo"
    if device is not None and device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        _let_the_guard_be_first(timeout)
    dist.init_process_group(
        backend,
        store=store,
        rank=position,
        world_size=size,
        timeout=limit,
        # With it NCCL makes its communicator here and now, and not in the first step, where making
        # one with a peer that has died would wait.
        device_id=device if device is not None and device.type == "cuda" else None,
    )
    group = dist.group.WORLD
    assert group is not None
    return group


def of_all_ranks(value: float, *, group: dist.ProcessGroup, device: torch.device) -> list[float]:
    """Return every rank's value, in the order of the ranks. Collective over the replica.

    A sum made of them is the same on all replicas to the last bit; an all-reduce may add in another
    order on another replica.

    Args:
        value: This rank's, a double.
        group: The replica's process group.
        device: Of what travels: one that the group's backend serves.
    """
    mine = torch.tensor([value], dtype=torch.float64, device=device)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    return [float(one) for one in gathered]


def _let_the_guard_be_first(timeout: float) -> None:
    """Keep NCCL's watchdog from ending a process before ulfm_core's guard, which says why.

    The guard ends a rank within milliseconds of a peer's death, so nothing has to be dumped or
    aborted in good order; these only keep the watchdog's own bounds above the step limit.
    """
    os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", str(int(timeout) + 60))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")


def _tell(world: World, replica: Subgroup, text: str) -> str:
    """Return position 0's text on every rank of the replica."""
    line = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8)
    raw = text.encode()
    line[: len(raw)] = torch.tensor(list(raw), dtype=torch.uint8)
    if world.broadcast(line, root=0, among=replica).wait().name != "OK":
        raise UlfmError("a rank of the replica died while its world was made: start the job again")
    return bytes(line.tolist()).rstrip(b"\0").decode()


def _address(world: World) -> str:
    """Where the other ranks of the replica reach this one."""
    local = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", world.initial_size))
    if local == world.initial_size:
        return "127.0.0.1"
    return os.environ.get("ULFM_HOST") or socket.gethostname()  # the latter without ulfmrun

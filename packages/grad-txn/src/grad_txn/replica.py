"""A replica as a torch.distributed world of its own."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import ulfm_core
from grad_txn.plain_calls import refuse_plain_calls
from ulfm_core import Detection, Outcome, Subgroup, UlfmError, World, environment

__all__ = ["Joined", "join", "lone_world", "of_all_ranks", "replica_world"]

_ADDRESS_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """Where a training process stands in its job.

    Attributes:
        world: The job's communicator, over all ranks of all replicas.
        process_group: torch's default group, over the ranks of this rank's replica.
        device: What this rank computes on.
    """

    world: World
    process_group: dist.ProcessGroup
    device: torch.device


def join(
    *,
    replica_size: int,
    detection: Detection,
    step_limit: float,
    place: Callable[[World], torch.device],
    libraries: Collection[str] = (),
) -> Joined:
    """Join the job's world, with a bound on every wait, and make the replica a torch world.

    Collective over all ranks of the job; once a process.

    Args:
        replica_size: Ranks in a replica.
        detection: See `ulfm_core.init`.
        step_limit: Seconds without progress after which this rank is ended.
        place: Returns the device of this rank, before CUDA is initialised.
        libraries: See `replica_world`.

    Raises:
        ulfm_core.UsageError: An argument has a value that cannot work.
        UlfmError: A rank died meanwhile.
    """
    # Longer than the step limit: who hangs is ended by its own guard, which says where, and not by
    # those who wait for it.
    patience = 2 * step_limit + 60
    world = ulfm_core.init(replica_size=replica_size, detection=detection, wait_limit=patience)
    world.set_step_limit(step_limit)
    device = place(world)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = replica_world(world, device=device, timeout=patience, libraries=libraries)
    return Joined(world=world, process_group=group, device=device)


def replica_world(
    world: World,
    *,
    device: torch.device | None = None,
    timeout: float = 600.0,
    libraries: Collection[str] = (),
) -> dist.ProcessGroup:
    """Make the ranks of this rank's replica a torch.distributed world, and return its group.

    Position 0 holds the store, on a port of its own choosing, so a replica that dies takes nothing
    along that others need. The variables that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR,
    MASTER_PORT) are set to those of the replica. Collective over the replica.

    A call of torch.distributed that names no group would mean this replica, where a script means
    the job (``dist.get_rank() == 0``, ``dist.all_reduce(loss)``): from now on such calls raise a
    `grad_txn.UsageError`, but for those of torch itself. See `grad_txn.plain_calls`.

    Args:
        world: The job's world, made with the replica's size.
        device: Of the training; a CUDA device gets NCCL beside gloo.
        timeout: Seconds that an operation inside the replica may take. It should be longer than the
            world's step limit, which says where a rank stood.
        libraries: Top-level packages whose calls without a group mean the replica, as a framework's
            do that runs inside it: ``("nanotron",)``.

    Raises:
        UlfmError: A rank of the replica died meanwhile.
        RuntimeError: torch.distributed is initialised already.
    """
    ranks = world.membership.ranks_of(world.replica)
    size = len(ranks)
    if size == 1:
        environment.set_torch_world(rank=0, world_size=1, address="127.0.0.1", port=0)
        group = lone_world(device=device, timeout=timeout)
        refuse_plain_calls(group, libraries=libraries)
        return group
    limit = timedelta(seconds=timeout)
    replica = world.subgroup(ranks)
    if world.position == 0:
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
    environment.set_torch_world(rank=world.position, world_size=size, address=host, port=port)
    group = _default_group(store, rank=world.position, size=size, device=device, timeout=timeout)
    refuse_plain_calls(group, libraries=libraries)
    return group


def lone_world(*, device: torch.device | None = None, timeout: float = 600.0) -> dist.ProcessGroup:
    """Make this process a torch.distributed world of its own, and return its group. Local.

    Args:
        device: Of the training; a CUDA device gets NCCL beside gloo.
        timeout: Seconds that an operation may take.

    Raises:
        RuntimeError: torch.distributed is initialised already.
    """
    store = dist.HashStore()  # type: ignore[attr-defined]
    return _default_group(store, rank=0, size=1, device=device, timeout=timeout)


def _default_group(
    store: Any, *, rank: int, size: int, device: torch.device | None, timeout: float
) -> dist.ProcessGroup:
    backend = "gloo"
    if device is not None and device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        _let_the_guard_be_first(timeout)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        # With it NCCL makes its communicator here and now, and not in the first step, where making
        # one with a peer that has died would wait.
        device_id=device if device is not None and device.type == "cuda" else None,
    )
    group = dist.group.WORLD
    assert group is not None
    return group


def of_all_ranks(
    values: Sequence[float], *, process_group: dist.ProcessGroup, device: torch.device
) -> list[list[float]]:
    """Return every rank's values, in the order of the ranks. Collective over the replica.

    A sum made of them is the same on all replicas to the last bit; an all-reduce may add in another
    order on another replica.

    Args:
        values: This rank's, as doubles; as many on every rank.
        process_group: The replica's.
        device: Of what travels: one that the group's backend serves.
    """
    mine = torch.tensor(list(values), dtype=torch.float64, device=device)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(process_group))]
    dist.all_gather(gathered, mine, group=process_group)
    return [one.tolist() for one in gathered]


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
    if world.broadcast(line, root=0, among=replica).wait() is not Outcome.OK:
        raise UlfmError("a rank of the replica died while its world was made: start the job again")
    return bytes(line.tolist()).rstrip(b"\0").decode()


def _address(world: World) -> str:
    """Where the other ranks of the replica reach this one."""
    if environment.local_size() == world.initial_size:
        return "127.0.0.1"
    return environment.host()

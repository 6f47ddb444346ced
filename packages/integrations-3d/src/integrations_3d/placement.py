"""Which devices a rank of a replica sees, and which of them is its own.

Nanotron takes the device with the number LOCAL_RANK, and with it decides who makes directories: it
has to count from 0 within a replica, on every host. So a rank sees the devices of its replica's
ranks on its host, and no others.
"""

from collections.abc import Sequence

import torch

from integrations_3d.errors import ConfigError
from ulfm_core import World, environment

__all__ = ["devices_of", "take_device"]


def devices_of(
    rank: int, *, peers: Sequence[int], local_rank: int, local_size: int, devices: Sequence[str]
) -> tuple[int, tuple[str, ...]]:
    """Return a rank's index among its replica's ranks on its host, and the devices of these.

    Args:
        rank: In the job. Ranks are laid out host by host.
        peers: The ranks of its replica, itself among them.
        local_rank: The rank's index on its host.
        local_size: Ranks on its host.
        devices: Of the host, as CUDA_VISIBLE_DEVICES names them; none without GPUs.

    Raises:
        ConfigError: There are fewer devices than ranks.

    >>> devices_of(6, peers=[4, 5, 6, 7], local_rank=6, local_size=8, devices="01234567")
    (2, ('4', '5', '6', '7'))
    """
    if devices and len(devices) < local_size:
        raise ConfigError(
            f"{local_size} ranks on a host with {len(devices)} GPUs: each needs one of its own; "
            "start fewer ranks, or name more in CUDA_VISIBLE_DEVICES"
        )
    first_here = rank - local_rank
    here = [peer for peer in peers if 0 <= peer - first_here < local_size]
    return here.index(rank), tuple(devices[peer - first_here] for peer in here if devices)


def take_device(world: World) -> torch.device:
    """Set LOCAL_RANK, and CUDA_VISIBLE_DEVICES where there are GPUs; return this rank's device.

    Before CUDA is initialised in this process.

    Raises:
        ConfigError: There are fewer GPUs than ranks on this host.
    """
    devices: Sequence[str] = ()
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        devices = environment.visible_devices() or [str(device) for device in range(count)]
    local_rank, visible = devices_of(
        world.rank,
        peers=world.membership.ranks_of(world.replica),
        local_rank=environment.local_rank(),
        local_size=environment.local_size(),
        devices=devices,
    )
    environment.set_local(rank=local_rank)
    if not devices:
        return torch.device("cpu")
    environment.set_visible_devices(visible)
    return torch.device("cuda", local_rank)

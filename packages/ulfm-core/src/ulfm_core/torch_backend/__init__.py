"""The `ulfm` backend of `torch.distributed` (extra `ulfm-core[torch]`).

Importing this module registers the backend; `ulfm_core` itself never imports torch.

```python
import torch.distributed as dist
from ulfm_core.torch_backend import default_group

dist.init_process_group("ulfm")        # under ulfmrun, or mpirun with RANK, WORLD_SIZE, ... set
group = default_group()
model = DistributedDataParallel(module)
while step < steps:
    try:
        model(batch(step)).sum().backward()
        ok = True
    except RuntimeError:               # a peer died; other ranks may not have noticed
        ok = False
    if group.consensus(ok).passed:     # the same answer on every survivor
        optimizer.step()
        step += 1
    else:                              # repaired: rank and size are the survivors' now
        model = DistributedDataParallel(module)   # DDP is of no use after a failed backward
    optimizer.zero_grad()
```

What torch calls a rank is an index among the living, in the order of the initial ranks. A repair
renumbers the ranks of all groups of this backend, which go on with those of their ranks that live.

The store that `init_process_group` asks for is used to meet, and never again by this backend: the
death of the rank that hosts it (rank 0) is a death like any other. What itself asks the store later
is lost with it, such as a further `new_group` of another backend, or `monitored_barrier`.

Reductions take float64/32/16, bfloat16, int64/32/16/8 and uint8, the others every dtype; tensors
must be contiguous. All-reduce, broadcast, all-gather and barrier are native. Reduce, gather,
scatter and reduce-scatter are built from these: right, but moving more than they would have to (a
reduce-scatter as much as an all-reduce). There is no send, receive or all-to-all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ulfm_core import leaving
from ulfm_core.errors import UsageError
from ulfm_core.joining import init
from ulfm_core.torch_backend.process_group import NAME, ProcessGroupUlfm
from ulfm_core.torch_backend.work import TorchWork

if TYPE_CHECKING:
    from ulfm_core.world import World

__all__ = ["ProcessGroupUlfm", "TorchWork", "default_group"]


def default_group() -> ProcessGroupUlfm:
    """Return the default process group.

    Raises:
        UsageError: it is of another backend, or was not initialised.
    """
    group = dist.group.WORLD
    if isinstance(group, ProcessGroupUlfm):
        return group
    message = 'the default process group is not of this backend: call init_process_group("ulfm")'
    raise UsageError(message)


def _create(options: Any, _: Any) -> ProcessGroupUlfm:
    """Make a group. torch calls it for `init_process_group`, and for `new_group` on its members."""
    world = leaving._world or init(wait_limit=options.timeout.total_seconds())  # noqa: SLF001
    rank, size = options.group_rank, options.group_size
    ranks = _initial_ranks(world, list(options.global_ranks_in_group) or list(range(size)))
    if ranks[rank] != world.rank:
        message = (
            f"torch's rank {rank} is rank {world.rank} of the MPI job: pass init_process_group the "
            "rank and world_size of the whole job (ulfmrun without --replica-size does)"
        )
        raise UsageError(message)
    if not options.global_ranks_in_group and size != len(world.members):
        message = f"world_size {size} is not the {len(world.members)} living ranks of the MPI job"
        raise UsageError(message)
    return ProcessGroupUlfm(world, ranks)


def _initial_ranks(world: World, ranks: list[int]) -> list[int]:
    """Translate torch's global ranks.

    Under a default group of another backend they are the job's initial ranks.
    """
    default = dist.group.WORLD
    members = world.members
    if default is not None and not isinstance(default, ProcessGroupUlfm):
        members = tuple(range(world.initial_size))
    beyond = [rank for rank in ranks if rank >= len(members)]
    if beyond:
        message = f"rank {beyond[0]} is not one of the {len(members)} ranks of the MPI job"
        raise UsageError(message)
    return [members[rank] for rank in ranks]


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])

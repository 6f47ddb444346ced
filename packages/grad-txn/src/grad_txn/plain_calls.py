"""Plain calls of `torch.distributed` that a script makes on the default group, and their refusal.

Where a replica is a torch world of its own, the default group is the replica. What torch and a
framework do on it is right. A script that asks ``dist.get_rank() == 0``, or sums a validation loss
with ``dist.all_reduce(loss)``, means the job: it would be true once a replica, and the sum would be
one replica's. So calls that name no group are refused, in one line that says what to call instead,
unless torch itself or a named library makes them. Who means the replica says so:
``dist.get_rank(group)``.

torch offers no place for this. Every such call asks one function of torch for the default group,
however the script has imported it; that one is wrapped.
"""

import sys
from collections.abc import Callable, Collection
from types import FrameType

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from grad_txn.errors import UsageError

__all__ = ["CALLS", "refuse_plain_calls"]

_IDENTITY = frozenset({"get_rank", "get_world_size"})
_COLLECTIVES = frozenset(
    {
        "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object",
        "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all",
        "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather",
        "gather_object", "irecv", "isend", "monitored_barrier", "recv", "recv_object_list",
        "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter",
        "scatter_object_list", "send", "send_object_list",
    }
)  # fmt: skip
CALLS = _IDENTITY | _COLLECTIVES
"""What is refused, by name."""

_OWN = frozenset({"torch", __name__.partition(".")[0]})


def refuse_plain_calls(group: dist.ProcessGroup, *, libraries: Collection[str] = ()) -> None:
    """Refuse calls that name no group, for as long as this is the default group. Local.

    They raise a `UsageError` then.

    Args:
        group: The default group: a replica's.
        libraries: Top-level packages that mean the replica by such calls, beside torch.
    """
    ask: Callable[[], dist.ProcessGroup] = c10d._get_default_group  # noqa: SLF001 - see above
    meant = _OWN | set(libraries)

    def get_default_group() -> dist.ProcessGroup:
        if dist.group.WORLD is group:
            _refuse(sys._getframe(1), meant)  # noqa: SLF001 - the only way to the caller
        return ask()

    c10d._get_default_group = get_default_group  # noqa: SLF001


def _refuse(frame: FrameType, meant: Collection[str]) -> None:
    """Raise if this is a call without a group, by none of those who mean the replica by it."""
    call, caller = frame, frame.f_back
    # What one call of torch makes of others, and the wrapper that it logs exceptions with.
    while caller is not None and (_is_torchs(caller) or _wraps(caller)):
        if _is_torchs(caller):
            call = caller
        caller = caller.f_back
    name = call.f_code.co_name
    if name not in CALLS or call.f_locals.get("group") is not None:
        return
    if caller is None or str(caller.f_globals.get("__name__")).partition(".")[0] in meant:
        return
    instead = "job.reduce or job.note" if name in _COLLECTIVES else "job.leads or world.rank"
    raise UsageError(
        f"torch.distributed.{name}() without a group would mean this replica, and not the job: use "
        f"{instead}, or pass group=, what replica_world returned, if you mean the replica"
    )


def _is_torchs(frame: FrameType) -> bool:
    return frame.f_globals is c10d.__dict__


def _wraps(frame: FrameType) -> bool:
    code = frame.f_code
    return (
        code.co_name == "wrapper"
        and frame.f_globals.get("__name__") == "torch.distributed.c10d_logger"
    )

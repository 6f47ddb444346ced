"""MPI communicators that survive the loss of processes.

`init()` joins the job's world; `World` detects, repairs, records and reduces (ReCoVer, section
4.1); `leave()` is the way out. Start programs with ``ulfmrun -n N program.py``, and check a machine
with ``ulfm-doctor``. Nothing happens at import: MPI is initialised by `init()`.
"""

import importlib.metadata

from ulfm_core.errors import (
    NotLaunchedError,
    PeerLostError,
    ReplicaCondemnedError,
    UlfmError,
    UnsupportedMPIError,
    UsageError,
)
from ulfm_core.joining import init
from ulfm_core.leaving import leave
from ulfm_core.membership import Membership, Seat
from ulfm_core.results import Agreement, Consensus, Repair
from ulfm_core.subgroup import Subgroup
from ulfm_core.work import Outcome, Work
from ulfm_core.world import Detection, World

__all__ = [
    "Agreement",
    "Consensus",
    "Detection",
    "Membership",
    "NotLaunchedError",
    "Outcome",
    "PeerLostError",
    "Repair",
    "ReplicaCondemnedError",
    "Seat",
    "Subgroup",
    "UlfmError",
    "UnsupportedMPIError",
    "UsageError",
    "Work",
    "World",
    "__version__",
    "init",
    "leave",
]

__version__ = importlib.metadata.version("ulfm-core")

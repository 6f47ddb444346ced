"""How a resilient Nanotron run deals with failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from grad_txn.failures import Schedule
from grad_txn.log.observer import Observer
from grad_txn.staging import StagingMode
from workload_policy import Policy

__all__ = ["Resilience"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resilience:
    """What Nanotron's own configuration has no word for."""

    out: Path
    """Directory of the event log."""
    policy: Policy | str = "static"
    """Who redoes what; anything that `workload_policy.load_policy` takes will do."""
    detection: Literal["deferred", "guarded"] = "deferred"
    """Whether failures surface from the reductions, or each first makes sure that all are there."""
    staging: StagingMode = "no-copy"
    """Where the gradient before its reduction is kept."""
    bucket_mb: float = 25.0
    """Size of a bucket of gradients in MiB."""
    check_every: int = 100
    """Compare what the replicas hold at the first step and every so many; 0 at the first alone."""
    step_limit: float = 600.0
    """Seconds without progress after which a rank is ended."""
    schedule: Schedule = ()
    """Who is killed, when and where."""
    observers: Sequence[Observer] = ()
    """Told about steps and failures on the leader of the lowest living replica."""
    log_losses: bool = False
    """Log the loss of each microbatch, not only each replica's sum."""
    about: Mapping[str, object] = field(default_factory=dict)
    """Further fields for the log's start line."""

"""How a guarded Nanotron run goes about its failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from grad_txn.job import Observer
from grad_txn.schedule import Schedule
from grad_txn.transaction import Staging
from workload_policy import Policy

__all__ = ["Resilience"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resilience:
    """What Nanotron's own configuration has no word for."""

    out: Path
    """Directory of the event log."""
    policy: Policy | str = "static"
    """Who redoes what; the name of a policy will do: static, exact, adaptive."""
    detection: Literal["deferred", "guarded"] = "deferred"
    """One agreement a step, or one before every reduction."""
    staging: Staging = "no-copy"
    """Where the gradient before its reduction is kept."""
    bucket_mb: float = 25.0
    """Size of a bucket of gradients in MiB."""
    step_limit: float = 600.0
    """Seconds without progress after which a rank is ended."""
    schedule: Schedule = ()
    """Who is killed, when and where."""
    observers: Sequence[Observer] = ()
    """Told about steps and failures on the leader of the lowest living replica."""
    about: Mapping[str, object] = field(default_factory=dict)
    """Further fields for the log's start line."""

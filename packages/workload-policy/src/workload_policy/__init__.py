"""Who computes which microbatches when training replicas die or join.

Pure functions over small frozen values: no clocks, no I/O, nothing but the standard library. Start
with `policy_named` or one of the policies and follow `Policy`: ``start``, ``on_failure``,
``commit``, ``advance``.
"""

from workload_policy.adaptive_world import AdaptiveWorld
from workload_policy.decision import (
    Decision,
    Restore,
    SurvivorRecord,
    agreed_table,
    failed_replicas,
)
from workload_policy.errors import (
    LayoutError,
    LedgerError,
    NoSurvivorsError,
    PlanError,
    PolicyNameError,
    ScheduleError,
    TableError,
    WorkloadPolicyError,
)
from workload_policy.exact_batch import ExactBatch
from workload_policy.layout import Layout
from workload_policy.ledger import Ledger, LedgerEntry
from workload_policy.plan import Plan
from workload_policy.policy import Policy
from workload_policy.registry import POLICY_GROUP, POLICY_NAMES, policy_named
from workload_policy.roles import Role
from workload_policy.stacking import Stack, Stacking
from workload_policy.static_world import StaticWorld

__all__ = [
    "POLICY_GROUP",
    "POLICY_NAMES",
    "AdaptiveWorld",
    "Decision",
    "ExactBatch",
    "Layout",
    "LayoutError",
    "Ledger",
    "LedgerEntry",
    "LedgerError",
    "NoSurvivorsError",
    "Plan",
    "PlanError",
    "Policy",
    "PolicyNameError",
    "Restore",
    "Role",
    "ScheduleError",
    "Stack",
    "Stacking",
    "StaticWorld",
    "SurvivorRecord",
    "TableError",
    "WorkloadPolicyError",
    "agreed_table",
    "failed_replicas",
    "policy_named",
]

"""Who computes which microbatches when training replicas die or join.

Pure functions over small frozen values: no clocks, nothing but the standard library. Start with
`load_policy` or one of the policies and follow `Policy`: ``start``, ``on_failure``, ``advance``,
``relayout``. To write a policy, see `InOrder`.
"""

from importlib.metadata import version

from workload_policy.checks import check_exact, check_members, check_own_plan
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
    PolicyError,
    ScheduleError,
    TableError,
    WorkloadPolicyError,
)
from workload_policy.layout import Layout, check_shape
from workload_policy.ledger import Ledger, LedgerEntry
from workload_policy.loading import load_policy
from workload_policy.plan import Plan
from workload_policy.policies.adaptive_world import AdaptiveWorld
from workload_policy.policies.exact_batch import ExactBatch
from workload_policy.policies.in_order import InOrder
from workload_policy.policies.static_world import StaticWorld
from workload_policy.policy import Policy
from workload_policy.promise import Promise
from workload_policy.ranges import ranges_of
from workload_policy.registry import POLICY_GROUP, POLICY_NAMES, policy_names
from workload_policy.response import Response
from workload_policy.roles import Role
from workload_policy.shares import share_out
from workload_policy.simulation import SimulatedStep, simulate
from workload_policy.stacks import Stack

__all__ = [
    "POLICY_GROUP",
    "POLICY_NAMES",
    "AdaptiveWorld",
    "Decision",
    "ExactBatch",
    "InOrder",
    "Layout",
    "LayoutError",
    "Ledger",
    "LedgerEntry",
    "LedgerError",
    "NoSurvivorsError",
    "Plan",
    "PlanError",
    "Policy",
    "PolicyError",
    "Promise",
    "Response",
    "Restore",
    "Role",
    "ScheduleError",
    "SimulatedStep",
    "Stack",
    "StaticWorld",
    "SurvivorRecord",
    "TableError",
    "WorkloadPolicyError",
    "__version__",
    "agreed_table",
    "check_exact",
    "check_members",
    "check_own_plan",
    "check_shape",
    "failed_replicas",
    "load_policy",
    "policy_names",
    "ranges_of",
    "share_out",
    "simulate",
]

__version__ = version("workload-policy")

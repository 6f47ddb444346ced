"""What the package offers at its root: these names are fixed."""

import importlib.metadata
import subprocess
import sys

import workload_policy

NAMES = [
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
    "POLICY_GROUP",
    "POLICY_NAMES",
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


def test_the_names() -> None:
    assert sorted(workload_policy.__all__) == NAMES
    for name in NAMES:
        assert getattr(workload_policy, name) is not None


def test_version() -> None:
    assert workload_policy.__version__ == importlib.metadata.version("workload-policy")


def test_nothing_but_the_standard_library() -> None:
    program = (
        "import sys, workload_policy, workload_policy.command_line\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'numpy', 'scipy', 'torch', 'mpi4py'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"

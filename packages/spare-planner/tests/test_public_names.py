"""What the package offers at its root: these names are fixed, and cost nothing before their use."""

import importlib.metadata
import pkgutil
import subprocess
import sys

import pytest

import spare_planner

NAMES = [
    "CONSTRUCTIONS",
    "Cluster",
    "Experiment",
    "FailureLog",
    "FailureModel",
    "Fit",
    "GroupError",
    "Placement",
    "PlacementError",
    "PlannerError",
    "QuantityError",
    "Recommendation",
    "Reordering",
    "Replay",
    "STRATEGIES",
    "Scenario",
    "Stacked",
    "Stacks",
    "StaleError",
    "Summary",
    "WipeOutError",
    "__version__",
    "endurable_failures",
    "fit_log",
    "optimal_redundancy",
    "patches_per_failure",
    "place",
    "read_log",
    "recommend",
    "simulate",
    "stacks_per_step",
]


def test_the_names() -> None:
    assert sorted(spare_planner.__all__) == sorted(dir(spare_planner)) == NAMES
    for name in NAMES:
        value = getattr(spare_planner, name)
        assert getattr(value, "__name__", name) == name


def test_no_module_has_the_name_of_something_public() -> None:
    """Importing such a module would put it in the place of the function."""
    modules = {module.name for module in pkgutil.iter_modules(spare_planner.__path__)}
    assert modules.isdisjoint(NAMES)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="'spare_planner' has no attribute 'plan'"):
        _ = spare_planner.plan  # type: ignore[attr-defined]


def test_version() -> None:
    assert spare_planner.__version__ == importlib.metadata.version("spare-planner")


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import spare_planner", {"numpy", "scipy", "workload_policy"}),
        ("import spare_planner; spare_planner.Stacks(spare_planner.place(7, 3))", {"scipy"}),
        ("import spare_planner; spare_planner.Stacked(redundancy=2)", {"scipy"}),
    ],
)
def test_nothing_is_imported_before_it_is_used(program: str, absent: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert absent.isdisjoint(done.stdout.split())

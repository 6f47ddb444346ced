"""The policies by name: those of this package, and those that installed packages add."""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from workload_policy.errors import PolicyError
from workload_policy.policies.adaptive_world import AdaptiveWorld
from workload_policy.policies.exact_batch import ExactBatch
from workload_policy.policies.in_order import InOrder
from workload_policy.policies.static_world import StaticWorld

__all__ = ["POLICY_GROUP", "POLICY_NAMES", "maker_named", "policy_names"]

_POLICIES: dict[str, type[InOrder]] = {
    cls.name: cls for cls in (StaticWorld, AdaptiveWorld, ExactBatch)
}

POLICY_NAMES = tuple(_POLICIES)
"""Names of the policies of this package, the default first."""

POLICY_GROUP = "workload_policy.policies"
"""The entry point group by which other packages add policies."""

_ELSEWHERE = {"stacked": "spare-planner"}


def policy_names() -> tuple[str, ...]:
    """Return the names that can be asked for here: `POLICY_NAMES`, then those of other packages."""
    return (*POLICY_NAMES, *sorted(entry_points(group=POLICY_GROUP).names - set(POLICY_NAMES)))


def maker_named(name: str) -> Callable[..., Any]:
    """Return what makes the policy of this name.

    Nothing of another package is imported before its policy is asked for.

    Raises:
        PolicyError: There is none, or its package cannot be imported.
    """
    if name in _POLICIES:
        return _POLICIES[name]
    found = entry_points(group=POLICY_GROUP)
    if name not in found.names:
        hint = f"; it comes with the package {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise PolicyError(
            f"no policy is named {name!r}: choose from {', '.join(policy_names())}, or give"
            f" module:NAME or FILE.py{hint}"
        )
    try:
        make: Callable[..., Any] = found[name].load()
    except Exception as error:
        raise PolicyError(
            f"policy {name!r} is registered as {found[name].value!r}, which cannot be imported:"
            f" {type(error).__name__}: {error}"
        ) from error
    return make

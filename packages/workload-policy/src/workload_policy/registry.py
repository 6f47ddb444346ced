"""The policies by name."""

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from workload_policy.adaptive_world import AdaptiveWorld
from workload_policy.errors import PolicyNameError
from workload_policy.exact_batch import ExactBatch
from workload_policy.policy import Policy
from workload_policy.static_world import StaticWorld
from workload_policy.step_policy import StepPolicy

__all__ = ["POLICY_GROUP", "POLICY_NAMES", "policy_named"]

_POLICIES: dict[str, type[StepPolicy]] = {
    cls.name: cls for cls in (StaticWorld, AdaptiveWorld, ExactBatch)
}

POLICY_NAMES = tuple(_POLICIES)
"""Names of the policies of this package, the default first."""

POLICY_GROUP = "workload_policy.policies"
"""The entry point group by which other packages add policies."""

_ELSEWHERE = {"stacked": "spare-planner"}


def policy_named(name: str, **options: Any) -> Policy:
    """Return the policy of this name, from here or from an installed package.

    Another package adds one by an entry point in the group `POLICY_GROUP` that names a callable
    which returns it. Nothing of that package is imported before its policy is asked for.

    >>> policy_named("exact").name
    'exact'

    Args:
        name: One of `POLICY_NAMES`, or of an entry point.
        options: What the policy takes; those of this package take none.

    Raises:
        PolicyNameError: There is none, or it does not take these options.
    """
    make: Callable[..., Policy] | None = _POLICIES.get(name)
    if make is None:
        make = _installed(name)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise PolicyNameError(f"policy {name!r} does not take these options: {error}") from None
    return make(**options)


def _installed(name: str) -> Callable[..., Policy]:
    found = entry_points(group=POLICY_GROUP)
    if name not in found.names:
        names = ", ".join([*POLICY_NAMES, *sorted(found.names)])
        hint = f"; it comes with the package {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
        raise PolicyNameError(f"no policy is named {name!r}: choose from {names}{hint}")
    make: Callable[..., Policy] = found[name].load()
    return make

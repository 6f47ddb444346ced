"""The policies by name."""

from workload_policy.adaptive_world import AdaptiveWorld
from workload_policy.errors import PolicyNameError
from workload_policy.exact_batch import ExactBatch
from workload_policy.policy import Policy
from workload_policy.static_world import StaticWorld
from workload_policy.step_policy import StepPolicy

__all__ = ["POLICY_NAMES", "policy_named"]

_POLICIES: dict[str, type[StepPolicy]] = {
    cls.name: cls for cls in (StaticWorld, AdaptiveWorld, ExactBatch)
}

POLICY_NAMES = tuple(_POLICIES)
"""Names that `policy_named` knows, the default first."""


def policy_named(name: str) -> Policy:
    """Return the policy of this name.

    >>> policy_named("exact").name
    'exact'

    Raises:
        PolicyNameError: There is none.
    """
    try:
        return _POLICIES[name]()
    except KeyError:
        raise PolicyNameError(
            f"no policy is named {name!r}: choose from {', '.join(POLICY_NAMES)}"
        ) from None

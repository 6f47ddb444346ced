"""A policy that is made of single functions, and takes those that are missing from another one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workload_policy.layout import Layout
from workload_policy.plan import Plan
from workload_policy.policies.in_order import InOrder
from workload_policy.promise import Promise
from workload_policy.response import Response
from workload_policy.roles import Role

__all__ = ["FromFunctions"]


class FromFunctions(InOrder):
    """The functions of somebody else in the place of an `InOrder` policy's methods.

    Args:
        name: Name of the policy.
        promise: What holds of every step.
        base: The policy whose methods stand in for functions that are not given.
        functions: ``layout``, ``quotas`` and ``respond``, those there are, with the arguments of
            the methods of the same names.
        file: Where they are written, for messages.
    """

    def __init__(
        self,
        *,
        name: str,
        promise: Promise,
        base: InOrder,
        functions: Mapping[str, Callable[..., Any]],
        file: str,
    ) -> None:
        self.name = name
        self.promise = promise
        self._file = file
        self._base = base
        self._functions = dict(functions)

    @property
    def described(self) -> str:
        """The policy as messages name it."""
        return f"policy {self.name!r} ({self._file})"

    def layout(self, *, replicas: int, grad_accum: int, survivors: int) -> Layout:
        """Return the steady-state split for that many survivors."""
        layout: Layout = self._function("layout")(
            replicas=replicas, grad_accum=grad_accum, survivors=survivors
        )
        return layout

    def quotas(self, layout: Layout, roles: Mapping[int, Role]) -> Mapping[int, int]:
        """Return how many microbatches each member computes in a step."""
        quotas: Mapping[int, int] = self._function("quotas")(layout, roles)
        return quotas

    def respond(self, plan: Plan, failed: Sequence[int], roles: dict[int, Role]) -> Response:
        """Say how the survivors absorb a failure."""
        response: Response = self._function("respond")(plan, failed, roles)
        return response

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = self._functions.get(name) or getattr(self._base, name)
        return function

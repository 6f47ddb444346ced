"""What the policy `Stacked` remembers from step to step, and how it is kept in a plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from spare_planner.errors import GroupError, PlacementError, WipeOutError
from spare_planner.placement import Placement, place
from spare_planner.reorder import Stacks
from workload_policy import Plan, PlanError

__all__ = ["StackedState", "placed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedState:
    """The stacks of the next step.

    Attributes:
        redundancy: Members that hosted each type at the start, and types that each member hosts.
        seed: Seed of a random placement.
        depth: How many stacks each member computes from the next step on; in this step too unless
            it was raised by a failure in it.
        order: All the types that each member hosts, in the order that holds from the next step on:
            the first `depth` of them are its stacks.
    """

    redundancy: int
    seed: int
    depth: int
    order: Mapping[int, tuple[int, ...]]

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the state that a plan carries.

        Raises:
            PlanError: Something of it is missing, of the wrong kind, or contradicts the plan.
        """
        try:
            order = plan.state["order"]
            state = cls(
                redundancy=int(plan.state["redundancy"]),
                seed=int(plan.state["seed"]),
                depth=int(plan.state["depth"]),
                order={m: tuple(map(int, order[str(m)])) for m in sorted(map(int, order))},
            )
        except KeyError as error:
            raise _damaged(plan, f"{error.args[0]!r} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise _damaged(plan, str(error)) from error
        if plan.stacks is None or set(state.order) != set(plan.members):
            raise _damaged(plan, "its stacks are not those of its members")
        if not 1 <= state.depth <= state.redundancy:
            raise _damaged(plan, f"it is {state.depth} stacks deep, of {state.redundancy}")
        if any(len(set(types)) != state.redundancy for types in state.order.values()):
            raise _damaged(plan, f"a member of it does not host {state.redundancy} types")
        return state

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a plan keeps it; replica ids become string keys."""
        return {
            "redundancy": self.redundancy,
            "seed": self.seed,
            "depth": self.depth,
            "order": {str(m): list(types) for m, types in self.order.items()},
        }

    def stacks(self, plan: Plan) -> Stacks:
        """Return the stacks as the plan that this is the state of has them for the next step.

        Raises:
            PlanError: They are not stacks of the placement.
        """
        try:
            placement = placed(plan.replicas, self.redundancy, self.seed)
            return Stacks.from_order(placement, self.order, self.depth)
        except (PlacementError, GroupError, WipeOutError) as error:
            raise _damaged(plan, str(error)) from error


@lru_cache(maxsize=8)
def placed(groups: int, redundancy: int, seed: int) -> Placement:
    """Return `place`'s answer, kept for the next time."""
    return place(groups, redundancy, seed=seed)


def _damaged(plan: Plan, why: str) -> PlanError:
    return PlanError(f"the stacks of step {plan.step} are damaged: {why}")

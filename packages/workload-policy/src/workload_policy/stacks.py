"""Redundant stacks in a plan: what a member computes twice over, and what of it counts.

Under a policy with redundant stacks (SPARe) the batch is cut into *shard types*, each a block of
ids. A member *hosts* several types and computes some of them, its *stacks*. Most types are computed
by more than one member, but each counts only once, where its stack is `Stack.counted`. When that
member dies within the step, another computed copy counts in its place.

This package only describes stacks; the policy that makes them is in the package spare-planner.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Stack", "contradictions", "ids_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """One shard type as one member computes it in this step.

    Attributes:
        shard_type: Which type.
        ids: Its microbatch ids in this step, in order.
        counted: Whether they count here. If not, another member's copy does, and this one is there
            in case that member dies.
    """

    shard_type: int
    ids: tuple[int, ...]
    counted: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the stack as a JSON-ready dictionary."""
        return {"type": self.shard_type, "ids": list(self.ids), "counted": self.counted}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a stack from `to_dict`; `Plan.from_dict` turns what is wrong into an error."""
        return cls(
            shard_type=int(data["type"]),
            ids=tuple(map(int, data["ids"])),
            counted=bool(data["counted"]),
        )


def ids_of(stacks: Iterable[Stack]) -> tuple[int, ...]:
    """Return the ids of stacks, in order."""
    return tuple(itertools.chain.from_iterable(stack.ids for stack in stacks))


def contradictions(
    stacks: Mapping[int, Sequence[Stack]],
    *,
    members: tuple[int, ...],
    assigned: Mapping[int, tuple[int, ...]],
) -> Iterator[str]:
    """Yield what is wrong with the stacks of a plan with these members and this assignment."""
    if set(stacks) != set(members):
        yield "its stacks are not those of its members"
    if {m: ids_of(mine) for m, mine in stacks.items()} != dict(assigned):
        yield "its stacks are not what it assigns"
    if any(len(set(ids)) != len(ids) for ids in assigned.values()):
        yield "it assigns an id twice to the same member"
    counted = ids_of(stack for mine in stacks.values() for stack in mine if stack.counted)
    if len(set(counted)) != len(counted):
        yield "it counts an id twice"

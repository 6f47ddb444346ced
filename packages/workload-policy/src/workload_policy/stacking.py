"""Redundant stacks in a plan: what a member computes twice over, and what of it counts.

Under a policy with redundant stacks (SPARe) the batch is cut into *shard types*, each a block of
ids. A member *hosts* several types and computes the first few of them, its *stacks*. Most types are
computed by more than one member, but each counts only once, where its stack is `Stack.counted`.
When that member dies within the step, another computed copy counts in its place.

This package only describes stacks; the policy that makes them is in the package spare-planner.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

__all__ = ["Stack", "Stacking"]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacking:
    """The redundant stacks of a plan.

    Attributes:
        redundancy: Members that hosted each type at the start, and types that each member hosts.
        seed: Of the placement, where it is a random one.
        depth: How many stacks each member computes from the next step on; in this step too unless
            it was raised by a failure in it.
        order: All the types that each member hosts, in the order that holds from the next step on:
            the first `depth` of them are its stacks.
        stacks: What each member computes in this step, in order; stacks added by failures are at
            the end.
    """

    redundancy: int
    seed: int
    depth: int
    order: Mapping[int, tuple[int, ...]]
    stacks: Mapping[int, tuple[Stack, ...]]

    @property
    def assigned(self) -> dict[int, tuple[int, ...]]:
        """Ids that each member computes, in order."""
        return {m: _ids(stacks) for m, stacks in self.stacks.items()}

    @property
    def counted(self) -> dict[int, tuple[int, ...]]:
        """Those of them that count."""
        return {
            m: _ids(tuple(stack for stack in stacks if stack.counted))
            for m, stacks in self.stacks.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the stacks as a JSON-ready dictionary; replica ids become string keys."""
        return {
            "redundancy": self.redundancy,
            "seed": self.seed,
            "depth": self.depth,
            "order": {str(m): list(types) for m, types in self.order.items()},
            "stacks": {
                str(m): [
                    {"type": s.shard_type, "ids": list(s.ids), "counted": s.counted} for s in stacks
                ]
                for m, stacks in self.stacks.items()
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild stacks from `to_dict`; `Plan.from_dict` turns what is wrong into an error."""
        order, stacks = data["order"], data["stacks"]
        return cls(
            redundancy=int(data["redundancy"]),
            seed=int(data["seed"]),
            depth=int(data["depth"]),
            order={m: tuple(map(int, order[str(m)])) for m in sorted(map(int, order))},
            stacks={
                m: tuple(
                    Stack(
                        shard_type=int(stack["type"]),
                        ids=tuple(map(int, stack["ids"])),
                        counted=bool(stack["counted"]),
                    )
                    for stack in stacks[str(m)]
                )
                for m in sorted(map(int, stacks))
            },
        )

    def contradictions(
        self, members: tuple[int, ...], assigned: Mapping[int, tuple[int, ...]]
    ) -> Iterator[str]:
        """Yield what is wrong with the stacks of a plan with these members and assignment."""
        if set(self.stacks) != set(members) or set(self.order) != set(members):
            yield "its stacks are not those of its members"
        if self.assigned != dict(assigned):
            yield "its stacks are not what it assigns"
        if not 1 <= self.depth <= self.redundancy:
            yield f"it is {self.depth} stacks deep, of {self.redundancy}"
        if any(len(set(types)) != self.redundancy for types in self.order.values()):
            yield f"a member of it does not host {self.redundancy} types"
        if any(len(set(ids)) != len(ids) for ids in assigned.values()):
            yield "it assigns an id twice to the same member"
        counted = list(itertools.chain.from_iterable(self.counted.values()))
        if len(set(counted)) != len(counted):
            yield "it counts an id twice"


def _ids(stacks: tuple[Stack, ...]) -> tuple[int, ...]:
    return tuple(itertools.chain.from_iterable(stack.ids for stack in stacks))

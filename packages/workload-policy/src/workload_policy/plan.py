"""The plan of the step in progress: who is alive, in which role, with which microbatches."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from workload_policy.errors import PlanError
from workload_policy.layout import Layout
from workload_policy.ranges import ranges_of
from workload_policy.roles import Role
from workload_policy.stacks import Stack, contradictions, ids_of

__all__ = ["Plan"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything a policy knows about the step in progress; a value, never changed in place.

    The ids of this step are not counted before `Policy.advance`. Until then the uncounted ids,
    those assigned here among them, are ``queue + [cursor, inf)``.

    Attributes:
        policy: Name of the policy that made the plan.
        step: Number of the step, from 0.
        replicas: Replicas the run started with, ``W_init``.
        grad_accum: Microbatches per replica the run started with, ``G_init``.
        layout: The split in force. It is re-derived only after a policy boundary, so after
            promotions `members` may be fewer than ``layout.survivors``.
        members: Ids of the living replicas, sorted.
        roles: Role of each member.
        assigned: Ids each member computes in this step, in order; work added by failures is at the
            end.
        cursor: First id of the untouched rest of the stream.
        queue: Uncounted ids below `cursor`, sorted.
        target: What `total` has to be when the step commits: the global batch, or what is left of
            it for a policy that lets it shrink.
        extra: Extra accumulation steps so far in this step, ``G_ext`` summed over its policy
            boundaries.
        boundary: Whether this step has crossed a policy boundary.
        boundary_minors: Boundary minors of the last boundary of this step.
        stacks: What each member computes in this step as stacks, in order; those added by failures
            are at the end. None where every id is assigned once.
        state: What the policy that made the plan has to remember beyond all this, as JSON has it:
            string keys, lists, numbers. Private to that policy, which checks it; empty for most.
    """

    policy: str
    step: int
    replicas: int
    grad_accum: int
    layout: Layout
    members: tuple[int, ...]
    roles: Mapping[int, Role]
    assigned: Mapping[int, tuple[int, ...]]
    cursor: int
    queue: tuple[int, ...]
    target: int
    extra: int = 0
    boundary: bool = False
    boundary_minors: int = 0
    stacks: Mapping[int, tuple[Stack, ...]] | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    _digest: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """15 hexadecimal digits (60 bits) that two plans share only if they are the same.

        The start of the SHA-256 of `to_dict` as compact JSON with sorted keys, ids as ranges: equal
        on all ranks, whatever the process or the version of Python. Computed at the first use.
        """
        if not self._digest:
            text = json.dumps(self._canonical(), sort_keys=True, separators=(",", ":"))
            self._digest.append(hashlib.sha256(text.encode()).hexdigest()[:15])
        return self._digest[0]

    def _canonical(self) -> dict[str, Any]:
        """Return all that decides who computes what; lists of ids as ranges, which are short."""
        plan = self.to_dict()
        plan["queue"] = ranges_of(self.queue)
        plan["assigned"] = {str(m): ranges_of(self.assigned[m]) for m in self.members}
        return plan

    @property
    def global_batch(self) -> int:
        """Microbatches of a failure-free step, ``B = W_init * G_init``."""
        return self.replicas * self.grad_accum

    @property
    def contributions(self) -> dict[int, int]:
        """Microbatches of each member that count in this step; 0 for spares."""
        return {m: len(ids) for m, ids in self.committed_ids.items()}

    @property
    def committed_ids(self) -> dict[int, tuple[int, ...]]:
        """Ids of each member that count when this step commits; empty for spares."""
        if self.stacks is not None:
            return {m: self.primary(m) for m in self.members}
        return {m: () if self.roles[m].is_spare else self.assigned[m] for m in self.members}

    @property
    def total(self) -> int:
        """Microbatches that count in this step, over all members."""
        return sum(self.contributions.values())

    @property
    def depth(self) -> int:
        """Most stacks that a member computes in this step; 0 without stacks."""
        return max(map(len, self.stacks.values())) if self.stacks else 0

    def primary(self, member: int) -> tuple[int, ...]:
        """Return the ids that a member computes into the sum that is reduced, in order.

        Without stacks that is all it is assigned: what a spare computes is left out of the sum only
        because of its role. With stacks it is what counts.
        """
        if self.stacks is None:
            return self.assigned[member]
        return ids_of(stack for stack in self.stacks[member] if stack.counted)

    def redundant(self, member: int) -> tuple[Stack, ...]:
        """Return the stacks that a member computes and that do not count there, in order.

        Their gradients are to be kept apart, in case they count later; empty without stacks.
        """
        if self.stacks is None:
            return ()
        return tuple(stack for stack in self.stacks[member] if not stack.counted)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a JSON-ready dictionary; replica ids become string keys."""
        return {
            "policy": self.policy,
            "step": self.step,
            "replicas": self.replicas,
            "grad_accum": self.grad_accum,
            "layout": self.layout.to_dict(),
            "members": list(self.members),
            "roles": {str(m): self.roles[m].label for m in self.members},
            "assigned": {str(m): list(self.assigned[m]) for m in self.members},
            "cursor": self.cursor,
            "queue": list(self.queue),
            "target": self.target,
            "extra": self.extra,
            "boundary": self.boundary,
            "boundary_minors": self.boundary_minors,
            **({} if self.stacks is None else {"stacks": self._stacks_to_dict(self.stacks)}),
            **({"state": dict(self.state)} if self.state else {}),
        }

    def _stacks_to_dict(self, stacks: Mapping[int, tuple[Stack, ...]]) -> dict[str, Any]:
        return {str(m): [stack.to_dict() for stack in stacks[m]] for m in self.members}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a plan from `to_dict`, also after a trip through JSON.

        Raises:
            PlanError: Something is missing, of the wrong kind, or contradicts the rest.
        """
        try:
            plan = cls(
                policy=str(data["policy"]),
                step=int(data["step"]),
                replicas=int(data["replicas"]),
                grad_accum=int(data["grad_accum"]),
                layout=Layout.from_dict(data["layout"]),
                members=tuple(map(int, data["members"])),
                roles=_by_replica({m: Role[name.upper()] for m, name in data["roles"].items()}),
                assigned=_by_replica(
                    {m: tuple(map(int, ids)) for m, ids in data["assigned"].items()}
                ),
                cursor=int(data["cursor"]),
                queue=tuple(map(int, data["queue"])),
                target=int(data["target"]),
                extra=int(data["extra"]),
                boundary=bool(data["boundary"]),
                boundary_minors=int(data["boundary_minors"]),
                stacks=_stacks(data["stacks"]) if "stacks" in data else None,
                state=_state(data.get("state", {})),
            )
        except KeyError as error:
            raise PlanError(f"not a saved plan: {error.args[0]!r} is missing or unknown") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"not a saved plan: {error}") from error
        plan.check()
        return plan

    def check(self) -> None:
        """Check that the plan does not contradict itself.

        `from_dict` does. Plans of a policy's own making do not need it.

        Raises:
            PlanError: It does; the message names what.
        """
        complaint = next(self._contradictions(), None)
        if complaint:
            raise PlanError(f"the plan of step {self.step} is damaged: {complaint}")

    def _contradictions(self) -> Iterator[str]:
        """Yield what is wrong. What comes after the first of them may fail because of it."""
        if not self.members:
            yield "it has no members"
        if not _increasing(self.members):
            yield "its members are not sorted and distinct"
        if set(self.roles) != set(self.members):
            yield "its roles are not those of its members"
        if set(self.assigned) != set(self.members):
            yield "its assignment is not that of its members"
        if not _increasing((*self.queue, self.cursor)):
            yield "its queue is not sorted and below its cursor"
        ids = set(itertools.chain.from_iterable(self.assigned.values()))
        if self.stacks is not None:
            yield from contradictions(self.stacks, members=self.members, assigned=self.assigned)
        elif len(ids) != sum(map(len, self.assigned.values())):
            yield "it assigns an id twice"
        if any(i < self.cursor for i in ids.difference(self.queue)):
            yield "it assigns an id that is already counted"
        if self.total != self.target:
            yield f"it counts {self.total} microbatches, not {self.target}"


def _by_replica(values: Mapping[str, T]) -> dict[int, T]:
    """Turn the string keys of JSON into replica ids, in order whatever JSON did to it."""
    return {replica: values[str(replica)] for replica in sorted(map(int, values))}


def _stacks(data: Mapping[str, Any]) -> dict[int, tuple[Stack, ...]]:
    return _by_replica({m: tuple(map(Stack.from_dict, stacks)) for m, stacks in data.items()})


def _state(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise PlanError(f"not a saved plan: its state is {data!r}, not an object")
    return dict(data)


def _increasing(values: tuple[int, ...]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))

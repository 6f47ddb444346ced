"""Which group hosts which shard types, and in which order.

N groups host r of the N shard types each, and each type is hosted by r groups. The r types of a
group are its *stacks*: it computes the first S of them in a step. In a cyclic placement group w
hosts the types ``w + o_j mod N``; if the offsets o are a Golomb ruler mod N, any two groups share
at most one type, so losing a few groups never thins out one corner of the types (SPARe, stacked
parallelism).

Three kinds, the first that exists:

* ``golomb``: the shortest Golomb ruler, for N >= 2L + 1 where L is its length. (With N = 2L the
  differences L and -L are the same mod N.)
* ``singer``, ``bose-chowla``, ``ruzsa``: modular rulers, for N of special forms up to
  r(r-1) <= N-1.
* ``random``: r random permutations without a type twice in a group, from a seed. It endures as many
  failures as a ruler does on average and computes as many stacks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spare_planner.errors import PlacementError
from spare_planner.modular import MODULAR, modular_ruler
from spare_planner.rulers import LARGEST, golomb_ruler

__all__ = ["CONSTRUCTIONS", "Placement", "place"]

CONSTRUCTIONS = ("golomb", *MODULAR, "random")
"""Names of the constructions, in the order in which they are tried."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Who hosts what.

    Attributes:
        groups: N, how many groups there are, and shard types.
        redundancy: r, how many types each group hosts, and groups each type.
        offsets: The offsets of a cyclic placement, from 0 up; empty for a random one.
        construction: One of `CONSTRUCTIONS`.
        table: The types each group hosts in stack order, int32 of shape (N, r); read-only.
        hosts: The groups that host each type, sorted, int32 of shape (N, r); read-only.
    """

    groups: int
    redundancy: int
    offsets: tuple[int, ...]
    construction: str
    table: NDArray[np.int32]
    hosts: NDArray[np.int32]

    @property
    def guaranteed_failures(self) -> int:
        """How many groups may be lost, whichever they are, before a type can be lost: r - 1."""
        return self.redundancy - 1

    @property
    def guaranteed_run(self) -> int:
        """How many neighbours, groups w, w+1, ... mod N, may be lost at once with all else alive.

        As long as groups that fail together, those of a rack say, have numbers in a row, this is
        how many they may be. It is the length L of the ruler for a ``golomb`` placement.
        """
        behind = self.groups - self.hosts[:, -1:] + self.hosts[:, :1]
        gaps = np.concatenate([np.diff(self.hosts, axis=1), behind], axis=1)
        return self.groups - int(gaps.max())

    def guaranteed_stacks(self, failures: int) -> int | None:
        """Return how many stacks suffice at most after that many failures, whichever they are.

        After k < r failures every type has r - k hosts left and every group hosts r types, so any
        set T of types has at least |T| (r - k) / r hosts, and by Hall's theorem ceil(r / (r - k))
        stacks suffice: no more than 2 while k <= r / 2. None from k = r on, where a type may be
        lost.
        """
        left = self.redundancy - failures
        return -(-self.redundancy // left) if left > 0 else None

    def hosted(self, group: int) -> tuple[int, ...]:
        """Return the types a group hosts, in stack order."""
        return tuple(self.table[group].tolist())


def place(
    groups: int, redundancy: int, *, construction: str | None = None, seed: int = 0
) -> Placement:
    """Place N shard types on N groups, each on r of them.

    >>> place(13, 4).offsets
    (0, 1, 4, 6)

    Args:
        groups: N, at least 1.
        redundancy: r, from 1 to N.
        construction: One of `CONSTRUCTIONS`; None takes the first that exists for N and r.
        seed: Seed of a random placement. The same seed gives the same placement.

    Raises:
        PlacementError: A number is out of range, or the construction does not exist for them.
    """
    if groups < 1:
        raise PlacementError(f"groups must be at least 1, got {groups}")
    if not 1 <= redundancy <= groups:
        raise PlacementError(
            f"redundancy must be from 1 to {groups}, the number of groups, got {redundancy}"
        )
    if seed < 0:
        raise PlacementError(f"seed must not be negative, got {seed}")
    if construction is not None and construction not in CONSTRUCTIONS:
        raise PlacementError(
            f"no construction is named {construction!r}: choose from {', '.join(CONSTRUCTIONS)}"
        )
    for name in CONSTRUCTIONS[:-1] if construction is None else (construction,):
        if name == "random":
            break
        offsets = _offsets(name, groups, redundancy)
        if offsets is not None:
            shifted = np.arange(groups)[:, None] + np.asarray(offsets)
            return _placement(shifted % groups, offsets=offsets, construction=name)
        if construction is not None:
            raise PlacementError(
                f"there is no {name} placement of redundancy {redundancy} on {groups} groups"
                f"{_need(name, redundancy)}; choose another, or none to take what there is"
            )
    rng = np.random.default_rng(seed)
    table = _random_table(groups, redundancy, rng)
    return _placement(table, offsets=(), construction="random")


def _offsets(construction: str, groups: int, redundancy: int) -> tuple[int, ...] | None:
    if construction != "golomb":
        return modular_ruler(construction, groups, redundancy)
    if redundancy > LARGEST:
        return None
    ruler = golomb_ruler(redundancy)
    return ruler if groups >= 2 * ruler[-1] + 1 else None


def _need(construction: str, redundancy: int) -> str:
    if construction == "golomb" and redundancy <= LARGEST:
        return f": it takes {2 * golomb_ruler(redundancy)[-1] + 1} groups"
    if construction == "golomb":
        return f": the longest ruler known has {LARGEST} marks"
    return ""


def _placement(
    table: NDArray[np.int64], *, offsets: tuple[int, ...], construction: str
) -> Placement:
    groups, redundancy = table.shape
    by_type = np.argsort(table, axis=None, kind="stable")  # so the hosts of a type come sorted
    hosts = (by_type // redundancy).reshape(groups, redundancy).astype(np.int32)
    types = table.astype(np.int32)
    types.setflags(write=False)
    hosts.setflags(write=False)
    return Placement(
        groups=groups,
        redundancy=redundancy,
        offsets=offsets,
        construction=construction,
        table=types,
        hosts=hosts,
    )


def _random_table(groups: int, redundancy: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a table of random permutations, one a stack, in which no group has a type twice."""
    table = np.empty((groups, redundancy), dtype=np.int64)
    table[:, 0] = np.arange(groups)
    for stack in range(1, redundancy):
        column = rng.permutation(groups)
        for _ in range(200):
            twice = np.flatnonzero((table[:, :stack] == column[:, None]).any(axis=1))
            if not len(twice):
                break
            for group in twice.tolist():
                other = int(rng.integers(groups))
                column[[group, other]] = column[[other, group]]
        else:  # r is close to N, where a permutation that fits is rare
            return _relabelled_shifts(groups, redundancy, rng)
        table[:, stack] = column
    return table


def _relabelled_shifts(groups: int, redundancy: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a cyclic placement with random shifts, its groups and types renamed at random."""
    shifts = rng.permutation(groups)[:redundancy]
    places = rng.permutation(groups)
    types: NDArray[np.int64] = rng.permutation(groups)[(places[:, None] + shifts) % groups]
    return types

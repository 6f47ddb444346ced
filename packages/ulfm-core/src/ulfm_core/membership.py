"""Who sits where: a value that maps every living rank to its seat in a replica.

Whatever asks which replica a rank belongs to, which position it has, or who is left, asks a
`Membership`. Only this module knows that the ranks of a first start are numbered replica by
replica; a membership itself holds for ranks in any order and with gaps.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Self

from ulfm_core.errors import UsageError

__all__ = ["Membership", "Seat", "whole_replicas"]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Seat:
    """A rank's place in the job.

    Attributes:
        replica: The number of its replica.
        position: Its index inside the replica.
    """

    replica: int
    position: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """The living ranks of a job, each with its seat.

    Equal by value and hashable. No two ranks share a seat.

    Attributes:
        replica_size: Ranks in a whole replica.
        seats: Pairs of a rank and its seat, in the order of the ranks.

    >>> job = Membership.initial(6, 2)
    >>> job.replica_of(5), job.position_of(5)
    (2, 1)
    >>> left = job.without(job.ranks_of(0))
    >>> left.ranks, left.living, left.group_of(1), left.leader
    ((2, 3, 4, 5), (1, 2), (3, 5), 2)
    """

    replica_size: int
    seats: tuple[tuple[int, Seat], ...]

    def __post_init__(self) -> None:
        ranks = [rank for rank, _ in self.seats]
        if any(rank >= other for rank, other in pairwise(ranks)):
            raise UsageError(f"the ranks {ranks} of a membership do not go up: sort them")
        taken: dict[Seat, int] = {}
        for rank, seat in self.seats:
            if not 0 <= seat.position < self.replica_size:
                raise UsageError(
                    f"rank {rank} has position {seat.position}: a replica of {self.replica_size}"
                    f" has positions 0 to {self.replica_size - 1}"
                )
            if seat in taken:
                raise UsageError(f"ranks {taken[seat]} and {rank} have one seat: {seat}")
            taken[seat] = rank

    @classmethod
    def initial(cls, size: int, replica_size: int) -> Self:
        """Return the membership of a first start: replica by replica, position by position.

        Args:
            size: The number of ranks.
            replica_size: Ranks in a replica.

        Raises:
            UsageError: `replica_size` does not divide `size`.
        """
        if replica_size < 1 or size % replica_size:
            raise UsageError(
                f"replica size {replica_size} does not divide the {size} ranks of this job"
            )
        places = (divmod(rank, replica_size) for rank in range(size))
        seats = (Seat(replica=replica, position=position) for replica, position in places)
        return cls(replica_size=replica_size, seats=tuple(enumerate(seats)))

    @classmethod
    def from_seats(cls, seats: Mapping[int, Seat], *, replica_size: int) -> Self:
        """Return the membership of these ranks, in whatever order they are given."""
        ordered = sorted(seats.items(), key=itemgetter(0))
        return cls(replica_size=replica_size, seats=tuple(ordered))

    def __len__(self) -> int:
        return len(self.seats)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ranks)

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and self._find(rank) is not None

    def __getitem__(self, rank: int) -> Seat:
        """Return the seat of a living rank.

        Raises:
            KeyError: The rank is not alive.
        """
        seat = self._find(rank)
        if seat is None:
            raise KeyError(rank)
        return seat

    def _find(self, rank: int) -> Seat | None:
        index = bisect_left(self.seats, rank, key=itemgetter(0))
        if index < len(self.seats) and self.seats[index][0] == rank:
            return self.seats[index][1]
        return None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The living ranks, in order."""
        return tuple(rank for rank, _ in self.seats)

    @property
    def living(self) -> tuple[int, ...]:
        """The numbers of the replicas that have a living rank, in order."""
        return tuple(sorted({seat.replica for _, seat in self.seats}))

    @property
    def leader(self) -> int:
        """The first rank of the lowest living replica; in a first start's seats, the lowest rank.

        Raises:
            UsageError: Nobody is alive.
        """
        if not self.seats:
            raise UsageError("nobody is alive: a membership without ranks has no leader")
        return min(self.seats, key=itemgetter(1))[0]

    def replica_of(self, rank: int) -> int:
        """Return the replica of a living rank; KeyError if it is not alive."""
        return self[rank].replica

    def position_of(self, rank: int) -> int:
        """Return the position of a living rank; KeyError if it is not alive."""
        return self[rank].position

    def ranks_of(self, replica: int) -> tuple[int, ...]:
        """Return the living ranks of a replica, in the order of their positions."""
        found = [(seat.position, rank) for rank, seat in self.seats if seat.replica == replica]
        return tuple(rank for _, rank in sorted(found))

    def group_of(self, position: int) -> tuple[int, ...]:
        """Return the living ranks at a position, in the order of their replicas.

        A collective's indices, such as the root of a broadcast, count in this tuple.
        """
        found = [(seat.replica, rank) for rank, seat in self.seats if seat.position == position]
        return tuple(rank for _, rank in sorted(found))

    def of(self, members: Iterable[int]) -> Self:
        """Return the membership of these of its ranks, all of which must be in it."""
        kept = sorted(set(members))
        return replace(self, seats=tuple((rank, self[rank]) for rank in kept))

    def without(self, ranks: Iterable[int]) -> Self:
        """Return the membership of the others. Ranks that are not in it do no harm."""
        gone = set(ranks)
        return replace(self, seats=tuple(pair for pair in self.seats if pair[0] not in gone))

    def unbroken(self) -> Self:
        """Return the membership of those whose replica is alive as a whole.

        The others are condemned: a replica lives or dies as one.
        """
        present = Counter(seat.replica for _, seat in self.seats)
        whole = {one for one, ranks in present.items() if ranks == self.replica_size}
        return replace(self, seats=tuple(p for p in self.seats if p[1].replica in whole))


def whole_replicas(ranks: int, replica_size: int) -> int:
    """Return how many whole replicas that many ranks make."""
    return ranks // replica_size

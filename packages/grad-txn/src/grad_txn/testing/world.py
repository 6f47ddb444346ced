"""A world of threads: jobs without MPI, in one process, in milliseconds.

For tests of whatever runs over a `grad_txn.communicator.Communicator`. Every rank is a thread, a
killed one ends where it stands, and the rules are those of the real thing: a collective succeeds
once all have joined it and otherwise leaves garbage behind, only an agreement is common, and a
repair waits for all who live.

.. code-block:: python

    def program(rank: RankThread) -> float:
        total = torch.ones(1)
        rank.all_reduce(total).wait()
        return float(total)

    assert ThreadWorld(3).run(program) == {0: 3.0, 1: 3.0, 2: 3.0}
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from grad_txn.failures import FailureInjector, Kill
from grad_txn.log.events import EventLog
from grad_txn.log.lines import InjectLine
from ulfm_core import Agreement, Membership, Outcome, Repair, ReplicaCondemnedError
from ulfm_core.collectives import Operation

__all__ = ["RankThread", "ThreadInjector", "ThreadWorld"]

T = TypeVar("T")
Result = TypeVar("Result")
Lost = Callable[[int, int, int], bool]


class _KilledError(BaseException):
    """Unwinds the thread of a rank that was killed; no handler of errors may stop it."""


@dataclass(kw_only=True, slots=True)
class _Meeting:
    """Something that ranks do together: what each brought, and what came out of it."""

    brought: dict[int, Any] = field(default_factory=dict)
    closed: bool = False
    result: Any = None


class ThreadWorld:
    """Ranks that are threads.

    Args:
        replicas: Replicas at the start.
        replica_size: Ranks in a replica.
        lost: Called with rank, epoch and number of a collective (from 0 in each epoch) that has
            succeeded; True makes this rank alone see it fail, as happens when a peer dies behind
            its own part.
        seconds: Bound of every wait.
    """

    def __init__(
        self,
        replicas: int,
        *,
        replica_size: int = 1,
        lost: Lost | None = None,
        seconds: float = 20.0,
    ) -> None:
        first = Membership.initial(replicas * replica_size, replica_size)
        self._lost = lost or (lambda _rank, _epoch, _number: False)
        self._seconds = seconds
        self._changed = threading.Condition()
        self._living = set(first.ranks)
        self._memberships = [first]  # by epoch
        self._revoked: set[int] = set()
        self._meetings: dict[tuple[object, ...], _Meeting] = {}

    def run(self, program: Callable[["RankThread"], Result]) -> dict[int, Result]:
        """Run the program on every rank.

        Returns:
            What it returned, by rank; nothing for ranks that were killed.

        Raises:
            BaseException: The first error that left the program on any rank.
        """
        results: dict[int, Result] = {}
        errors: list[BaseException] = []

        def live(rank: RankThread) -> None:
            try:
                results[rank.rank] = program(rank)
            except _KilledError:
                pass
            except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
                errors.append(error)
            finally:
                self._end(rank.rank)

        ranks = [RankThread(self, number) for number in self.membership(0).ranks]
        threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * self._seconds)
        if errors:
            raise errors[0]
        if any(thread.is_alive() for thread in threads):
            raise TimeoutError(f"the ranks did not end within {3 * self._seconds:g} s")
        return results

    def membership(self, epoch: int) -> Membership:
        """Return who is part of the world of this epoch."""
        return self._memberships[epoch]

    def _end(self, rank: int) -> None:
        with self._changed:
            self._living.discard(rank)
            self._changed.notify_all()

    def _bring(self, key: tuple[object, ...], rank: int, what: object) -> None:
        """Join a meeting, without waiting for it."""
        with self._changed:
            self._meetings.setdefault(key, _Meeting()).brought[rank] = what
            self._changed.notify_all()

    def _await(
        self,
        key: tuple[object, ...],
        ready: Callable[[Mapping[int, Any]], bool],
        close: Callable[[Mapping[int, Any]], T],
    ) -> T:
        """Wait until a meeting is ready, and return its one result, common to all."""
        with self._changed:
            meeting = self._meetings[key]
            if not self._changed.wait_for(
                lambda: meeting.closed or ready(meeting.brought), self._seconds
            ):
                raise TimeoutError(f"{key}: only {sorted(meeting.brought)} came")
            if not meeting.closed:
                meeting.result, meeting.closed = close(meeting.brought), True
                self._changed.notify_all()
            result: T = meeting.result
            return result


class RankThread:
    """One rank: a `grad_txn.communicator.Communicator`. See `ulfm_core.World` for what it does."""

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        first = world.membership(0)
        self.rank = rank
        self.replica = first.replica_of(rank)
        self.position = first.position_of(rank)
        self.epoch = 0
        self.beats: list[str] = []
        self._world = world
        self._agreements = 0
        self._works: list[_Work] = []
        self._on_phase: Callable[[str, int], None] | None = None

    @property
    def membership(self) -> Membership:
        """The living, as last agreed."""
        return self._world.membership(self.epoch)

    @property
    def members(self) -> tuple[int, ...]:
        """Their initial ranks."""
        return self.membership.ranks

    @property
    def group(self) -> tuple[int, ...]:
        """Those of them at this rank's position."""
        return self.membership.group_of(self.position)

    def die(self) -> NoReturn:
        """End this rank here and now, as SIGKILL would."""
        self._world._end(self.rank)  # noqa: SLF001 - the two are one concept
        raise _KilledError

    def all_reduce(
        self,
        source: Tensor,
        destination: Tensor | None = None,
        *,
        op: Operation = "sum",
        contribute: bool = True,
        among: Sequence[int] | None = None,
    ) -> "_Work":
        """Combine `source` over the group, or among these, in the order of the ranks."""
        mine = source.detach().clone() if contribute else torch.zeros_like(source)
        target = source if destination is None else destination

        named = {"sum": "add", "prod": "mul", "min": "minimum", "max": "maximum"}
        combine: Callable[[Tensor, Tensor], Tensor] = getattr(torch, named[op])

        def reduce(parts: Sequence[Tensor]) -> Tensor:
            total = parts[0].clone()
            for part in parts[1:]:
                total = combine(total, part)
            return total

        return self._post(mine, target, reduce, among)

    def all_gather(
        self, source: Tensor, destination: Tensor, *, among: Sequence[int] | None = None
    ) -> "_Work":
        """Concatenate everyone's `source`, of the group or of `among`."""
        return self._post(
            source.detach().clone(), destination, lambda parts: torch.cat(list(parts)), among
        )

    def broadcast(
        self, buffer: Tensor, *, root: int, among: Sequence[int] | None = None
    ) -> "_Work":
        """Copy the buffer of the member of the group, or of `among`, with index `root` to all."""
        return self._post(buffer.detach().clone(), buffer, lambda parts: parts[root], among)

    def subgroup(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Make a subgroup of these initial ranks."""
        return tuple(ranks)

    def agree(self, flag: bool = True) -> Agreement:  # noqa: FBT001, FBT002 - as in ulfm_core
        """Learn, with everyone, whether all are alive and all flags are true."""
        world, members, epoch = self._world, self.members, self.epoch
        if not flag:
            with world._changed:  # noqa: SLF001
                world._revoked.add(epoch)  # noqa: SLF001 - nothing of this epoch counts any more
        key = (epoch, "agree", self._agreements)
        self._agreements += 1
        world._bring(key, self.rank, flag)  # noqa: SLF001
        all_alive, all_flags = world._await(  # noqa: SLF001
            key,
            lambda brought: world._living.intersection(members) <= brought.keys(),  # noqa: SLF001
            lambda brought: (
                world._living.issuperset(members),  # noqa: SLF001
                all(brought.values()),
            ),
        )
        return Agreement(all_alive=all_alive, flag=all_flags, seconds=0.0)

    def repair(self, record: Sequence[int] = ()) -> Repair:
        """Go on with those who live.

        Raises:
            ReplicaCondemnedError: A peer of this rank's own replica is gone.
        """
        world, before, epoch = self._world, self.membership, self.epoch
        for work in self._works:
            work.wait()
        begun = time.perf_counter()
        for phase in ("revoke", "shrink"):
            self._say(phase)
        key = (epoch, "repair")
        world._bring(key, self.rank, tuple(record))  # noqa: SLF001

        def close(brought: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
            living = world._living  # noqa: SLF001
            broken = {before.replica_of(rank) for rank in before.ranks if rank not in living}
            after = before.without(rank for replica in broken for rank in before.ranks_of(replica))
            world._memberships.append(after)  # noqa: SLF001
            return {rank: brought[rank] for rank in after.ranks}

        records = world._await(  # noqa: SLF001
            key,
            lambda brought: world._living.intersection(before.ranks) <= brought.keys(),  # noqa: SLF001
            close,
        )
        failed = tuple(rank for rank in before.ranks if rank not in records)
        self.epoch += 1
        self._agreements = 0
        self._works.clear()
        if self.rank in failed:
            raise ReplicaCondemnedError(
                f"replica {self.replica} lost a rank", failed=failed, epoch=self.epoch
            )
        self._say("record")
        return Repair(
            epoch=self.epoch,
            membership=self.membership,
            failed=failed,
            records=tuple(records.values()),
            rounds=1,
            repair_seconds=time.perf_counter() - begun,
            record_seconds=0.0,
        )

    def beat(self, where: str) -> None:
        """Note where the program says it is."""
        self.beats.append(where)

    def set_last_words(self, file: int | None, line: str = "") -> None:
        """Do nothing: there is no guard."""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do nothing: there is no step limit."""
        yield

    def on_repair_phase(self, call: Callable[[str, int], None] | None) -> None:
        """Call this at each phase of a repair."""
        self._on_phase = call

    def _say(self, phase: str) -> None:
        if self._on_phase is not None:
            self._on_phase(phase, 1)

    def _post(
        self,
        mine: Tensor,
        target: Tensor,
        combine: Callable[[Sequence[Tensor]], Tensor],
        among: Sequence[int] | None = None,
    ) -> "_Work":
        group = self.group if among is None else tuple(r for r in among if r in self.members)
        # Ranks share all their groups' operations or none here, so one count does for all.
        key = (self.epoch, group, len(self._works))
        self._world._bring(key, self.rank, mine)  # noqa: SLF001
        work = _Work(self._world, self, key, target.detach(), combine)
        self._works.append(work)
        return work


class _Work:
    """A collective on its way. It is carried out when somebody waits for it."""

    def __init__(
        self,
        world: ThreadWorld,
        rank: RankThread,
        key: tuple[int, tuple[int, ...], int],
        target: Tensor,
        combine: Callable[[Sequence[Tensor]], Tensor],
    ) -> None:
        self._world = world
        self.epoch = key[0]
        self._rank = rank.rank
        self._group = key[1]
        self._key = key
        self._target = target
        self._combine = combine
        self._outcome = Outcome.PENDING

    def done(self) -> bool:
        """Whether it has ended."""
        return self._outcome is not Outcome.PENDING

    def wait(self) -> Outcome:
        """Block until it has ended; return how it ended on this rank."""
        if self.done():
            return self._outcome
        world, epoch = self._world, self.epoch

        def ready(brought: Mapping[int, Tensor]) -> bool:
            missing = set(self._group) - brought.keys()
            hopeless = epoch in world._revoked or not missing <= world._living  # noqa: SLF001
            return not missing or hopeless

        def close(brought: Mapping[int, Tensor]) -> Tensor | None:
            if brought.keys() < set(self._group):
                return None
            return self._combine([brought[rank] for rank in self._group])

        result = world._await(self._key, ready, close)  # noqa: SLF001
        if result is None or world._lost(self._rank, epoch, self._key[2]):  # noqa: SLF001
            self._outcome = Outcome.FAILED
            # As a real one may: whoever reads it without looking at the outcome is found out.
            self._target.fill_(float("nan") if self._target.is_floating_point() else -77)
        else:
            self._outcome = Outcome.OK
            self._target.copy_(result)
        return self._outcome


class ThreadInjector(FailureInjector):
    """Kills a rank's thread where the schedule says so."""

    def __init__(self, schedule: Iterable[Kill], rank: RankThread, log: EventLog) -> None:
        super().__init__(schedule, rank.replica, rank.position, log)
        self._rank = rank

    def _die(self, line: InjectLine) -> None:
        self._log.write(line)
        self._log.close()
        self._rank.die()

"""The `ulfm` backend of `torch.distributed` (extra `ulfm-core[torch]`).

Importing this module registers the backend; `ulfm_core` itself never imports torch.

```python
import torch.distributed as dist
from ulfm_core.torch_backend import default_group

dist.init_process_group("ulfm")        # under ulfmrun, or mpirun with RANK, WORLD_SIZE, ... set
group = default_group()
model = DistributedDataParallel(module)
while step < steps:
    try:
        model(batch(step)).sum().backward()
        ok = True
    except RuntimeError:               # a peer died; other ranks may not have noticed
        ok = False
    if group.consensus(ok).passed:     # the same answer on every survivor
        optimizer.step()
        step += 1
    else:                              # repaired: rank and size are the survivors' now
        model = DistributedDataParallel(module)   # DDP is of no use after a failed backward
    optimizer.zero_grad()
```

What torch calls a rank is an index among the living, in the order of the initial ranks. A repair
renumbers the ranks of all groups of this backend, which go on with those of their ranks that live.

The store that `init_process_group` asks for is used to meet, and never again by this backend: the
death of the rank that hosts it (rank 0) is a death like any other. What itself asks the store later
is lost with it, such as a further `new_group` of another backend, or `monitored_barrier`.

Reductions take float64/32/16, bfloat16, int64/32/16/8 and uint8, the others every dtype; tensors
must be contiguous. All-reduce, broadcast, all-gather and barrier are native. Reduce, gather,
scatter and reduce-scatter are built from these: right, but moving more than they would have to (a
reduce-scatter as much as an all-reduce). There is no send, receive or all-to-all.
"""

# torch's stubs describe the collectives in all the ways they may be called; torch itself uses one.
# mypy: disable-error-code="override, assignment"

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ulfm_core import leaving
from ulfm_core.errors import PeerLostError, UsageError
from ulfm_core.joining import init
from ulfm_core.work import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ulfm_core.subgroup import Subgroup
    from ulfm_core.work import Work
    from ulfm_core.world import Consensus, Operation, Repair, World

__all__ = ["ProcessGroupUlfm", "TorchWork", "default_group"]

NAME = "ulfm"

_OPERATIONS: tuple[tuple[Any, Operation], ...] = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "sum"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.PRODUCT, "prod"),
)


class TorchWork(dist.Work):
    """Collectives on their way, as torch waits for them.

    Attributes:
        epoch: the world epoch they were submitted in.
    """

    def __init__(
        self,
        works: Sequence[Work],
        tensors: list[torch.Tensor],
        finish: Callable[[], None] | None = None,
    ) -> None:
        """Follow `works`, which end in order.

        `finish` is run on the communication thread if all succeeded.
        """
        super().__init__()
        self.epoch = works[-1].epoch
        self._works = works
        self._tensors = tensors
        self._finish = finish
        self._finish_error: Exception | None = None
        self._finished = threading.Event()
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if finish is None:
            self._finished.set()
        else:
            works[-1].when_done(self._run_finish)

    @property
    def outcome(self) -> Outcome:
        """How they ended here. Other ranks may see another outcome: only a consensus is common."""
        if not self.is_completed():
            return Outcome.PENDING
        outcomes = [work.outcome for work in self._works]
        return next((outcome for outcome in outcomes if outcome is not Outcome.OK), Outcome.OK)

    def is_completed(self) -> bool:
        """Whether all have ended, one way or another."""
        return self._works[-1].done() and self._finished.is_set()

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return self.outcome is Outcome.OK and self._finish_error is None

    def exception(self) -> Exception | None:
        """What `wait` would raise, or None."""
        if not self.is_completed():
            return None
        try:
            self._result()
        except Exception as error:  # noqa: BLE001 - handed on, whatever it is
            return error
        return None

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002 - torch's signature
        """Block until all have ended; the results are then in place for every CUDA stream.

        `timeout` is not looked at: this process ends, with a line that says why, when an operation
        takes longer than the time-out of the `init_process_group` that joined the world.

        Raises:
            PeerLostError: a peer died. The group needs a `consensus` to go on.
            UlfmError: something else went wrong (a bug or a misuse).
        """
        self._works[-1].wait()
        self._finished.wait()
        self._result()
        return True

    synchronize = wait

    def result(self) -> list[torch.Tensor]:
        """Block, and return the tensors that were written."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the tensors, completed by the communication thread.

        Its error is a RuntimeError.
        """
        if self._future is None:
            devices: list[int | str | torch.device] = list(
                {tensor.device for tensor in self._tensors if tensor.is_cuda}
            )
            done: torch.futures.Future[None] = torch.futures.Future(devices=devices)
            # What a callback raises is an error to C++ too (DDP's reducer), unlike what is given
            # to Future.set_exception.
            self._future = done.then(lambda _: self._tensors_when_finished())
            self._works[-1].when_done(lambda: done.set_result(None))
        return self._future

    def _tensors_when_finished(self) -> list[torch.Tensor]:
        self._finished.wait()
        self._result()
        return self._tensors

    def _result(self) -> None:
        for work in self._works:
            try:
                work.result()
            except PeerLostError as error:
                message = (
                    f"a peer died (epoch {error.epoch}: {error}); call consensus() of the process "
                    "group on every survivor to repair it"
                )
                raise PeerLostError(message, epoch=error.epoch) from None
        if self._finish_error is not None:
            raise self._finish_error

    def _run_finish(self) -> None:
        try:
            if self._finish is not None and all(work.outcome is Outcome.OK for work in self._works):
                self._finish()
                for device in {tensor.device for tensor in self._tensors if tensor.is_cuda}:
                    torch.cuda.current_stream(device).synchronize()
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            self._finish_error = error
        finally:
            self._finish = None
            self._finished.set()


class ProcessGroupUlfm(dist.ProcessGroup):
    """A torch process group over ranks of the job, living on across failures.

    Made by `init_process_group("ulfm")` and `new_group(backend="ulfm")`.

    Attributes:
        world: the world it is part of.
    """

    # Looked up by torch where it has native backends to offer.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        """Join the given initial ranks of `world`, as the others of them do. Sends no messages."""
        ranks = tuple(ranks)
        super().__init__(ranks.index(world.rank), len(ranks))  # type: ignore[call-arg]
        self.world = world
        self._name = ""
        self._description = ""
        # The world's own group is the one that can agree before each reduction, and that a
        # CUDA-aware MPI can reduce.
        whole = world.replica_size == 1 and ranks == world.members
        self._among: Subgroup | None = None if whole else world.subgroup(ranks)

    def __repr__(self) -> str:
        return f"<ProcessGroupUlfm of ranks {list(self.members)}, epoch {self.world.epoch}>"

    # -------------------------------------------------------------------------------- who is there

    @property
    def members(self) -> tuple[int, ...]:
        """Initial ranks of the living, as last agreed."""
        return self.world.members if self._among is None else self._among.members

    def rank(self) -> int:
        """Return this process's index among the living."""
        return self.members.index(self.world.rank)

    def size(self) -> int:
        """Return how many live."""
        return len(self.members)

    def name(self) -> str:
        """Return the name of the backend."""
        return NAME

    # By these names C++ asks for the same.
    getRank = rank  # noqa: N815
    getSize = size  # noqa: N815
    getBackendName = name  # noqa: N815

    # torch looks for a group's name in its native backend, and a Python subclass has none.
    @property
    def group_name(self) -> str:
        """The name that torch gave it."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        """The description that torch gave it."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def _device_types(self) -> list[torch.device]:
        cuda = [torch.device("cuda")] if torch.cuda.is_available() else []
        return [torch.device("cpu"), *cuda]

    def _get_backend(self, device: torch.device) -> ProcessGroupUlfm:  # noqa: ARG002
        return self

    def shutdown(self) -> None:
        """Do nothing: the world outlives its groups, and `ulfm_core.leave` ends it."""

    abort = shutdown

    # ------------------------------------------------------------------------------ detect, repair

    def consensus(  # as World.consensus
        self,
        flag: bool = True,  # noqa: FBT001, FBT002
        *,
        record: Sequence[int] = (),
    ) -> Consensus:
        """Agree whether all are alive and all flags true; if not, repair (ReCoVer, Algorithm 3).

        Collective over all living ranks of the job, not only over this group. When it has not
        passed, this and all other groups of the backend go on with their survivors, renumbered.

        Raises:
            ReplicaCondemnedError: a peer of this rank's own replica died (`replica_size` over 1).
        """
        outcome = self.world.consensus(flag, record=record)
        if outcome.repair is not None:
            _renumber()
        return outcome

    def repair(self, record: Sequence[int] = ()) -> Repair:
        """Repair without agreeing first, when all survivors know that they must.

        Otherwise as `consensus`.
        """
        outcome = self.world.repair(record)
        _renumber()
        return outcome

    # --------------------------------------------------------------------------------- collectives

    def allreduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        """All-reduce in place, bit-identical on every rank."""
        return self._reduce_in_place(_listed(tensors), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> TorchWork:
        """All-reduce each tensor in place."""
        return self._reduce_in_place(_listed(tensors), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> TorchWork:
        """Broadcast in place from the group rank `opts.rootRank`."""
        tensors = _listed(tensors)
        root = _root(opts)
        works = [self.world.broadcast(_bytes(t), root=root, among=self._among) for t in tensors]
        return TorchWork(works, tensors)

    def all_gather_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        opts: Any = None,  # noqa: ARG002
    ) -> TorchWork:
        """Gather everyone's input, one after the other, in the output."""
        return TorchWork([self._gather(output, given)], [output])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:  # noqa: ARG002
        """Do `all_gather_single` for each pair."""
        pairs = zip(outputs, inputs, strict=True)
        return TorchWork([self._gather(output, given) for output, given in pairs], list(outputs))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:  # noqa: ARG002
        """Gather everyone's input in a list of outputs."""
        (targets,), (given,) = _nested(outputs), _listed(inputs)
        return self._gather_into(targets, given)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        """Gather everyone's input in the root's list of outputs (by an all-gather)."""
        (given,) = _listed(inputs)
        targets = _nested(outputs)[0] if self.rank() == _root(opts) else []
        return self._gather_into(targets, given)

    def reduce(self, tensors: Any, opts: Any = None) -> TorchWork:
        """Reduce to the root's tensor (by an all-reduce)."""
        tensors = _listed(tensors)
        scratch = [torch.empty_like(tensor) for tensor in tensors]
        works, average = self._reductions(tensors, scratch, opts)
        targets = tensors if self.rank() == _root(opts) else []

        def finish() -> None:
            average()
            for target, reduced in zip(targets, scratch, strict=False):
                target.detach().copy_(reduced)

        return TorchWork(works, tensors, finish)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        """Deal the root's list of inputs to the ranks (by a broadcast of all of them)."""
        (target,), root, rank = _listed(outputs), _root(opts), self.rank()
        scratch = target.new_empty((self.size(), *target.shape))
        if rank == root:
            torch.stack(_nested(inputs)[0], out=scratch)
        work = self.world.broadcast(_bytes(scratch), root=root, among=self._among)
        return TorchWork([work], [target], lambda: _copy(target, scratch[rank]))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> TorchWork:
        """Reduce the lists of inputs, and leave each rank its part (by an all-reduce)."""
        (target,), (parts,) = _listed(outputs), _nested(inputs)
        return self._reduce_part([target], [torch.stack(parts)], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> TorchWork:
        """Reduce the inputs, and leave each rank its part (by an all-reduce)."""
        return self._reduce_part([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = None
    ) -> TorchWork:
        """Do `reduce_scatter_single` for each pair."""
        return self._reduce_part(list(outputs), list(inputs), opts)

    def barrier(self, opts: Any = None) -> TorchWork:  # noqa: ARG002
        """Done when every member has come here."""
        return TorchWork([self.world.barrier(among=self._among)], [])

    # The names before torch 2.13.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _refuse(self, operation: str) -> NoReturn:
        message = f"the ulfm backend has no {operation}: use a gloo or NCCL group for it"
        raise NotImplementedError(message)

    def send(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("send")

    def recv(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("recv")

    def recv_anysource(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("recv_anysource")

    def alltoall(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("alltoall")

    def all_to_all_single(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        self._refuse("all_to_all_single")

    alltoall_base = all_to_all_single

    # ----------------------------------------------------------------------------------------- how

    def _reductions(
        self, sources: list[torch.Tensor], targets: list[torch.Tensor], opts: Any
    ) -> tuple[list[Work], Callable[[], None]]:
        """Submit the reductions; also return what makes averages of the sums, if wanted."""
        operation, averaged = _operation(opts, sources)
        works = [
            self.world.all_reduce(source.detach(), target.detach(), op=operation, among=self._among)
            for source, target in zip(sources, targets, strict=True)
        ]
        size = self.size()

        def average() -> None:
            for target in targets if averaged else ():
                target.detach().div_(size)

        return works, average

    def _reduce_in_place(self, tensors: list[torch.Tensor], opts: Any) -> TorchWork:
        works, average = self._reductions(tensors, tensors, opts)
        return TorchWork(works, tensors, average if _operation(opts, tensors)[1] else None)

    def _reduce_part(
        self, targets: list[torch.Tensor], given: list[torch.Tensor], opts: Any
    ) -> TorchWork:
        size, rank = self.size(), self.rank()
        for target, whole in zip(targets, given, strict=True):
            if whole.numel() != target.numel() * size:
                message = f"{whole.numel()} elements do not make {size} parts of {target.numel()}"
                raise UsageError(message)
        reduced = [torch.empty_like(whole) for whole in given]
        works, average = self._reductions(given, reduced, opts)

        def finish() -> None:
            average()
            for target, whole in zip(targets, reduced, strict=True):
                _copy(target, whole.view(size, -1)[rank])

        return TorchWork(works, targets, finish)

    def _gather(self, output: torch.Tensor, given: torch.Tensor) -> Work:
        return self.world.all_gather(_bytes(given), _bytes(output), among=self._among)

    def _gather_into(self, targets: list[torch.Tensor], given: torch.Tensor) -> TorchWork:
        scratch = given.new_empty((self.size(), *given.shape))

        def finish() -> None:
            for target, gathered in zip(targets, scratch, strict=True):
                _copy(target, gathered)

        if targets and len(targets) != len(scratch):
            message = f"{len(targets)} outputs for {len(scratch)} ranks: give one tensor a rank"
            raise UsageError(message)
        return TorchWork([self._gather(scratch, given)], targets, finish if targets else None)


def default_group() -> ProcessGroupUlfm:
    """Return the default process group.

    Raises:
        UsageError: it is of another backend, or was not initialised.
    """
    group = dist.group.WORLD
    if isinstance(group, ProcessGroupUlfm):
        return group
    message = 'the default process group is not of this backend: call init_process_group("ulfm")'
    raise UsageError(message)


def _create(options: Any, _: Any) -> ProcessGroupUlfm:
    """Make a group. torch calls it for `init_process_group`, and for `new_group` on its members."""
    world = leaving._world or init(wait_limit=options.timeout.total_seconds())  # noqa: SLF001
    rank, size = options.group_rank, options.group_size
    ranks = _initial_ranks(world, list(options.global_ranks_in_group) or list(range(size)))
    if ranks[rank] != world.rank:
        message = (
            f"torch's rank {rank} is rank {world.rank} of the MPI job: pass init_process_group the "
            "rank and world_size of the whole job (ulfmrun without --replica-size does)"
        )
        raise UsageError(message)
    if not options.global_ranks_in_group and size != len(world.members):
        message = f"world_size {size} is not the {len(world.members)} living ranks of the MPI job"
        raise UsageError(message)
    return ProcessGroupUlfm(world, ranks)


def _initial_ranks(world: World, ranks: list[int]) -> list[int]:
    """Translate torch's global ranks.

    Under a default group of another backend they are the job's initial ranks.
    """
    default = dist.group.WORLD
    members = world.members
    if default is not None and not isinstance(default, ProcessGroupUlfm):
        members = tuple(range(world.initial_size))
    beyond = [rank for rank in ranks if rank >= len(members)]
    if beyond:
        message = f"rank {beyond[0]} is not one of the {len(members)} ranks of the MPI job"
        raise UsageError(message)
    return [members[rank] for rank in ranks]


def _renumber() -> None:
    """Tell torch the new numbers: for every group it keeps a table of global to group ranks."""
    default = dist.group.WORLD
    if not isinstance(default, ProcessGroupUlfm):
        return  # global ranks are another backend's, and stay
    number = {member: rank for rank, member in enumerate(default.members)}
    for group, table in c10d._world.pg_group_ranks.items():  # noqa: SLF001 - torch offers no other way
        if isinstance(group, ProcessGroupUlfm):
            table.clear()
            table.update({number[member]: rank for rank, member in enumerate(group.members)})


def _operation(opts: Any, tensors: list[torch.Tensor]) -> tuple[Operation, bool]:
    """Return how to combine, and whether to divide by the number of ranks afterwards."""
    wanted = getattr(opts, "reduceOp", opts)
    if wanted is None:
        wanted = dist.ReduceOp.SUM
    for known, operation in _OPERATIONS:
        if wanted == known:
            averaged = known == dist.ReduceOp.AVG
            for tensor in tensors:
                if averaged and not tensor.dtype.is_floating_point:
                    message = f"AVG needs floating-point tensors, not {tensor.dtype}"
                    raise TypeError(message)
                if tensor.dtype is torch.bool and operation == "sum":
                    message = "bool tensors have no SUM: use MAX (or) or MIN (and)"
                    raise TypeError(message)
            return operation, averaged
    name = getattr(getattr(wanted, "op", wanted), "name", wanted)
    message = f"the ulfm backend has no reduction {name}: use SUM, AVG, MIN, MAX or PRODUCT"
    raise NotImplementedError(message)


def _root(opts: Any) -> int:
    return int(getattr(opts, "rootRank", 0))


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _nested(tensors: Any) -> list[list[torch.Tensor]]:
    tensors = list(tensors)
    return [tensors] if isinstance(tensors[0], torch.Tensor) else [list(inner) for inner in tensors]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View the memory of a tensor of any dtype."""
    if not tensor.is_contiguous():
        message = f"a tensor of shape {tuple(tensor.shape)} is not contiguous: pass .contiguous()"
        raise UsageError(message)
    return tensor.detach().view(-1).view(torch.uint8)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.detach().copy_(source.view(target.shape))


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])

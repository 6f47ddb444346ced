"""Jacobi's iteration for the heat in a plate, on ranks that may die. mpi4py, numpy and ulfm_core.

    ulfmrun -n 6 jacobi.py --kill 2:40 --kill 0:90

loses rank 2 in iteration 40 and rank 0 in iteration 90, by a real SIGKILL each, and finishes with
the answer of a run without failures, bit by bit.

The rows of the plate are divided among the living ranks. Every few iterations each rank keeps a
copy of its rows, and of those of its left neighbour; the copies count once a consensus has passed.
When ranks have died, all go back to the last copies that count. The rows of a dead rank come from
its right neighbour, and the plate is divided anew among those who are left. Going back is needed
even though most rows are unharmed: neighbours of the dead may be an iteration ahead of others, and
rows of different iterations make no plate. It costs a few iterations and never changes the answer,
because an iteration depends on nothing but the plate before it. If a rank and its right neighbour
die at once, their copies are gone and the plate is computed again from the start.
"""

import argparse
import os
import signal
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

import ulfm_core

Plate = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """What a rank keeps: its rows and its left neighbour's, after an iteration."""

    iteration: int
    ranks: tuple[int, ...]  # among whom the plate was divided then
    held: dict[int, Plate] = field(repr=False)  # the rows of a rank


def start(size: int) -> Plate:
    """Return the plate before the first iteration, edges included: the upper one is hot."""
    plate = np.zeros((size + 2, size + 2))
    plate[0] = 100 * np.sin(np.linspace(0, np.pi, size + 2))
    return plate


def part(size: int, ranks: tuple[int, ...], rank: int) -> slice:
    """Return which inner rows are a rank's."""
    index = ranks.index(rank)
    return slice(1 + size * index // len(ranks), 1 + size * (index + 1) // len(ranks))


def sweep(block: Plate) -> None:
    """Replace each inner point by the mean of its four neighbours."""
    around = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    block[1:-1, 1:-1] = around / 4


def exchange_edges(comm: MPI.Comm, block: Plate) -> None:
    """Fetch the rows next to this rank's from its neighbours.

    The tag is said because mpi4py would take any, also those of `all_reduce`.
    """
    above = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    comm.Sendrecv(block[1], dest=above, recvbuf=block[-1], source=below, recvtag=0)
    comm.Sendrecv(block[-2], dest=below, recvbuf=block[0], source=above, recvtag=0)


def copy(world: ulfm_core.World, block: Plate, iteration: int) -> Copies:
    """Keep this rank's rows and fetch the left neighbour's."""
    comm, ranks = world.comm(), world.members
    own = block[1:-1].copy()
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    rows = part(block.shape[1] - 2, ranks, ranks[left])
    theirs = np.empty((rows.stop - rows.start, block.shape[1]))
    comm.Sendrecv(own, dest=right, recvbuf=theirs, source=left, recvtag=0)
    return Copies(iteration=iteration, ranks=ranks, held={ranks[left]: theirs, world.rank: own})


def assemble(world: ulfm_core.World, copies: Copies, size: int) -> Plate | None:
    """Put the plate together again from copies; None if rows are lost. Collective.

    The whole plate on every rank is simple. If it is too large for one, send rows to their new
    owners instead: who holds and who needs what is known to all from the same few numbers.
    """
    plate = np.zeros_like(start(size))
    for index, rank in enumerate(copies.ranks):
        holder = rank if rank in world.members else copies.ranks[(index + 1) % len(copies.ranks)]
        if holder not in world.members:
            return None
        if holder == world.rank:
            plate[part(size, copies.ranks, rank)] = copies.held[rank]
    world.all_reduce(plate).result()  # each row has one holder, the others add nothing
    edges = start(size)
    plate[0], plate[-1], plate[:, 0], plate[:, -1] = edges[0], edges[-1], edges[:, 0], edges[:, -1]
    return plate


def solve(
    world: ulfm_core.World, size: int, iterations: int, every: int, kills: set[tuple[int, int]]
) -> Plate:
    """Iterate to the end, whoever dies, and return the plate."""
    kept: Copies | None = None  # the last copies that count
    block: Plate | None = None  # this rank's rows and one on either side; None: to be restored
    iteration = 0
    while True:
        answer = fresh = None
        try:
            if block is None or iteration == iterations:
                plate = assemble(world, kept, size) if kept else None
                iteration = kept.iteration if kept and plate is not None else 0
                plate = start(size) if plate is None else plate
                rows = part(size, world.members, world.rank)
                block = plate[rows.start - 1 : rows.stop + 1].copy()
                answer = plate if iteration == iterations else None
            for _ in range(min(every, iterations - iteration)):
                world.beat(f"iteration {iteration}")
                if (world.rank, iteration) in kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                exchange_edges(world.comm(), block)
                sweep(block)
                iteration += 1
            fresh = copy(world, block, iteration)
        except (MPI.Exception, ulfm_core.PeerLostError):
            world.quiesce()  # or ranks that wait for this one would never hear of the failure
        consensus = world.consensus(fresh is not None)
        if consensus.repair is not None:
            block = None
            if world.rank == world.members[0]:
                print(
                    f"lost ranks {list(consensus.repair.failed)} near iteration {iteration}; going"
                    f" on from {kept.iteration if kept else 0} with {list(world.members)}"
                )
            continue
        kept = fresh
        if answer is not None:
            return answer


def main() -> None:
    """Solve, and compare with a run that has no ranks to lose."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--size", type=int, default=120, help="inner rows and columns")
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--every", type=int, default=10, help="iterations between copies")
    parser.add_argument("--kill", action="append", default=[], metavar="RANK:ITERATION")
    options = parser.parse_args()
    kills = {(int(rank), int(when)) for rank, _, when in (k.partition(":") for k in options.kill)}

    world = ulfm_core.init(communicators=True)
    if options.size < world.initial_size:
        parser.error(f"--size {options.size}: give each of {world.initial_size} ranks a row")
    world.set_step_limit(60)  # a rank that hangs is ended, and then it is one more that died
    plate = solve(world, options.size, options.iterations, options.every, kills)
    if world.rank == world.members[0]:
        alone = start(options.size)
        for _ in range(options.iterations):
            sweep(alone)
        same = "the same bits as" if np.array_equal(plate, alone) else "NOT the result of"
        print(f"{len(world.members)} of {world.initial_size} ranks: {same} a run without failures")
        if not np.array_equal(plate, alone):
            raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Reordering after a failure: spare-planner against networkx and OR-tools on the same instances.

    python benchmarks/reorder.py --out bench-output        (or: nox -s bench_planner)

Groups fail one at a time, in random order, until a type is lost. spare-planner reorders after every
failure, warm from the last order. Every so many of the failures that need a reordering, the other
two solve the same instance right after it, from scratch: the same graph of types and groups, one
stack more until it works, and the cheapest flow. They have to agree on stacks and moves. Building
the graph is part of their time; what spare-planner keeps between failures is its point.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
from ortools.graph.python import min_cost_flow
from tables import flags, markdown, save

from spare_planner import Stacks, place
from spare_planner.theory import endurable_failures, patches_per_failure

SHAPES = ((200, 9), (600, 10), (1000, 9), (1000, 20))
LARGE = (100_000, 12)
SMOKE_SHAPES = ((60, 5),)

Answer = tuple[int, int]
"""Stacks and moves."""
Orders = Mapping[int, Sequence[int]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all shapes and write the table."""
    parser = flags(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs to a wipe-out of each shape")
    parser.add_argument("--sample", type=int, default=6, help="instances of a run for the others")
    options = parser.parse_args(arguments)
    shapes, runs = (SMOKE_SHAPES, 1) if options.smoke else (SHAPES, options.runs)
    rows = []
    for groups, redundancy in shapes:
        rows += _measure(groups, redundancy, runs=runs, sample=options.sample)
    if not options.smoke:
        rows += _measure(*LARGE, runs=1, sample=0)
    save(options.out, "reorder", rows, _table(rows))
    return 0


def _measure(groups: int, redundancy: int, *, runs: int, sample: int) -> list[dict[str, Any]]:
    """Return one row for all failures, and one for each solver for the sampled ones."""
    every: list[float] = []  # seconds of all failures
    turns: dict[str, list[float]] = {}
    for seed in range(runs):
        _run(groups, redundancy, seed=seed, sample=sample, every=every, turns=turns)
    shape = {"groups": groups, "redundancy": redundancy}
    rows = [{**shape, "what": "every failure", "solver": "spare-planner", **_figures(every)}]
    rows += [
        {**shape, "what": "reordered, sampled", "solver": name, **_figures(seconds)}
        for name, seconds in turns.items()
    ]
    return rows


def _figures(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "instances": len(seconds),
        "median": statistics.median(seconds),
        "p99": float(np.quantile(seconds, 0.99)),
        "worst": max(seconds),
    }


def _run(
    groups: int,
    redundancy: int,
    *,
    seed: int,
    sample: int,
    every: list[float],
    turns: dict[str, list[float]],
) -> None:
    """Kill groups until the wipe-out, and time who reorders the others."""
    stacks = Stacks(place(groups, redundancy))
    expected = endurable_failures(groups, redundancy) * patches_per_failure(groups, redundancy)
    stride = max(1, round(float(expected) / sample)) if sample else 0
    reordered = 0
    for victim in random.Random(seed).sample(range(groups), groups):
        depth = stacks.depth
        orders = {g: stacks.order(g) for g in stacks.living if g != victim} if sample else {}
        begun = time.perf_counter()
        change = stacks.fail([victim])
        every.append(time.perf_counter() - begun)
        if change.wiped_out:
            return
        reordered += not change.covered
        if not sample or change.covered or reordered % stride:
            continue
        turns.setdefault("spare-planner", []).append(every[-1])
        for name, solve in (("OR-tools", _by_ortools), ("networkx", _by_networkx)):
            begun = time.perf_counter()
            found = _fewest(groups, orders, depth, solve)
            turns.setdefault(name, []).append(time.perf_counter() - begun)
            if found != (change.stacks, change.moves):
                raise AssertionError(
                    f"{name} finds {found} stacks and moves,"
                    f" spare-planner {change.stacks, change.moves}"
                )


def _fewest(
    groups: int, orders: Orders, depth: int, solve: Callable[[int, Orders, int], int | None]
) -> Answer:
    """Return the smallest depth at which there is a flow, and its cost."""
    while True:
        moves = solve(groups, orders, depth)
        if moves is not None:
            return depth, moves
        depth += 1


def _by_ortools(groups: int, orders: Orders, depth: int) -> int | None:
    """Return the moves of the cheapest flow; None if some type cannot be supplied."""
    members = np.fromiter(orders, dtype=np.int32)
    hosted = np.array(list(orders.values()), dtype=np.int32)
    redundancy = hosted.shape[1]
    source, sink = groups + len(members), groups + len(members) + 1
    member = np.arange(groups, groups + len(members), dtype=np.int32)
    types = np.arange(groups, dtype=np.int32)
    tails = np.concatenate([np.full(groups, source), hosted.ravel(), member])
    heads = np.concatenate([types, np.repeat(member, redundancy), np.full(len(members), sink)])
    capacities = np.concatenate([np.ones(groups + hosted.size), np.full(len(members), depth)])
    moved = np.tile(np.arange(redundancy) >= depth, len(members))
    costs = np.concatenate([np.zeros(groups), moved, np.zeros(len(members))])
    flow = min_cost_flow.SimpleMinCostFlow()
    flow.add_arcs_with_capacity_and_unit_cost(
        tails.astype(np.int32), heads.astype(np.int32), capacities.astype(int), costs.astype(int)
    )
    flow.set_nodes_supplies(np.array([source, sink], dtype=np.int32), np.array([groups, -groups]))
    return int(flow.optimal_cost()) if flow.solve() == flow.OPTIMAL else None


def _by_networkx(groups: int, orders: Orders, depth: int) -> int | None:
    """Return the moves of the cheapest flow; None if some type cannot be supplied."""
    graph: nx.DiGraph[Any] = nx.DiGraph()
    for t in range(groups):
        graph.add_node(t, demand=-1)
    graph.add_node("sink", demand=groups)
    for group, order in orders.items():
        graph.add_edge(("group", group), "sink", capacity=depth)
        for position, t in enumerate(order):
            graph.add_edge(t, ("group", group), capacity=1, weight=int(position >= depth))
    try:
        return int(nx.network_simplex(graph)[0])
    except nx.NetworkXUnfeasible:
        return None


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = ["groups", "redundancy", "failures", "solver", "instances"]
    heads += ["median (ms)", "p99 (ms)", "worst (ms)"]
    cells = [
        [str(row[key]) for key in ("groups", "redundancy", "what", "solver", "instances")]
        + [f"{1000 * row[key]:.3f}" for key in ("median", "p99", "worst")]
        for row in rows
    ]
    return markdown(heads, cells)


if __name__ == "__main__":
    sys.exit(main())

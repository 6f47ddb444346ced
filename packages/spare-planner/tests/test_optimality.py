"""The fewest stacks and moves, against two oracles that share nothing with the package.

Both oracles know only the order before a failure, who is left, and the paper's definitions.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import networkx as nx
import numpy as np
import pytest

from spare_planner import Placement, Reordering, Stacks, place

Orders = Mapping[int, Sequence[int]]
"""Surviving group -> all types it hosts, in the order before the failure."""

Oracle = Callable[[int, Orders, int], tuple[int, int] | None]


def exhaustive(types: int, orders: Orders, depth: int) -> tuple[int, int] | None:
    """Try every choice of a host for every type; return the stacks and moves, None on a wipe-out.

    Only for a few types: the number of choices is a power of the redundancy.
    """
    hosts = [[group for group in orders if t in orders[group]] for t in range(types)]
    best: tuple[int, int] | None = None
    for chosen in itertools.product(*hosts):
        stacks = max(depth, *(chosen.count(group) for group in set(chosen)))
        moves = sum(t not in orders[group][:stacks] for t, group in enumerate(chosen))
        if best is None or (stacks, moves) < best:
            best = stacks, moves
    return best


def by_flow(types: int, orders: Orders, depth: int) -> tuple[int, int] | None:
    """Match types to stack positions with networkx; None on a wipe-out."""
    redundancy = len(next(iter(orders.values()), ()))
    for stacks in range(depth, redundancy + 1):
        graph: nx.DiGraph[str] = nx.DiGraph()
        for t in range(types):
            graph.add_edge("source", f"type {t}", capacity=1, weight=0)
        for group, order in orders.items():
            for position in range(stacks):
                slot = f"{group} at {position}"
                graph.add_edge(slot, "sink", capacity=1, weight=0)
                for t in order:
                    weight = 0 if order[position] == t else 1
                    graph.add_edge(f"type {t}", slot, capacity=1, weight=weight)
        if nx.maximum_flow_value(graph, "source", "sink") == types:
            flow = nx.max_flow_min_cost(graph, "source", "sink")
            return stacks, int(nx.cost_of_flow(graph, flow))
    return None


def check(stacks: Stacks, orders: Orders, change: Reordering) -> None:
    """What holds after a failure that was no wipe-out, whatever the oracle says of numbers."""
    placement = stacks.placement
    assert set(change.order) == set(stacks.living) == set(orders)
    fronts = {group: set(order[: change.stacks]) for group, order in change.order.items()}
    for group, order in change.order.items():
        assert sorted(order) == sorted(placement.hosted(group))
    for t, group in enumerate(stacks.suppliers):
        assert t in fronts[group]
    supplied = Counter(stacks.suppliers)
    assert [supplied[group] for group in range(placement.groups)] == stacks._orders.assignment.load
    assert {len(stacks._orders.front[group]) for group in stacks.living} == {change.stacks}
    moved = [
        (t, group)
        for t, group in enumerate(stacks.suppliers)
        if t not in orders[group][: change.stacks]
    ]
    assert len(moved) == change.moves
    kept = [t for t, group in enumerate(stacks.suppliers) if (t, group) not in moved]
    for t in kept:
        group = stacks.suppliers[t]
        assert change.order[group].index(t) == orders[group].index(t), "a kept type changed place"


def play(placement: Placement, rng: random.Random, oracle: Oracle) -> Iterator[bool]:
    """Kill groups until the wipe-out; check every failure, and yield whether it changed depth."""
    stacks = Stacks(placement)
    while True:
        depth = stacks.depth
        before = {group: stacks.order(group) for group in stacks.living}
        dead = rng.sample(stacks.living, min(len(before), rng.choice([1, 1, 1, 2, 3])))
        change = stacks.fail(dead)
        orders = {group: order for group, order in before.items() if group not in dead}
        covered = {t for order in orders.values() for t in order[:depth]}
        missing = set(range(placement.groups)) - covered
        assert set(change.uncovered) == missing
        assert change.covered == (not missing)
        expected = oracle(placement.groups, orders, depth) if orders else None
        assert change.wiped_out == (expected is None)
        if expected is None:
            hosted = {t for order in orders.values() for t in order}
            assert set(change.lost) == set(range(placement.groups)) - hosted
            return
        assert (change.stacks, change.moves) == expected
        check(stacks, orders, change)
        yield change.stacks != depth


def in_a_row(groups: int, redundancy: int) -> Placement:
    """Group w hosts w, w + 1, ...: the hosts of many types die together, so stacks get deep."""
    table = (np.arange(groups)[:, None] + np.arange(redundancy)) % groups
    hosts = np.sort((np.arange(groups)[:, None] - np.arange(redundancy)) % groups, axis=1)
    return Placement(
        groups=groups,
        redundancy=redundancy,
        offsets=tuple(range(redundancy)),
        construction="in a row",
        table=table.astype(np.int32),
        hosts=hosts.astype(np.int32),
    )


def any_placement(rng: random.Random, groups: int, redundancy: int) -> Placement:
    construction = rng.choice([None, "random", "in a row"])
    if construction == "in a row":
        return in_a_row(groups, redundancy)
    return place(groups, redundancy, construction=construction, seed=rng.randrange(1000))


def count(oracle: Oracle, shapes: list[tuple[int, int]], *, wanted: int, seed: int) -> None:
    """Check that many failures over all shapes, and that they were not all of the easy kind."""
    rng = random.Random(seed)
    seen = deeper = 0
    while seen < wanted:
        groups, redundancy = rng.choice(shapes)
        placement = any_placement(rng, groups, redundancy)
        for deepened in play(placement, rng, oracle):
            seen += 1
            deeper += deepened
    assert deeper > wanted / 20


def test_few_groups_against_all_choices() -> None:
    shapes = [(1, 1), (2, 2), (4, 2), (5, 3), (6, 3), (7, 3), (8, 3), (6, 4), (5, 5)]
    count(exhaustive, shapes, wanted=1500, seed=1)


def test_more_groups_against_networkx() -> None:
    shapes = [(9, 3), (13, 4), (15, 4), (21, 5), (12, 6), (31, 3)]
    count(by_flow, shapes, wanted=1000, seed=2)


def test_fifty_groups_against_networkx() -> None:
    count(by_flow, [(50, 6), (57, 8)], wanted=40, seed=3)


@pytest.mark.parametrize(
    ("oracle", "shapes", "instances", "in_vain"),
    [
        (exhaustive, [(8, 3), (9, 3)], 300, 0),
        (by_flow, [(12, 5), (16, 5), (20, 6)], 250, 6),
    ],
)
def test_returns(
    oracle: Oracle, shapes: list[tuple[int, int]], instances: int, in_vain: int
) -> None:
    """A return makes the stacks as few as they can be, and then the moves."""
    rng = random.Random(4)
    outcomes: Counter[str] = Counter()
    for _ in range(instances):
        groups, redundancy = rng.choice(shapes)
        stacks = Stacks(any_placement(rng, groups, redundancy))
        if stacks.placement.construction == "in a row":  # all around one group, which does it all
            around = {*range(1, redundancy), *range(groups - redundancy + 1, groups)}
            stacks.fail([rng.choice(sorted(set(range(1, groups)) - around))])
            stacks.fail(rng.sample(sorted(around), len(around) - rng.randrange(2)))
        while stacks.depth < 3 and not stacks.lost:
            stacks.fail([rng.choice(stacks.living)])
        if stacks.lost:
            continue
        dead = set(range(groups)) - set(stacks.living)
        returned = rng.sample(sorted(dead), min(len(dead) - 1, rng.choice([1, 1, 1, 2, 4])))
        orders = {group: stacks.order(group) for group in stacks.living}
        orders |= {group: stacks.placement.hosted(group) for group in returned}
        before = stacks.depth
        change = stacks.rejoin(returned)
        assert (change.stacks, change.moves) == oracle(groups, orders, 1)
        check(stacks, orders, change)
        outcomes["fewer" if change.stacks < before else "as many"] += 1  # tried in vain
    assert outcomes["fewer"] > 20
    assert outcomes["as many"] >= in_vain

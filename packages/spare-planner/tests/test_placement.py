"""Rulers and placements."""

import itertools
from collections import Counter

import numpy as np
import pytest

from spare_planner import CONSTRUCTIONS, Placement, PlacementError, place
from spare_planner.modular import modular_ruler
from spare_planner.rulers import LARGEST, golomb_ruler, is_golomb, is_modular_golomb

# Lengths of the optimal rulers of 1 to 28 marks, OEIS A003022.
LENGTHS = [0, 1, 3, 6, 11, 17, 25, 34, 44, 55, 72, 85, 106, 127, 151, 177, 199, 216, 246, 283]
LENGTHS += [333, 356, 372, 425, 480, 492, 553, 585]

PRIME_POWERS = [2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19]


@pytest.mark.parametrize("marks", range(1, LARGEST + 1))
def test_rulers(marks: int) -> None:
    ruler = golomb_ruler(marks)
    assert len(ruler) == marks
    assert ruler[0] == 0
    assert list(ruler) == sorted(ruler)
    assert is_golomb(ruler)
    assert ruler[-1] == LENGTHS[marks - 1]


@pytest.mark.parametrize("marks", range(2, 10))
def test_no_ruler_is_shorter(marks: int) -> None:
    """Search all rulers one unit shorter, mark by mark."""

    def extend(ruler: list[int], differences: int, limit: int) -> bool:
        if len(ruler) == marks:
            return True
        left = marks - len(ruler) - 1
        # What is left needs at least the differences 1, 2, ..., left.
        for mark in range(ruler[-1] + 1, limit - left * (left + 1) // 2 + 1):
            new = 0
            for other in ruler:
                new |= 1 << (mark - other)
            if not new & differences and extend([*ruler, mark], differences | new, limit):
                return True
        return False

    length = golomb_ruler(marks)[-1]
    assert not extend([0], 0, length - 1)
    assert extend([0], 0, length)


@pytest.mark.parametrize("q", PRIME_POWERS)
def test_singer(q: int) -> None:
    modulus = q * q + q + 1
    full = modular_ruler("singer", modulus, q + 1)
    assert full is not None
    assert is_modular_golomb(full, modulus)
    # A perfect difference set: every difference appears.
    assert len({(a - b) % modulus for a in full for b in full}) == modulus
    assert modular_ruler("singer", modulus, q + 2) is None
    assert modular_ruler("singer", modulus + 1, q) is None


@pytest.mark.parametrize("q", PRIME_POWERS)
def test_bose_chowla(q: int) -> None:
    full = modular_ruler("bose-chowla", q * q - 1, q)
    assert full is not None
    assert len(full) == q
    assert is_modular_golomb(full, q * q - 1)
    assert modular_ruler("bose-chowla", q * q - 1, q + 1) is None
    assert modular_ruler("bose-chowla", q * q, 2) is None


@pytest.mark.parametrize("p", [3, 5, 7, 11, 13, 17, 31, 101])
def test_ruzsa(p: int) -> None:
    full = modular_ruler("ruzsa", p * (p - 1), p - 1)
    assert full is not None
    assert len(full) == p - 1
    assert is_modular_golomb(full, p * (p - 1))
    assert modular_ruler("ruzsa", p * (p - 1), p) is None


@pytest.mark.parametrize("q", [6, 10, 12, 15])
def test_no_field_no_ruler(q: int) -> None:
    assert modular_ruler("singer", q * q + q + 1, 3) is None
    assert modular_ruler("bose-chowla", q * q - 1, 3) is None
    assert modular_ruler("ruzsa", q * (q - 1), 3) is None


def check(placement: Placement) -> None:
    groups, redundancy = placement.groups, placement.redundancy
    assert placement.table.shape == placement.hosts.shape == (groups, redundancy)
    assert placement.table.dtype == placement.hosts.dtype == np.int32
    counts = Counter(placement.table.ravel().tolist())
    assert counts == dict.fromkeys(range(groups), redundancy)
    for group in range(groups):
        hosted = placement.hosted(group)
        assert len(set(hosted)) == redundancy
        assert all(group in placement.hosts[t] for t in hosted)
    assert (np.diff(placement.hosts, axis=1) > 0).all()
    # The first stacks alone hold every type.
    assert sorted(placement.table[:, 0].tolist()) == list(range(groups))


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 5, 6, 7, 12, 13, 20, 21, 31])
def test_every_redundancy(groups: int) -> None:
    for redundancy in range(1, groups + 1):
        placement = place(groups, redundancy)
        check(placement)
        assert placement.guaranteed_failures == redundancy - 1
        check(place(groups, redundancy, construction="random", seed=5))


@pytest.mark.parametrize(
    ("groups", "redundancy", "construction"),
    [
        (200, 12, "golomb"),
        (200, 13, "random"),
        (600, 20, "golomb"),
        (600, 21, "random"),
        (1000, 26, "golomb"),
        (7, 3, "golomb"),
        (6, 3, "random"),  # N = 2L: the differences 3 and -3 are the same
        (21, 5, "singer"),
        (57, 8, "singer"),
        (48, 7, "bose-chowla"),
        (110, 10, "ruzsa"),
        (100_000, 28, "golomb"),
    ],
)
def test_which_construction(groups: int, redundancy: int, construction: str) -> None:
    placement = place(groups, redundancy)
    assert placement.construction == construction
    assert bool(placement.offsets) == (construction != "random")


def test_cyclic_placement_is_what_the_offsets_say() -> None:
    placement = place(13, 4)
    assert placement.offsets == (0, 1, 4, 6)
    for group in range(13):
        assert placement.hosted(group) == tuple((group + o) % 13 for o in (0, 1, 4, 6))


@pytest.mark.parametrize(("groups", "redundancy"), [(7, 3), (21, 5), (48, 7), (50, 5), (57, 8)])
def test_two_groups_share_one_type_at_most(groups: int, redundancy: int) -> None:
    placement = place(groups, redundancy)
    hosted = [set(placement.hosted(group)) for group in range(groups)]
    assert max(len(a & b) for a, b in itertools.combinations(hosted, 2)) == 1


def test_seeds() -> None:
    first, again, other = (place(40, 9, construction="random", seed=s) for s in (1, 1, 2))
    assert (first.table == again.table).all()
    assert (first.table != other.table).any()


def test_guaranteed_stacks() -> None:
    placement = place(200, 9)
    assert [placement.guaranteed_stacks(k) for k in range(10)] == [1, 2, 2, 2, 2, 3, 3, 5, 9, None]


@pytest.mark.parametrize(
    ("groups", "redundancy", "run"),
    [(13, 4, 6), (7, 3, 3), (600, 8, 34), (5, 1, 0), (6, 3, None), (21, 5, None), (30, 9, None)],
)
def test_guaranteed_run(groups: int, redundancy: int, run: int | None) -> None:
    placement = place(groups, redundancy)
    if run is not None:  # the length of the ruler
        assert placement.guaranteed_run == run
    hosts = [set(hosts) for hosts in placement.hosts.tolist()]

    def survives(length: int) -> bool:
        runs = [{(first + i) % groups for i in range(length)} for first in range(groups)]
        return not any(of_type <= dead for dead in runs for of_type in hosts)

    assert survives(placement.guaranteed_run)
    assert not survives(placement.guaranteed_run + 1)


def test_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        place(7, 3).table[0, 0] = 1


@pytest.mark.parametrize(
    ("groups", "redundancy", "construction", "seed", "message"),
    [
        (0, 1, None, 0, "groups must be at least 1, got 0"),
        (5, 0, None, 0, "redundancy must be from 1 to 5, the number of groups, got 0"),
        (5, 6, None, 0, "redundancy must be from 1 to 5, the number of groups, got 6"),
        (5, 2, "grid", 0, "no construction is named 'grid': choose from golomb, "),
        (12, 4, "golomb", 0, "no golomb placement of redundancy 4 on 12 groups: it takes 13"),
        (2000, 29, "golomb", 0, "the longest ruler known has 28 marks"),
        (22, 3, "singer", 0, "no singer placement of redundancy 3 on 22 groups"),
        (5, 2, "random", -1, "seed must not be negative, got -1"),
    ],
)
def test_what_cannot_be(
    groups: int, redundancy: int, construction: str | None, seed: int, message: str
) -> None:
    with pytest.raises(PlacementError, match=message) as caught:
        place(groups, redundancy, construction=construction, seed=seed)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("construction", CONSTRUCTIONS)
def test_each_can_be_asked_for(construction: str) -> None:
    groups = {"golomb": 25, "singer": 31, "bose-chowla": 24, "ruzsa": 20, "random": 9}[construction]
    assert place(groups, 4, construction=construction).construction == construction

"""Stacks as groups fail and come back."""

import random
import statistics
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spare_planner import GroupError, Stacks, StaleError, WipeOutError, place


def test_first_failure_takes_a_second_stack() -> None:
    stacks = Stacks(place(13, 4))
    assert (stacks.depth, stacks.survivors) == (1, 13)
    change = stacks.fail([3])
    assert (change.stacks, change.moves, change.uncovered) == (2, 0, (3,))
    assert not change.covered
    assert not change.wiped_out
    assert change.patched == stacks.living == tuple(g for g in range(13) if g != 3)
    assert change.order[2] == (2, 3, 6, 8)
    assert stacks.suppliers[3] == 2


def test_phase_0_changes_nothing() -> None:
    stacks = Stacks(place(13, 4))
    stacks.fail([3])
    before = {group: stacks.order(group) for group in stacks.living}
    change = stacks.fail([5])  # its types 5 and 6 are computed by 4 and 6 as well
    assert change.covered
    assert (change.stacks, change.moves, change.patched) == (2, 0, ())
    assert change.order == {group: order for group, order in before.items() if group != 5}


def test_a_move_takes_the_place_of_a_redundant_copy() -> None:
    stacks = Stacks(place(13, 4))
    stacks.fail([3])
    change = stacks.fail([2])  # type 3 was left to group 2 alone
    assert change.uncovered == (3,)
    assert (change.stacks, change.moves) == (2, 1)
    (patched,) = change.patched
    assert 3 in change.order[patched][:2]
    assert 3 in stacks.placement.hosted(patched)[2:]


def test_wipe_out() -> None:
    stacks = Stacks(place(7, 3))
    change = stacks.fail([0, 4, 6])  # all who host type 0
    assert change.wiped_out
    assert list(change.lost) == list(stacks.lost) == [0]
    for act in (stacks.fail, stacks.rejoin):
        with pytest.raises(WipeOutError, match="wipe-out: no living group hosts shard type 0;"):
            act([1])
    stacks.reset()
    assert not stacks.lost
    assert (stacks.depth, stacks.survivors) == (1, 7)
    assert not stacks.fail([1]).wiped_out


def test_nobody_left() -> None:
    change = Stacks(place(7, 3)).fail(range(7))
    assert change.lost == tuple(range(7))
    assert change.order == {}


def test_nothing_happens() -> None:
    change = Stacks(place(7, 3)).fail([])
    assert change.covered
    assert change.stacks == 1


def test_any_loss_below_the_redundancy_is_survived_within_the_guarantee() -> None:
    rng = random.Random(1)
    for placement in (place(43, 6), place(20, 6), place(9, 6)):
        for _ in range(50):
            stacks = Stacks(placement)
            for failures, group in enumerate(rng.sample(range(placement.groups), 5), start=1):
                change = stacks.fail([group])
                assert not change.wiped_out
                assert change.stacks <= (placement.guaranteed_stacks(failures) or 0)


def test_return_of_everybody_is_a_fresh_start() -> None:
    stacks = Stacks(place(13, 4))
    fresh = {group: stacks.order(group) for group in stacks.living}
    for group in (3, 2, 9):
        stacks.fail([group])
    change = stacks.rejoin([9])
    assert change.stacks == 2
    change = stacks.rejoin([2, 3])
    assert change.stacks == 1
    assert change.order == fresh


def test_order_is_read_before_the_next_change_or_not_at_all() -> None:
    stacks = Stacks(place(13, 4))
    change = stacks.fail([1])
    stacks.fail([2])
    with pytest.raises(StaleError, match="read `order` before they do"):
        _ = change.order


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([7], "there is no group 7: groups are 0 to 6"),
        ([-1], "there is no group -1"),
        ([2, 2], "group 2 is named twice"),
        ([1], "group 1 is not alive"),
    ],
)
def test_wrong_groups(groups: list[int], message: str) -> None:
    stacks = Stacks(place(7, 3))
    stacks.fail([1])
    before = {group: stacks.order(group) for group in stacks.living}
    with pytest.raises(GroupError, match=message) as caught:
        stacks.fail(groups)
    assert isinstance(caught.value, ValueError)
    assert before == {group: stacks.order(group) for group in stacks.living}


def test_wrong_returns_and_questions() -> None:
    stacks = Stacks(place(7, 3))
    stacks.fail([1])
    with pytest.raises(GroupError, match="group 0 is alive already"):
        stacks.rejoin([0])
    with pytest.raises(GroupError, match="group 1 is not alive"):
        stacks.order(1)


def test_from_order_goes_on_where_it_was() -> None:
    rng = random.Random(3)
    placement = place(43, 6)
    stacks = Stacks(placement)
    for _ in range(12):
        change = stacks.fail([rng.choice(stacks.living)])
        assert not change.wiped_out
        again = Stacks.from_order(placement, change.order, change.stacks)
        assert (again.depth, again.living) == (stacks.depth, stacks.living)
        victim = rng.choice(stacks.living)
        ahead = again.fail([victim])
        once_more = Stacks.from_order(placement, change.order, change.stacks).fail([victim])
        assert ahead.order == once_more.order


def test_from_order_is_checked() -> None:
    placement = place(7, 3)
    order = {group: placement.hosted(group) for group in range(7)}
    with pytest.raises(GroupError, match="depth must be from 1 to 3, got 4"):
        Stacks.from_order(placement, order, 4)
    with pytest.raises(GroupError, match=r"group 0 does not host \[1, 2, 3\], in any order"):
        Stacks.from_order(placement, {**order, 0: (1, 2, 3)}, 1)
    with pytest.raises(WipeOutError, match="shard type 0"):
        Stacks.from_order(placement, {**order, 0: (1, 0, 3)}, 1)


@pytest.mark.property
class Life(RuleBasedStateMachine):
    """Groups die and come back; no type is ever counted twice, or missing while a host lives."""

    @initialize(
        shape=st.sampled_from([(1, 1), (2, 2), (6, 3), (7, 3), (12, 5), (21, 5), (40, 6)]),
        seed=st.integers(0, 99),
    )
    def begin(self, shape: tuple[int, int], seed: int) -> None:
        self.placement = place(*shape, seed=seed)
        self.stacks = Stacks(self.placement)
        self.alive = set(range(self.placement.groups))

    @precondition(lambda self: self.alive and not self.stacks.lost)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        dead = data.draw(
            st.lists(st.sampled_from(sorted(self.alive)), min_size=1, max_size=4, unique=True)
        )
        depth = self.stacks.depth
        change = self.stacks.fail(dead)
        self.alive -= set(dead)
        assert change.stacks == self.stacks.depth >= depth
        hosted = {t for group in self.alive for t in self.placement.hosted(group)}
        assert change.wiped_out == (len(hosted) < self.placement.groups)

    @precondition(lambda self: len(self.alive) < self.placement.groups and not self.stacks.lost)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        gone = sorted(set(range(self.placement.groups)) - self.alive)
        back = data.draw(st.lists(st.sampled_from(gone), min_size=1, max_size=4, unique=True))
        depth = self.stacks.depth
        change = self.stacks.rejoin(back)
        self.alive |= set(back)
        assert change.stacks == self.stacks.depth <= depth

    @precondition(lambda self: self.stacks.lost)
    @rule()
    def restart(self) -> None:
        self.stacks.reset()
        self.alive = set(range(self.placement.groups))

    @precondition(lambda self: not self.stacks.lost)
    @invariant()
    def every_type_counts_once(self) -> None:
        stacks, groups = self.stacks, self.placement.groups
        assert set(stacks.living) == self.alive
        counted = [0] * groups
        for group in self.alive:
            order = stacks.order(group)
            assert sorted(order) == sorted(self.placement.hosted(group))
            for t in order[: stacks.depth]:
                counted[t] += stacks.suppliers[t] == group
        assert counted == [1] * groups
        assert stacks.depth >= -(-groups // len(self.alive))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("groups", "redundancy", "construction"),
    [(200, 8, "golomb"), (200, 9, "random"), (600, 10, "golomb"), (273, 17, "singer")],
)
def test_the_lower_bound_is_nearly_always_enough(
    groups: int, redundancy: int, construction: str
) -> None:
    placement = place(groups, redundancy, construction=construction)
    states = deeper = 0
    for seed in range(5):
        stacks = Stacks(placement)
        order = random.Random(seed).sample(range(groups), groups)
        for failures, group in enumerate(order, start=1):
            if stacks.fail([group]).wiped_out:
                break
            bound = -(-groups // (groups - failures))
            assert stacks.depth >= bound
            states += 1
            deeper += stacks.depth > bound
    assert states > 300
    assert deeper <= states / 100


def test_a_hundred_thousand_groups() -> None:
    groups = 100_000
    placement = place(groups, 12)
    assert placement.construction == "golomb"
    stacks = Stacks(placement)
    order = random.Random(1).sample(range(groups), groups)
    seconds = []
    for group in order[:20_000]:
        begun = time.process_time()
        change = stacks.fail([group])
        seconds.append(time.process_time() - begun)
        assert not change.wiped_out
    assert stacks.depth == 2
    assert statistics.median(seconds) < 0.1
    suppliers = stacks.suppliers
    living = set(stacks.living)
    assert all(group in living for group in suppliers)
    assert all(t in stacks.order(group)[:2] for t, group in enumerate(suppliers))
    change = stacks.fail(order[20_000:20_500])  # many at once
    assert not change.wiped_out
    assert change.stacks == 2

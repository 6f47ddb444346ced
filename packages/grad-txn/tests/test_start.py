"""What all ranks agree on before the first step."""

from pathlib import Path

import pytest

from grad_txn.errors import CheckpointError, StartError
from grad_txn.start import Candidate, agree_on_checkpoint, content_of, require_same
from grad_txn.testing.world import RankThread, ThreadWorld

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]


def candidates(*pairs: tuple[int, int]) -> list[Candidate]:
    return [Candidate(step=step, content=content) for step, content in pairs]


def chosen(*seen: list[Candidate], replica_size: int = 1) -> set[Candidate | None]:
    def program(rank: RankThread) -> Candidate | None:
        return agree_on_checkpoint(rank, seen[rank.rank], where="checkpoints")

    world = ThreadWorld(len(seen) // replica_size, replica_size=replica_size)
    return set(world.run(program).values())


def test_the_newest_that_all_see_is_chosen() -> None:
    old, new = (4, 11), (6, 22)
    assert chosen(candidates(old, new), candidates(new, old)) == set(candidates(new))


@pytest.mark.parametrize("replica_size", [1, 2])
def test_a_stale_listing_makes_all_go_back_together(replica_size: int) -> None:
    old, new = (4, 11), (6, 22)
    both = candidates(old, new)
    assert chosen(both, candidates(old), both, both, replica_size=replica_size) == set(
        candidates(old)
    )


def test_another_content_is_another_checkpoint() -> None:
    assert chosen(candidates((4, 11), (6, 22)), candidates((4, 11), (6, 23))) == set(
        candidates((4, 11))
    )


def test_none_anywhere_is_none() -> None:
    assert chosen([], []) == {None}


def test_more_than_are_offered() -> None:
    many = candidates(*((step, step) for step in range(40)))
    assert chosen(many, many[:36]) == {many[35]}


def test_nothing_in_common_is_refused_by_all() -> None:
    with pytest.raises(CheckpointError, match="rank 0 sees step 4; rank 1 sees none") as caught:
        chosen(candidates((4, 11)), [])
    assert "one directory that all hosts share" in str(caught.value)


def test_a_difference_is_named_with_its_ranks() -> None:
    def program(rank: RankThread) -> str:
        facts: dict[str, tuple[object, bool]] = {
            "the seed": (7 if rank.rank < 4 else 8, True),
            "the plan": ("ab", True),
            # differs between positions, which is fine
            "the buckets": ((rank.position, "float32"), False),
        }
        with pytest.raises(StartError) as caught:
            require_same(rank, facts)
        return str(caught.value)

    for rank, told in ThreadWorld(3, replica_size=2).run(program).items():
        assert f"the seed (here {7 if rank < 4 else 8}; ranks 4, 5 differ from the first)" in told
        assert "the plan" not in told
        assert "the buckets" not in told


def test_equal_facts_pass() -> None:
    def program(rank: RankThread) -> None:
        require_same(rank, {"the step": (4, True), "the buckets": (rank.position, False)})

    assert len(ThreadWorld(2, replica_size=2).run(program)) == 4


def test_content_follows_names_sizes_and_what_is_read(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        (folder / "part").mkdir(parents=True)
        (folder / "part" / "data").write_bytes(b"12345")
        (folder / ".metadata").write_bytes(b"shapes")

    def same() -> bool:
        return content_of(one, read=[".metadata"]) == content_of(other, read=[".metadata"])

    assert same()
    (other / ".metadata").write_bytes(b"shapeS")
    assert not same()
    (other / ".metadata").write_bytes(b"shapes")
    assert same()
    (other / "part" / "data").write_bytes(b"1234")
    assert not same()

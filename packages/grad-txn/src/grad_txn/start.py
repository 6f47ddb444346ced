"""One start: what all ranks agree on before the first step.

Each rank has its own flags, its own random seed and its own view of the file system, which may be
an old one. Ranks that go on from different checkpoints would commit different steps together. So
they choose the checkpoint together, and compare what else has to be equal. Nothing is repaired
here: a rank that dies meanwhile ends the set-up.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from grad_txn.communicator import Control, Work
from grad_txn.errors import CheckpointError, DivergenceError, StartError
from ulfm_core import Outcome

__all__ = ["Candidate", "agree_on_checkpoint", "complete", "content_of", "require_same"]

_OFFERED = 8
_NOTHING = -1


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Candidate:
    """A complete checkpoint, as one rank sees it.

    Attributes:
        step: The step it is the state before.
        content: A number for what is in it, of `content_of`.
    """

    step: int
    content: int


def content_of(checkpoint: Path, *, read: Iterable[str]) -> int:
    """Return a number for what a checkpoint's directory holds. Local.

    The names and sizes of all its files count, and the whole content of those that describe the
    rest: the tensors themselves are many, and the first step's comparison of all replicas covers
    what was loaded from them.

    Args:
        checkpoint: The directory.
        read: Names of the files in it that are read.

    Raises:
        OSError: It cannot be read, or is gone by now.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        name = path.relative_to(checkpoint).as_posix()
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        if name in read:
            digest.update(path.read_bytes())
    return _number(digest.digest())


def agree_on_checkpoint(
    control: Control, found: Sequence[Candidate], *, where: str | Path
) -> Candidate | None:
    """Return the newest checkpoint that every rank sees with the same content.

    Collective over the world.

    Args:
        control: The world.
        found: What this rank sees; the newest eight count.
        where: Where it looked, for messages.

    Returns:
        The same on all ranks; None if no rank sees any.

    Raises:
        CheckpointError: Some see checkpoints, and all of them see none in common.
        DivergenceError: A rank died meanwhile.
    """
    offered = sorted(found)[-_OFFERED:]
    own = torch.full((_OFFERED, 2), _NOTHING, dtype=torch.int64)
    for index, one in enumerate(offered):
        own[index] = torch.tensor([one.step, one.content])
    seen = {
        rank: {
            Candidate(step=step, content=content)
            for step, content in zip(row[::2], row[1::2], strict=True)
            if step != _NOTHING
        }
        for rank, row in _from_all(control, own.flatten()).items()
    }
    common = set.intersection(*seen.values())
    if common:
        return max(common)
    if not any(seen.values()):
        return None
    told = "; ".join(
        f"rank {rank} sees " + (", ".join(f"step {one.step}" for one in sorted(some)) or "none")
        for rank, some in list(seen.items())[:4]
    )
    raise CheckpointError(
        f"no checkpoint in {where} is seen by all {len(seen)} ranks with the same content ({told}"
        f"{'; ...' if len(seen) > 4 else ''}): it has to be one directory that all hosts share; "
        "wait until they see the same, or name another one"
    )


def require_same(control: Control, facts: Mapping[str, tuple[object, bool]]) -> None:
    """Refuse to start where ranks differ in what has to be equal.

    Collective over the world.

    Args:
        control: The world.
        facts: What it is called -> its value, whose `repr` is compared, and whether it has to be
            equal at all positions (else only at the same position of all replicas).

    Raises:
        StartError: They differ. Raised on all ranks; it names what and where.
        DivergenceError: A rank died meanwhile.
    """
    own = [_number(hashlib.sha256(repr(value).encode()).digest()) for value, _ in facts.values()]
    rows = _from_all(control, torch.tensor(own, dtype=torch.int64))
    position_of = control.membership.position_of
    differing = []
    for index, (name, (value, everywhere)) in enumerate(facts.items()):
        first: dict[int, int] = {}  # by position
        odd = []
        for rank, row in rows.items():
            key = 0 if everywhere else position_of(rank)
            if row[index] != first.setdefault(key, row[index]):
                odd.append(rank)
        if odd:
            shown = ", ".join(map(str, odd[:8])) + (", ..." if len(odd) > 8 else "")
            differing.append(f"{name} (here {_short(value)}; ranks {shown} differ from the first)")
    if differing:
        raise StartError(
            "the ranks do not start from the same: " + "; ".join(differing) + "; give all the same "
            "program, flags and files"
        )


def complete(work: Work) -> None:
    """Wait for a message of the set-up, in which nothing is repaired.

    Raises:
        DivergenceError: A rank died meanwhile.
    """
    if work.wait() is not Outcome.OK:
        raise DivergenceError("a rank died while the job was being set up: start it again")


def _from_all(control: Control, own: torch.Tensor) -> dict[int, list[int]]:
    """Return every rank's numbers: int64, as many on all."""
    ranks = control.membership.ranks
    gathered = torch.empty(len(ranks) * own.numel(), dtype=torch.int64)
    complete(control.all_gather(own, gathered, among=control.subgroup(ranks)))
    rows: Callable[[], list[list[int]]] = gathered.view(len(ranks), -1).tolist
    return dict(zip(ranks, rows(), strict=True))


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> 4  # positive as an int64


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

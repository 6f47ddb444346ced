"""Notes: small values that every living rank holds the same, so that the next leader has them.

Only one rank saves, prints and knows what was best so far; when it dies, another does, and must
know as well. A note is kept as the JSON text that the leader sent, on all ranks alike.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch

from grad_txn.communicator import Control
from grad_txn.errors import UsageError
from ulfm_core import Membership, Outcome

__all__ = ["Notes", "told_by_the_leader"]


class Notes:
    """What was noted so far. Local; `grad_txn.between` agrees on what is put in."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @staticmethod
    def text_of(key: str, value: Any) -> str:
        """Return a note as the text that travels.

        Raises:
            UsageError: It cannot be written as JSON.
        """
        if not isinstance(key, str):
            raise UsageError(f"a note's key is {key!r}; give a string")
        try:
            return json.dumps([key, value])
        except (TypeError, ValueError) as error:
            raise UsageError(f"note {key!r} is {value!r}, which is no JSON ({error})") from error

    def take(self, text: str, key: str) -> Any:
        """Keep a note that was agreed on, and return what is kept under its key.

        Args:
            text: Of `text_of`, the leader's.
            key: What this rank has called it.

        Raises:
            UsageError: The leader has noted something else.
        """
        told, value = json.loads(text)
        if told != key:
            raise UsageError(f"this rank notes {key!r} and the leader {told!r}; note the same")
        if value is not None:
            self._texts[key] = json.dumps(value)
        return json.loads(self._texts[key]) if key in self._texts else None

    def to_dict(self) -> dict[str, Any]:
        """Return a copy, by name."""
        return {key: json.loads(text) for key, text in self._texts.items()}

    def load(self, notes: Mapping[str, Any]) -> None:
        """Go on from `to_dict`."""
        self._texts = {key: json.dumps(value) for key, value in notes.items()}


def told_by_the_leader(control: Control, members: Membership, text: str) -> str | None:
    """Return the leader's text; None where a message failed. Collective over the members."""
    everyone, root = control.subgroup(members.ranks), members.ranks.index(members.leader)
    raw = text.encode()
    size = torch.tensor([len(raw)])
    if control.broadcast(size, root=root, among=everyone).wait() is not Outcome.OK:
        return None
    leads = control.rank == members.leader
    line = torch.tensor(list(raw if leads else bytes(int(size))), dtype=torch.uint8)
    if control.broadcast(line, root=root, among=everyone).wait() is not Outcome.OK:
        return None
    return bytes(line.tolist()).decode()

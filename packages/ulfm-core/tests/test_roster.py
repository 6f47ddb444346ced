"""Whom the supervisor counts as what, from reports alone."""

import os
import time
from typing import Any

from ulfm_core import codes
from ulfm_core.launch.roster import Patience, Roster


def heard(*reports: tuple[int, str, dict[str, Any]]) -> Roster:
    """Return the roster of four ranks on another host after these reports."""
    roster = Roster(size=4)
    for rank, kind, fields in reports:
        message = {"kind": kind, "rank": rank, "host": "elsewhere", "pid": os.getpid(), **fields}
        roster.take(message)
    return roster


def test_a_replica_is_what_its_ranks_say_it_is() -> None:
    # Ranks 0 and 3 form replica 8, ranks 1 and 2 replica 5: no arithmetic finds that.
    replicas = {0: 8, 1: 5, 2: 5, 3: 8}
    roster = heard(
        *((rank, "start", {}) for rank in range(4)),
        *((r, "joined", {"replica": to, "replica_size": 2}) for r, to in replicas.items()),
        (0, "gone", {}),
    )
    now = time.monotonic()
    living = roster.look(now)
    assert [rank.number for rank in living] == [1, 2, 3]
    later = now + 2
    assert [rank.number for rank in roster.condemned(later, living, Patience())] == [3]
    assert roster.condemned(now, living, Patience()) == []


def test_a_replica_that_has_finished_condemns_nobody() -> None:
    roster = heard(
        *((rank, "start", {}) for rank in range(4)),
        *((rank, "joined", {"replica": 0, "replica_size": 4}) for rank in range(4)),
        (0, "exit", {"code": codes.FINISHED}),
        (0, "gone", {}),
    )
    now = time.monotonic()
    assert roster.condemned(now + 2, roster.look(now), Patience()) == []


def test_the_verdict_counts_reports() -> None:
    roster = heard(
        *((rank, "start", {}) for rank in range(4)),
        *((rank, "exit", {"code": codes.FINISHED}) for rank in (0, 2, 3)),
        (1, "gone", {}),
    )
    verdict = roster.verdict()
    assert (verdict.code, verdict.finished, verdict.lost) == (codes.FINISHED, (0, 2, 3), (1,))
    assert verdict.said == ("ulfmrun: 3 of 4 ranks finished; lost: rank 1",)

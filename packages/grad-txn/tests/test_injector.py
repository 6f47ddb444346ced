import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grad_txn.failures import NOWHERE, At, FailureInjector, Kill, Places
from grad_txn.log.events import EventLog, read_events
from grad_txn.log.lines import CheckpointLine, InjectLine

pytestmark = pytest.mark.timeout(60)

VICTIM = """
import json, sys
from grad_txn.log.events import EventLog
from grad_txn.failures import At, FailureInjector, Shape, parse_schedule
from grad_txn.log.lines import CheckpointLine
out, schedule, place = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
shape = Shape(replicas=4, replica_size=2, steps=10)
log = EventLog(out, 1)
injector = FailureInjector(parse_schedule(schedule, shape), 0, 1, log)
injector.reached(At(place.pop("at")), **place)
log.write(CheckpointLine(step=0, path="", seconds=0.0))
"""


@pytest.mark.parametrize(
    ("extra", "place", "dies"),
    [
        ("at: forward", {"at": "forward", "step": 3}, True),
        ("at: forward", {"at": "forward", "step": 2}, False),
        ("at: forward", {"at": "before_sync", "step": 3}, False),
        ("at: during_sync", {"at": "during_sync", "step": 3, "bucket": 2}, True),
        ("at: during_sync, bucket: 1", {"at": "during_sync", "step": 3, "bucket": 1}, True),
        ("at: during_sync, bucket: 1", {"at": "during_sync", "step": 3, "bucket": 0}, False),
        ("at: forward, microbatch: 2", {"at": "forward", "step": 3, "microbatch": 2}, True),
        ("at: forward, microbatch: 2", {"at": "forward", "step": 3}, False),
    ],
)
def test_the_victim_really_dies(
    tmp_path: Path, extra: str, place: dict[str, object], *, dies: bool
) -> None:
    schedule = f"- {{step: 3, replica: 0, rank: 1, {extra}}}"
    done = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path), schedule, json.dumps(place)],
        check=False,
        timeout=30,
    )
    (entry,) = read_events(tmp_path)[1]
    if dies:
        assert done.returncode == -signal.SIGKILL
        expected = {"replica": 0, "position": 1, "bucket": None, "microbatch": None} | place
        assert entry.line == InjectLine(**expected)  # type: ignore[arg-type]
    else:
        assert (done.returncode, type(entry.line)) == (0, CheckpointLine)


def test_others_live_on(tmp_path: Path) -> None:
    kills = (Kill(step=1, replica=0, position=1, at=At.FORWARD),)
    with EventLog(tmp_path, 0) as log:
        for replica, position in [(0, 0), (1, 1), (1, 0)]:
            FailureInjector(kills, replica, position, log).reached(At.FORWARD, 1)
    assert log.path.stat().st_size == 0


def test_a_death_is_expected_where_and_when_it_is_due(tmp_path: Path) -> None:
    kills = (Kill(step=1, replica=0, position=1, at=At.DURING_SYNC),)
    with EventLog(tmp_path, 1) as log:
        victim: Places = FailureInjector(kills, 0, 1, log)
        assert victim.expects(At.DURING_SYNC, 1)
        assert not victim.expects(At.DURING_SYNC, 2)
        assert not victim.expects(At.AFTER_SYNC, 1)
        assert not FailureInjector(kills, 0, 0, log).expects(At.DURING_SYNC, 1)


@pytest.mark.parametrize("at", At)
def test_nowhere_is_passed_alive(at: At) -> None:
    assert not NOWHERE.expects(at, 0)
    NOWHERE.reached(at, 0, bucket=0, microbatch=0)


def test_the_places_need_no_yaml() -> None:
    code = (
        "import sys; import grad_txn.failures.places; "
        "assert 'yaml' not in sys.modules, 'yaml'; "
        "from grad_txn.failures import *; assert Kill and generate and 'yaml' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_what_failures_has_not_is_no_attribute() -> None:
    import grad_txn.failures

    with pytest.raises(AttributeError, match="no attribute 'lunch'"):
        grad_txn.failures.lunch  # type: ignore[attr-defined] # noqa: B018

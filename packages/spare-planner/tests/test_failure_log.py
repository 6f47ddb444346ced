"""Reading failure logs, and replaying them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from spare_planner.failure_log import FailureLog, Fault, LogError, read_log
from spare_planner.simulation.clocks import FailureModel
from spare_planner.simulation.replay import Replay

CSV = """\
unit, start, end, kind, domain
a, 100, 160, GPU, r1
b, 130, 200, NIC, r1
a, 150, 170, GPU, r1
c, 500, , fan, r2
"""


def written(folder: Path, text: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_csv(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, CSV), units=10)
    assert log.faults == (
        Fault(0, 100, 160, "GPU"),
        Fault(1, 130, 200, "NIC"),
        Fault(0, 150, 170, "GPU"),
        Fault(2, 500, math.inf, "fan"),
    )
    assert (log.names, log.domains) == (("a", "b", "c"), ("r1", "r1", "r2"))
    assert (log.units, log.units_told, log.seconds, log.resolution) == (10, True, 500, 10)
    assert log.outages()[:4] == [[(100, 170)], [(130, 200)], [(500, math.inf)], []]


def test_dates_units_of_time_and_the_time_watched(tmp_path: Path) -> None:
    dates = "unit,start,end\nx,2026-01-01T00:00:00,2026-01-01 01:00\ny,2026-01-02T00:00:00Z,\n"
    log = read_log(written(tmp_path, dates))
    assert [fault.start for fault in log.faults] == [0, 86_400]
    assert log.faults[0].seconds == 3600
    hours = read_log(written(tmp_path, CSV), time_unit="hours", begin=50, end=1000)
    assert (hours.faults[0].start, hours.seconds) == (50 * 3600, 950 * 3600)


def test_json_events(tmp_path: Path) -> None:
    fault = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "lost"}
    events = [
        ("n0", 1.0, "fault_start"),
        ("n1", 1.5, "fault_end"),  # was broken before: not a failure that was seen
        ("n0", 2.0, "fault_start"),
        ("n0", 2.5, "fault_end"),
        ("n0", 3.0, "fault_end"),
        ("n2", 4.0, "fault_start"),
        ("n2", 4.0, "fault_end"),
        ("n3", 5.0, "fault_start"),
    ]
    text = json.dumps(
        [
            {"node_id": node, "event_time": time, "event_type": what, "fault_type": fault}
            for node, time, what in events
        ]
    )
    log = read_log(written(tmp_path, text, "log.json"), exclude=["fan"])
    days = [(f.unit, f.start / 86_400, f.end / 86_400) for f in log.faults]
    assert days == [(0, 1.0, 2.5), (0, 2.0, 3.0), (1, 4.0, 4.0), (2, 5.0, math.inf)]
    assert log.faults[0].kind == "Hardware Failure / GPU / lost"
    with pytest.raises(LogError, match="all 4 faults"):
        read_log(written(tmp_path, text, "log.json"), exclude=["gpu"])


def test_excluded_kinds_do_not_count(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, CSV), exclude=["gpu"])
    assert [fault.kind for fault in log.faults] == ["NIC", "fan"]
    assert (log.excluded, log.seconds) == (2, 500)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no column unit"),
        ("unit,end\na,1\n", "no column start"),
        ("unit,start\n", "no faults"),
        ("unit,start\na,soon\n", "line 2.*'soon'"),
        ("unit,start\na,nan\n", "no time"),
        ("unit,start\n,1\n", "line 2.*no unit"),
        ("unit,start,end\na,5,1\n", "ends before it starts"),
        ("unit,start\na,5\nb,2026-01-01\n", "mixes"),
        ("[1, 2]", "event 0"),
        ("[{]", "not JSON"),
        ('{"node_id": 1}', "must be a JSON list"),
        ('[{"node_id": "a", "event_time": 1, "event_type": "boom"}]', "fault_start or fault_end"),
        ("unit,start\na,0\n", "spans no time"),
    ],
)
def test_damaged_logs_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(LogError, match=complaint):
        read_log(written(tmp_path, text))


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, CSV)
    with pytest.raises(LogError, match="3 different units failed"):
        read_log(path, units=2)
    with pytest.raises(LogError, match="before it begins"):
        read_log(path, begin=120)
    with pytest.raises(LogError, match="before it begins or after it ends"):
        read_log(path, end=400)
    with pytest.raises(LogError, match="cannot read the log"):
        read_log(tmp_path / "nothing.csv")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LogError, match="UTF-8"):
        read_log(path)


def log_of(*faults: tuple[int, float, float], units: int = 4, seconds: float = 100.0) -> FailureLog:
    return FailureLog(
        name="log",
        units=units,
        seconds=seconds,
        faults=tuple(Fault(unit, start, end, "") for unit, start, end in sorted(faults)),
        names=tuple(map(str, range(units))),
        domains=(),
        resolution=1.0,
        excluded=0,
        units_told=True,
    )


LOG = log_of((0, 10, 20), (1, 10, 11), (2, 50, 90), (0, 95, 99))


def test_a_replay_of_the_log_s_own_cluster_is_the_log() -> None:
    replay = Replay(log=LOG, gpus_per_unit=8, gpus_per_group=8, from_start=True, own_repairs=True)
    failures = replay.failures(groups=4, rng=np.random.default_rng(0))
    assert failures.pending() == 10
    together = failures.until(10)
    assert len(together) == 2
    assert sorted(failures.repair_seconds(g) or 0 for g in together) == [1, 10]
    failures.revive(together, 30)
    (third,) = failures.until(60)
    assert third not in together
    (again,) = failures.until(100)
    assert again in together
    # Group `third` is dead still: of the next round only the failures of the others count.
    assert failures.pending() == 110
    assert replay.mtbf(4) == 25


def test_a_round_without_the_living_is_skipped() -> None:
    failures = Replay(log=LOG, gpus_per_unit=8, gpus_per_group=8, from_start=True).failures(
        groups=4, rng=np.random.default_rng(0)
    )
    while math.isfinite(failures.pending()):
        assert failures.until(failures.pending())
    failures.revive([0, 1, 2, 3], 0)
    assert math.isfinite(failures.pending())


def test_failures_while_the_job_stands_are_not_seen() -> None:
    failures = Replay(log=LOG, gpus_per_unit=8, gpus_per_group=8, from_start=True).failures(
        groups=4, rng=np.random.default_rng(0)
    )
    failures.down(0, 60)
    assert failures.pending() == 95


@pytest.mark.parametrize(("groups", "gpus"), [(40, 8), (80, 4), (10, 32), (5, 64), (7, 48)])
def test_other_sizes_keep_the_rate_of_a_gpu(groups: int, gpus: int) -> None:
    replay = Replay(log=LOG, gpus_per_unit=8, gpus_per_group=gpus)
    units = groups * gpus / 8
    assert replay.mtbf(groups) == pytest.approx(25 * 4 / units)
    total = 0
    for seed in range(20):
        failures = replay.failures(groups=groups, rng=np.random.default_rng(seed))
        while failures.pending() < 100:
            dead = failures.until(failures.pending())
            total += len(dead)
            failures.revive(dead, 0)
    # A unit under two groups takes both; failures of one group at once count once.
    per_unit = total / 20 / units / max(1, 8 // gpus)
    assert per_unit == pytest.approx(1.0, rel=0.2 if gpus <= 8 else 0.35)


def test_failures_that_came_together_stay_together() -> None:
    replay = Replay(log=log_of((0, 10, 20), (1, 10, 11)), gpus_per_unit=8, gpus_per_group=8)
    failures = replay.failures(groups=40, rng=np.random.default_rng(2))
    for _ in range(10):
        assert len(failures.until(failures.pending())) == 2


def test_the_paper_s_restarts_need_clocks() -> None:
    from spare_planner.errors import QuantityError
    from spare_planner.simulation.experiment import Experiment
    from spare_planner.simulation.scenario import Scenario

    replay = Replay(log=LOG, gpus_per_unit=8, gpus_per_group=8)
    job = Scenario(groups=4, timers=True)
    with pytest.raises(QuantityError, match="failure clocks"):
        Experiment(strategy="spare", scenario=job, failures=replay, redundancy=2)
    assert FailureModel.of_system(25.0, groups=4).mean == 100

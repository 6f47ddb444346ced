import json
import math
import mmap
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grad_txn.errors import LogError
from grad_txn.log.events import EventLog, event_files, of_kind, read_events
from grad_txn.log.lines import CheckpointLine, ExitLine, InjectLine, Line, StartLine, to_json

pytestmark = pytest.mark.timeout(60)

KILLER = """
import json, os, random, signal, sys, time
from pathlib import Path
from grad_txn.log.events import EventLog
from grad_txn.log.lines import CheckpointLine

size, out = int(sys.argv[1]), Path(sys.argv[2])
whole = torn = 0
for attempt in range(60):
    writer = os.fork()
    if writer == 0:
        with EventLog(out / str(attempt), 0) as log:
            while True:
                log.write(CheckpointLine(step=0, path="x" * size, seconds=0.0))
    time.sleep(0.003 + 0.005 * random.random())
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    path = out / str(attempt) / "events" / "0.jsonl"
    *lines, rest = path.read_bytes().split(b"\\n") if path.exists() else [b""]
    whole += sum(json.loads(line)["event"] == "checkpoint" for line in lines)
    torn += bool(rest.strip())
print(whole, torn)
"""


def start(run: str = "first", **about: object) -> StartLine:
    return StartLine(
        run=run, rank=0, replica=0, position=0, replicas=1, living=1, grad_accum=1, replica_size=1,
        global_batch=1, policy="static", promise="batch", first_step=0, cursor=0, queue=(), steps=1,
        tokens_per_microbatch=0, staging="no-copy", host="node0", pid=1, about=about,
    )  # fmt: skip


def filled(size: int, step: int = 0) -> CheckpointLine:
    """A line with that much in it, and a little more."""
    return CheckpointLine(step=step, path="x" * size, seconds=0.0)


def lines_of(out: Path, rank: int = 0) -> list[Line]:
    return [entry.line for entry in read_events(out)[rank]]


def test_a_line_has_event_and_time_and_then_its_fields_in_order(tmp_path: Path) -> None:
    with EventLog(tmp_path, 3, clock=lambda: 12.5) as log:
        log.write(ExitLine(code=0, reason="finished", step=7, parameters="ab"))
        log.write(start(ids={0: (1, 2)}, roles=MappingProxyType({1: "major"}), out={2, 1}))
    end, begin = map(json.loads, (tmp_path / "events" / "3.jsonl").read_text().splitlines())
    assert list(end.items()) == [
        ("event", "exit"), ("time", 12.5), ("code", 0), ("reason", "finished"), ("step", 7),
        ("parameters", "ab"),
    ]  # fmt: skip
    assert list(begin.items())[-3:] == [
        ("ids", {"0": [1, 2]}),
        ("roles", {"1": "major"}),
        ("out", [1, 2]),
    ]


def test_an_entry_has_the_time_and_the_rank_of_its_line(tmp_path: Path) -> None:
    with EventLog(tmp_path, 3, clock=lambda: 12.5) as log:
        log.write(filled(4))
    (entry,) = read_events(tmp_path)[3]
    assert (entry.time, entry.rank, entry.line) == (12.5, 3, filled(4))


def test_numbers_without_a_json_word_stay_valid_json(tmp_path: Path) -> None:
    with EventLog(tmp_path, 0) as log:
        log.write(CheckpointLine(step=0, path="", seconds=math.nan))
        log.write(CheckpointLine(step=1, path="", seconds=-math.inf))
    first, second = map(json.loads, log.path.read_text().splitlines())
    assert (first["seconds"], second["seconds"]) == ("nan", "-inf")
    one, other = of_kind(read_events(tmp_path)[0], CheckpointLine)
    assert math.isnan(one.line.seconds)
    assert other.line.seconds == -math.inf


def test_each_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        calls.append(data)
        return real(descriptor, data)

    with EventLog(tmp_path, 0) as log:
        monkeypatch.setattr(os, "write", write)
        for n in range(3):
            log.write(filled(3000 * n, n))
        monkeypatch.undo()
    assert len(calls) == 3
    assert b"".join(calls) == log.path.read_bytes()


def test_no_line_up_to_a_page_crosses_a_page_border(tmp_path: Path) -> None:
    with EventLog(tmp_path, 0) as log:
        for n in range(300):
            log.write(filled(n * 37 % 4000))
    position = 0
    for line in log.path.read_bytes().splitlines(keepends=True):
        text = line.lstrip(b" ")
        start = position + len(line) - len(text)
        if len(text) <= mmap.PAGESIZE:
            assert start // mmap.PAGESIZE == (start + len(text) - 1) // mmap.PAGESIZE
        position += len(line)


@pytest.mark.parametrize("size", [200, 3500])
def test_sigkill_at_any_moment_leaves_only_whole_lines(tmp_path: Path, size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(size), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    whole, torn = map(int, done.stdout.split())
    assert whole > 1000
    assert torn == 0


def test_after_the_last_words_no_thread_writes_again(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 0)
    started = threading.Event()

    def chatter() -> None:
        while True:
            log.write(filled(50_000))
            started.set()

    threading.Thread(target=chatter, daemon=True).start()
    assert started.wait(10)
    last = InjectLine(step=1, at="forward", replica=0, position=0, bucket=None, microbatch=0)
    log.last_words(last)
    size = log.path.stat().st_size
    time.sleep(0.05)
    assert log.path.stat().st_size == size
    assert lines_of(tmp_path)[-1] == last


def test_threads_share_a_log(tmp_path: Path) -> None:
    with EventLog(tmp_path, 0) as log:

        def chatter(name: int) -> None:
            for n in range(100):
                log.write(CheckpointLine(step=n, path=str(name), seconds=0.0))

        threads = [threading.Thread(target=chatter, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = [entry.line for entry in of_kind(read_events(tmp_path)[0], CheckpointLine)]
    for name in range(4):
        assert [line.step for line in lines if line.path == str(name)] == list(range(100))


def test_a_resumed_run_appends_and_drops_a_torn_tail(tmp_path: Path) -> None:
    with EventLog(tmp_path, 0) as log:
        log.write(start("a"))
    with log.path.open("a") as file:
        file.write('{"event": "step", "ti' + "x" * 10_000)
    with EventLog(tmp_path, 0) as log:
        log.write(start("b"))
    assert lines_of(tmp_path) == [start("a"), start("b")]


def test_a_file_that_is_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "0.jsonl").write_bytes(b"x" * 9000)
    with EventLog(tmp_path, 0) as log:
        log.write(start())
    assert lines_of(tmp_path) == [start()]


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match=r"file.events.0.jsonl: cannot be written: Not a directory"):
        EventLog(tmp_path / "file", 0)


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    with EventLog(tmp_path, 0) as log:
        log.write(start())
        log.write(filled(200))
        size = log.path.stat().st_size
    full = """
import resource, signal, sys
from grad_txn.log.events import EventLog
from grad_txn.log.lines import CheckpointLine
from grad_txn.errors import LogError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[2]) + 100
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    EventLog(sys.argv[1], 0).write(CheckpointLine(step=0, path="y" * 200, seconds=0.0))
except LogError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", full, str(tmp_path), str(size)],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert "only 100 of" in done.stdout
    assert log.path.stat().st_size == size


def test_what_has_no_json_form_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    with EventLog(tmp_path, 0) as log:
        with pytest.raises(LogError, match=r"event 'start' has no JSON form: object"):
            log.write(start(model=object()))
        with pytest.raises(LogError, match="no JSON form"):
            log.write(start(nested=[math.nan]))
        log.write(start())
    assert len(read_events(tmp_path)[0]) == 1


def test_a_closed_log_refuses_events(tmp_path: Path) -> None:
    log = EventLog(tmp_path, 0)
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.write(start())


def test_logs_are_read_in_rank_order(tmp_path: Path) -> None:
    for rank in (10, 9, 0):
        EventLog(tmp_path, rank).close()
    (tmp_path / "events" / "notes.jsonl").write_text("not a log")
    assert [path.name for path in event_files(tmp_path)] == ["0.jsonl", "9.jsonl", "10.jsonl"]
    assert list(read_events(tmp_path)) == [0, 9, 10]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"event": "any", "time": 1}\n{"event": "st', r"0.jsonl:2: torn or invalid line"),
        ('{"event": "start"}\n', r"0.jsonl:1: not an event"),
        ('\n{"event": "exit", "time": 1, "code": 0}\n', r"0.jsonl:2: exit line without 'reason'"),
        (
            '{"event": "exit", "time": 1, "code": true, "reason": ""}\n',
            r"0.jsonl:1: exit line with code = True",
        ),
        ("[1]\n", r"0.jsonl:1: not an event"),
        ("\xff\n", r"0.jsonl: cannot be read"),
    ],
)
def test_a_damaged_log_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "0.jsonl").write_bytes(content.encode("latin-1"))
    with pytest.raises(LogError, match=message):
        read_events(tmp_path)


def test_kinds_of_lines_from_elsewhere_are_skipped(tmp_path: Path) -> None:
    with EventLog(tmp_path, 0) as log:
        log.write(start())
    with log.path.open("a") as file:
        file.write('{"event": "weather", "time": 1, "rain": true}\n')
    assert lines_of(tmp_path) == [start()]


def test_no_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"no events/ in it"):
        read_events(tmp_path)
    (tmp_path / "events").mkdir()
    with pytest.raises(LogError, match=r"nothing was recorded"):
        read_events(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@pytest.mark.property
@settings(max_examples=50, deadline=None)
@given(
    abouts=st.lists(
        st.dictionaries(
            st.text().filter(lambda key: key not in to_json(start()) | {"time": 1}), VALUES
        )
    )
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, abouts: list[dict[str, object]]
) -> None:
    out = tmp_path_factory.mktemp("log")
    lines = [replace(start(), about=about) for about in abouts]
    with EventLog(out, 0, clock=lambda: 1.0) as log:
        for line in lines:
            log.write(line)
    assert lines_of(out) == lines

import os
import queue
import socket
import time
from collections.abc import Iterator

import pytest

from ulfm_core.environment import ULFMRUN_CHANNEL
from ulfm_core.launch.channel import Channel, Inbox
from ulfm_core.rank import report as reporting


@pytest.fixture
def inbox() -> Inbox:
    return queue.SimpleQueue()


@pytest.fixture
def channel(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Channel]:
    channel = Channel(inbox)
    monkeypatch.setenv(ULFMRUN_CHANNEL, channel.address)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    monkeypatch.setattr(reporting, "_connection", None)
    yield channel
    if reporting._connection is not None:
        reporting._connection.close()
    channel.close()


def test_reports_arrive_in_order_with_who_sent_them(channel: Channel, inbox: Inbox) -> None:
    assert reporting.report("start")
    assert reporting.report("progress", step=3, path=os.curdir)
    first, second = inbox.get(timeout=5), inbox.get(timeout=5)
    assert first == {
        "kind": "start", "rank": 7, "host": socket.gethostname(), "pid": os.getpid()
    }  # fmt: skip
    assert second["kind"] == "progress"
    assert second["step"] == 3


def test_end_of_the_process_is_news(channel: Channel, inbox: Inbox) -> None:
    child = os.fork()
    if child == 0:
        reporting.report("start")
        os._exit(0)
    os.waitpid(child, 0)
    assert inbox.get(timeout=5)["pid"] == child
    assert inbox.get(timeout=5) == {"kind": "gone", "rank": 7, "pid": child}


def test_forked_child_speaks_for_itself(channel: Channel, inbox: Inbox) -> None:
    reporting.report("start")
    child = os.fork()
    if child == 0:
        reporting.report("progress", step=1)
        os._exit(0)
    os.waitpid(child, 0)
    assert {inbox.get(timeout=5)["pid"] for _ in range(3)} == {os.getpid(), child}
    assert reporting.report("exit", code=0)
    assert inbox.get(timeout=5)["pid"] == os.getpid()


def test_what_cannot_be_sent_does_not_end_the_talk(channel: Channel, inbox: Inbox) -> None:
    assert not reporting.report("progress", text="x" * (1 << 17))
    assert not reporting.report("progress", text={(1, 2): 3})
    assert reporting.report("progress", step=1)
    assert inbox.get(timeout=5)["step"] == 1


def test_strangers_are_not_heard(channel: Channel, inbox: Inbox) -> None:
    host, port, _ = channel.address.rsplit(":", 2)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b'wrong token\n{"kind": "start", "rank": 0, "pid": 1}\n')
    with pytest.raises(queue.Empty):
        inbox.get(timeout=0.3)


def test_half_a_line_is_not_a_message(channel: Channel, inbox: Inbox) -> None:
    host, port, token = channel.address.rsplit(":", 2)
    with socket.create_connection((host, int(port))) as rank:
        rank.sendall(f'{token}\n{{"kind": "start", "rank": 1, "pid": 5}}\n{{"kind'.encode())
    assert inbox.get(timeout=5)["kind"] == "start"
    assert inbox.get(timeout=5) == {"kind": "gone", "rank": 1, "pid": 5}


def test_without_ulfmrun_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ULFMRUN_CHANNEL, raising=False)
    assert not reporting.report("start")


@pytest.mark.parametrize("address", ["127.0.0.1:1:token", "no-such-host.invalid:1:t", "nonsense"])
def test_never_raises(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(reporting, "_connection", None)
    monkeypatch.setenv(ULFMRUN_CHANNEL, address)
    assert not reporting.report("start")
    assert ULFMRUN_CHANNEL not in os.environ


def test_a_deaf_ulfmrun_costs_two_seconds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        others = [socket.socket() for _ in range(4)]  # fill its backlog: nobody is let in
        for other in others:
            other.setblocking(False)
            other.connect_ex(deaf.getsockname())
        monkeypatch.setattr(reporting, "_connection", None)
        monkeypatch.setenv(ULFMRUN_CHANNEL, f"127.0.0.1:{deaf.getsockname()[1]}:token")
        start = time.monotonic()
        assert not reporting.report("start")
        assert not reporting.report("exit", code=0)
        assert time.monotonic() - start < 3
        for other in others:
            other.close()

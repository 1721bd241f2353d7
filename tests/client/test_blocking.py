"""The blocking link: answers, refusals, and the moment when the keeper goes away."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from jupyter_cmdop.client.blocking import Connection
from jupyter_cmdop.client.errors import KeeperGone, LinkTimeout, PlaceError, Refused
from jupyter_cmdop.client.identity import Identity
from tests.client.fake_keeper import Call, FakeKeeper


def connect(keeper: FakeKeeper, **options: object) -> Connection:
    return Connection.connect(str(keeper.link), **options)  # type: ignore[arg-type]


def test_request_gets_its_result(keeper: FakeKeeper) -> None:
    keeper.result("release", driver=None)
    with connect(keeper, client="test", identity=Identity(actor="bot", kind="agent")) as connection:
        assert connection.welcome.actor["id"] == "bot"
        assert connection.request("release", {}) == {"driver": None}
    hello = keeper.hellos.get(timeout=10)
    assert (hello["client"], hello["actor"], hello["persistent"]) == ("test", "bot", False)


def test_refused_hello_is_raised_and_nothing_stays_open(keeper: FakeKeeper) -> None:
    keeper.hello_refusal = {"code": "expired", "message": "your grant has expired"}
    with pytest.raises(Refused, match="expired"):
        connect(keeper)


def test_large_request_and_large_answers_pass_at_the_same_time(keeper: FakeKeeper) -> None:
    """Both sides have more to send than the socket holds: neither may wait for the other."""

    def answer(call: Call) -> None:
        for _ in range(50):
            call.item(text="y" * 100_000)
        call.result(size=len(call.args["code"]))

    keeper.on("run", answer)
    with connect(keeper) as connection:
        streams = [connection.start("run", {"code": "x" * 3_000_000}) for _ in range(3)]
        for stream in streams:
            assert sum(len(item.data["text"]) for item in stream) == 5_000_000
            assert stream.outcome() == {"size": 3_000_000}


def test_second_request_is_answered_while_a_stream_is_open(keeper: FakeKeeper) -> None:
    streams: list[Call] = []
    keeper.on("run", streams.append)
    keeper.on(
        "interrupt", lambda call: (call.result(interrupted="op1"), streams[0].result(status="interrupted"))
    )
    with connect(keeper) as connection, connection.start("run", {"code": "x"}) as stream:
        assert connection.request("interrupt", {"operation": "op1"}) == {"interrupted": "op1"}
        assert list(stream) == []
        assert stream.outcome() == {"status": "interrupted"}


def test_stream_left_early_is_cancelled(keeper: FakeKeeper) -> None:
    keeper.on("read", lambda call: call.item(n=1))
    with connect(keeper) as connection:
        with connection.start("read", {"follow": True}) as stream:
            for _ in stream:
                break
        assert keeper.cancels.get(timeout=10) == 1


def test_cancelled_stream_still_gets_its_end(keeper: FakeKeeper) -> None:
    keeper.on("read", lambda call: call.item(n=1))
    with connect(keeper) as connection, connection.start("read", {"follow": True}) as stream:
        items = iter(stream)
        next(items)
        stream.cancel()
        assert list(items) == []
        assert stream.outcome()["cursor"] == "1:9"


def test_closed_link_is_noticed_at_once(keeper: FakeKeeper) -> None:
    keeper.on("run", lambda call: keeper.drop_links())
    with connect(keeper) as connection:
        begun = time.monotonic()
        with pytest.raises(KeeperGone) as caught:
            connection.request("run", {}, timeout_seconds=None)
        assert caught.value.asked
        assert time.monotonic() - begun < 5
        with pytest.raises(KeeperGone):
            connection.request("status", {})
        connection.beat()


def test_answer_that_was_sent_before_the_end_is_read(keeper: FakeKeeper) -> None:
    keeper.on("close", lambda call: (call.result(closed=True), keeper.drop_links()))
    with connect(keeper) as connection:
        assert connection.request("close", {}) == {"closed": True}


def test_silence_ends_in_a_timeout_and_the_link_goes_on(keeper: FakeKeeper) -> None:
    held: list[Call] = []
    keeper.on("run", held.append)
    keeper.result("release", driver=None)
    with connect(keeper) as connection:
        with pytest.raises(LinkTimeout, match="did not answer run"):
            connection.request("run", {}, timeout_seconds=0.05)
        keeper.cancels.get(timeout=10)
        held[0].result(status="late")
        assert connection.request("release", {}) == {"driver": None}


def test_keeper_that_never_says_hello_is_a_timeout(keeper: FakeKeeper) -> None:
    keeper.is_mute = True
    with pytest.raises(LinkTimeout, match="does not answer"):
        connect(keeper, timeout_seconds=0.05)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(KeeperGone, match="nobody listens"):
        Connection.connect(str(tmp_path / "link.sock"))
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left))
    with pytest.raises(KeeperGone, match="nobody listens"):
        Connection.connect(str(left))


def test_path_that_no_socket_can_have(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="too long"):
        Connection.connect(str(tmp_path / ("x" * 110)))


def test_socket_of_somebody_else_gets_no_hello(keeper: FakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_cmdop.client.sockets.peer_uid", lambda connection: 65534)
    with pytest.raises(PlaceError, match="user id 65534 listens"):
        connect(keeper, identity=Identity(token="secret"))
    keeper.closed_links.get(timeout=10)
    assert keeper.hellos.empty()


def test_peer_uid_is_the_systems_word() -> None:
    from jupyter_cmdop.client.sockets import peer_uid

    left, right = socket.socketpair()
    with left, right:
        assert peer_uid(left) == os.geteuid()


def test_pump_wakes_for_other_descriptors(keeper: FakeKeeper) -> None:
    read, write = os.pipe()
    try:
        with connect(keeper) as connection:
            os.write(write, b"!")
            assert connection.pump(10, [read]) == [read]
    finally:
        os.close(read)
        os.close(write)


def test_beats_come_from_another_thread(keeper: FakeKeeper) -> None:
    keeper.on("wait", lambda call: (keeper.beats.get(timeout=10), call.result(status="idle")))
    with connect(keeper, persistent=True) as connection:
        beater = threading.Thread(target=connection.beat)
        stream = connection.start("wait", {})
        beater.start()
        # The fake handles one frame at a time, so the beat is read only after `wait` has been answered.
        keeper.beats.put(1)
        list(stream)
        beater.join(10)
        assert keeper.beats.get(timeout=10) == 1


def test_events_of_a_persistent_link(keeper: FakeKeeper) -> None:
    keeper.on("status", lambda call: (call.send({"event": {"floor": "taken"}}), call.result()))
    with connect(keeper, persistent=True) as connection:
        connection.request("status", {})
        assert connection.events() == [{"floor": "taken"}]
        assert connection.events() == []

"""`ls` asks everybody at once, waits half a second for all of them together, and never hangs."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from jupyter_cmdop.client import census, places
from jupyter_cmdop.client.registry import Record, Registry
from jupyter_cmdop.client.session import sessions
from tests.client.fake_keeper import FakeKeeper, MakeKeeper


def test_living_session_is_described_by_its_keeper(keepers: MakeKeeper) -> None:
    keeper = keepers("analysis")
    keeper.status |= {
        "driver": "bot",
        "generation": 7,
        "running": [{"operation": "o1", "actor": "bot"}],
        "queue": [{"operation": "o2", "actor": "alice"}],
        "presence": [{"actor": "alice"}],
        "pending_input": {"prompt": "?"},
    }
    (item,) = sessions()
    assert (item.name, item.state, item.driver, item.generation) == ("analysis", "open", "bot", 7)
    assert (item.running, item.queued, item.attached, item.input_pending) == (1, 1, 1, True)
    assert item.kernel_id == item.id == keeper.session_id
    hello = keeper.hellos.get(timeout=10)
    assert hello["token"] is None
    assert not hello["persistent"], "being listed is no presence"


def test_silent_keepers_cost_one_wait_together(keepers: MakeKeeper) -> None:
    silent = 10
    for number in range(silent):
        keepers(f"s{number}").is_mute = True
    keepers("talks")
    begun = time.monotonic()
    items = sessions()
    # One after the other they would take `silent` waits; a loaded machine may add one or two to the one.
    assert time.monotonic() - begun < census.ANSWER_SECONDS * silent / 2
    assert [item.state for item in items] == ["unresponsive"] * silent + ["open"]
    assert "did not answer within 0.5 s" in (items[0].reason or "")


def test_keeper_that_does_not_accept_is_not_waited_for(registry: Registry) -> None:
    """Its backlog is full, so even connecting would block."""
    sockets = places.make_socket_dir()
    made = registry.reserve("stopped", sockets=str(sockets))
    link = sockets / "link.sock"
    queued = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(link))
        listener.listen(0)
        while True:
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            queued.append(one)
            if one.connect_ex(str(link)) != 0:
                break
        registry.update(made.id, pid=os.getpid(), link=str(link))
        begun = time.monotonic()
        (item,) = sessions()
        assert item.state == "unresponsive"
        assert time.monotonic() - begun < 10 * census.ANSWER_SECONDS
        for one in queued:
            one.close()


def test_late_acceptance_is_an_answer(keepers: MakeKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "ANSWER_SECONDS", 30.0)
    keeper = keepers("slow")
    keeper.is_mute = True
    answered = threading.Event()

    def answer_late() -> None:
        keeper.hellos.get(timeout=20)
        keeper.connections[0].sendall(census_hello(keeper))
        answered.set()

    thread = threading.Thread(target=answer_late)
    thread.start()
    (answer,) = census.ask_all(Registry.of_user().list_pointers(), timeout_seconds=30.0)
    thread.join(20)
    assert answered.is_set()
    assert answer.welcome is not None


def census_hello(keeper: FakeKeeper) -> bytes:
    from jupyter_cmdop.wire.link import encode_frame

    return encode_frame({"hello": {"protocol": 1, "session": keeper.status}})


@pytest.mark.parametrize("kind", ["no socket", "nobody", "garbage", "refusal", "half", "not a status"])
def test_broken_links_are_unresponsive_with_a_reason(
    keepers: MakeKeeper, registry: Registry, kind: str
) -> None:
    keeper = keepers("broken")
    if kind == "no socket":
        keeper.link.unlink()
    elif kind == "nobody":
        keeper.close()
    elif kind == "garbage":
        keeper._handle = lambda header, send: keeper.connections[-1].sendall(b"\xff" * 64) or True
    elif kind == "refusal":
        keeper.hello_refusal = {"code": "unsupported", "message": "speak protocol 7"}
    elif kind == "half":
        keeper._handle = lambda header, send: False
    else:
        keeper.status = {"name": 7}
    (item,) = sessions()
    assert (item.name, item.state) == ("broken", "unresponsive")
    assert item.reason


def test_lost_starting_and_far_ones_are_told_apart(registry: Registry, keepers: MakeKeeper) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    registry.update(registry.reserve("gone").id, pid=gone.pid, link="/l")
    registry.update(registry.reserve("far").id, pid=1, link="/l", host="elsewhere")
    registry.reserve("begun")
    items = {item.name: item for item in sessions()}
    assert {name: item.state for name, item in items.items()} == {
        "gone": "lost",
        "far": "unresponsive",
        "begun": "starting",
    }
    assert "elsewhere" in (items["far"].reason or "")


def test_past_sessions_only_when_asked(registry: Registry, keepers: MakeKeeper) -> None:
    places.private_dir(registry.sessions.parent)
    keeper = keepers("now")
    registry.write_record(Record(id=keeper.session_id, name="now"))
    for number, state in enumerate(["closed", "lost", "open"]):
        registry.write_record(
            Record(id=f"{number:08d}-0000-4000-8000-000000000000", name=f"old{number}", state=state)
        )
    assert [item.name for item in sessions()] == ["now", "old1"]  # lost is told of without being asked
    everything = {item.name: item.state for item in sessions(all=True)}
    assert everything == {"now": "open", "old0": "closed", "old1": "lost", "old2": "lost"}


def test_a_lost_session_is_listed_until_somebody_has_seen_it(registry: Registry, keepers: MakeKeeper) -> None:
    """A Jupyter server tidies at once what is lost; that alone must not hide the loss from whoever lists sessions."""
    gone = subprocess.Popen(["true"])
    gone.wait()

    def lose(name: str) -> str:
        made = registry.reserve(name)
        registry.write_record(Record(id=made.id, name=name, created=made.created))
        registry.update(made.id, pid=gone.pid, link="/l")
        return made.id

    def listed() -> dict[str, str]:
        return {item.name: item.state for item in sessions()}

    ids = [lose("one"), lose("Two"), lose("three")]
    assert len(registry.sweep()) == 3
    assert registry.list_pointers() == []
    assert listed() == {"one": "lost", "Two": "lost", "three": "lost"}
    # Its name is somebody else's now.
    keepers("two")
    assert listed() == {"two": "open", "one": "lost", "three": "lost"}
    # It is a long time ago.
    os.utime(registry.sessions / ids[0] / "session.json", (1.0, 1.0))
    assert listed() == {"two": "open", "three": "lost"}
    # Somebody has put it away, and says so once.
    assert {item.name for item in registry.sweep(put_away=True)} == {"Two", "three"}
    assert listed() == {"two": "open"}
    assert registry.sweep(put_away=True) == []
    assert {item.id for item in sessions(all=True) if item.state == "lost"} == set(ids)


def test_link_outside_any_limit_is_unresponsive(registry: Registry, tmp_path: Path) -> None:
    registry.update(registry.reserve("long").id, pid=os.getpid(), link=str(tmp_path / ("x" * 200)))
    (item,) = sessions()
    assert item.state == "unresponsive"


def test_hundred_sessions_are_asked_together(keepers: MakeKeeper) -> None:
    for number in range(30):
        keepers(f"s{number:02d}")
    items = sessions()
    assert [item.state for item in items] == ["open"] * 30

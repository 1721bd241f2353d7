"""Who is at a websocket, for how long, and what a Jupyter server is told: presence, floor, credentials, activity."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_cmdop.client.session import Session
from tests.support import LIMIT_SECONDS, Closing, Gate, Sessions, wait_for_entry, wait_for_status
from tests.websocket.front import Front, ServerLink
from tests.websocket.viewer import Viewer, is_idle_of, is_reply_to, is_type, reply_in, says, text_in

View = Callable[..., Viewer]


@pytest.fixture
def link(shared: Session, closing: Closing) -> ServerLink:
    made = closing(ServerLink(shared))
    assert isinstance(made, ServerLink)
    return made


def attachment_of(shared: Session, actor: str) -> str:
    status = wait_for_status(shared, lambda s: any(p.actor == actor for p in s.presence))
    return next(str(p.attachment) for p in status.presence if p.actor == actor)


def connections(shared: Session) -> int:
    return int(shared.connection.request("status", {})["connections"])


def test_presence(view: View, shared: Session) -> None:
    """Who is here, by which door, since when it is so, and that he has gone: in the status and in the journal."""
    before = connections(shared)
    viewer = view("client-1", actor="carol", role="observer")
    found = next(p for p in shared.status().presence if p.actor == "carol")
    assert (found.role, found.transport, found.kind, found.client) == (
        "observer",
        "websocket",
        "human",
        "a browser",
    )
    assert connections(shared) == before + 1
    entry = wait_for_entry(shared, "attached", actor="carol")
    assert entry["data"]["transport"] == "websocket"
    viewer.leave()
    wait_for_entry(shared, "detached", actor="carol", after=entry["seq"])
    assert not any(p.actor == "carol" for p in shared.status().presence)
    assert connections(shared) == before


def test_an_observer_sees_and_inputs_nothing(view: View, gate: Gate) -> None:
    author, observer = view("client-1"), view("client-2", actor="olga", role="observer")
    assert reply_in(observer.run("1 + 1"))["content"]["ename"] == "cmdop.read_only"
    msg_id = author.execute(f"{gate.code}\nprint('for all')")
    observer.until(says("waiting"))
    refused = observer.ask("interrupt_request", {}, channel="control")
    assert refused["content"]["status"] == "error"
    gate.open()
    author.until(is_idle_of(msg_id), is_reply_to(msg_id))
    observer.until(says("for all"))


def test_the_floor_of_a_websocket_actor(session: Sessions, closing: Closing) -> None:
    """Under `turns` the first cell drives; a pong is the sign of life that keeps the floor; after a take-over the
    notebook is told once before its cells run again.
    """
    made = session(policy="turns")
    front = closing(Front(made))
    driver = closing(Viewer(front.address, "client-1"))
    other = closing(Viewer(front.address, "client-2", actor="dan"))
    assert reply_in(driver.run("x = 1"))["content"]["status"] == "ok"
    status = made.status()
    assert status.driver == "carol"
    refusal = reply_in(other.run("x = 2"))["content"]
    assert refusal["ename"] == "cmdop.not_driver"
    assert "carol" in refusal["evalue"]

    def lease() -> float:
        found = made.status().lease
        assert found is not None
        return float(found.until_seconds)

    deadline = time.monotonic() + LIMIT_SECONDS
    full = lease()
    while lease() > full - 0.5:
        assert time.monotonic() < deadline
    assert driver._protocol is not None
    while lease() < full - 0.2:  # one in a second counts
        driver._protocol.send_pong(b"alive")
        driver.flush()
        assert time.monotonic() < deadline, "a pong is a sign of life"
    made.take("my turn")
    assert reply_in(driver.run("x = 3"))["content"]["ename"] == "cmdop.stale_generation"
    made.release()
    assert reply_in(driver.run("x"))["content"]["status"] == "ok"
    assert made.status().driver == "carol"


def test_a_credential_that_is_not_renewed_may_only_observe(
    view: View, shared: Session, link: ServerLink
) -> None:
    """`valid_until` passes: the socket stays and shows, and inputs nothing, until the server says that it is good."""
    viewer = view("client-1", actor="tina", valid=0.2)
    author = view("client-2")
    attachment = attachment_of(shared, "tina")
    wait_for_status(shared, lambda s: any(p.actor == "tina" and p.role == "observer" for p in s.presence))
    assert reply_in(viewer.run("1"))["content"]["ename"] == "cmdop.read_only"
    author.run("print('still seen')")
    viewer.until(says("still seen"))
    assert link.ask("renew", {"attachment": attachment, "valid_until_seconds": 600})["result"] == {
        "renewed": True
    }
    assert reply_in(viewer.run("2"))["content"]["status"] == "ok"
    assert viewer.is_open
    # Lapsed again: a new connection brings a credential of its own.
    link.ask("renew", {"attachment": attachment, "valid_until_seconds": 0})
    wait_for_status(shared, lambda s: any(p.actor == "tina" and p.role == "observer" for p in s.presence))
    viewer.connect(valid=600)
    assert reply_in(viewer.run("3"))["content"]["status"] == "ok"
    # And one that may less does not inherit what the one before it might.
    viewer.connect(valid=600, role="observer")
    assert reply_in(viewer.run("4"))["content"]["ename"] == "cmdop.read_only"
    assert link.ask("renew", {"attachment": attachment, "valid_until_seconds": 600})["result"] == {
        "renewed": True
    }
    assert reply_in(viewer.run("5"))["content"]["ename"] == "cmdop.read_only"
    assert link.ask("renew", {"attachment": "w999"})["result"] == {"renewed": False}


@pytest.mark.parametrize("by", ["attachment", "actor", "grant"])
def test_drop_closes_with_the_reason(view: View, shared: Session, link: ServerLink, by: str) -> None:
    """Logged out: closed with a code and the reason, not expected back; nobody else is touched."""
    viewer = view("client-1", actor="lea", grant="some-grant")
    other = view("client-2", actor="dan", grant="another-grant")
    chosen = {"attachment": attachment_of(shared, "lea"), "actor": "lea", "grant": "some-grant"}[by]
    dropped = link.ask("drop", {by: chosen, "reason": "she has logged out"})["result"]
    assert dropped["closed"] >= 1
    assert viewer.read_to_end() == (1008, "she has logged out")
    assert not any(p.actor == "lea" for p in shared.status().presence)
    assert reply_in(other.run("1"))["content"]["status"] == "ok"


def test_what_is_sent_with_a_dropped_connection_is_not_heard(
    view: View, shared: Session, link: ServerLink
) -> None:
    viewer, watcher = view("client-1", actor="lea"), view("client-2", actor="dan")
    link.ask("drop", {"actor": "lea"})
    viewer.execute("print('too late')")
    viewer.read_to_end()
    watcher.run("1")
    watcher.catch_up()
    assert "too late" not in text_in(watcher.received)


def test_revoking_a_grant_closes_its_websockets(view: View, shared: Session) -> None:
    """At once, also for one that is away; and a connection that came later with another grant is not that grant's."""
    invited, other = shared.invite("gina"), shared.invite("hal")
    viewer = view("client-1", actor="gina", grant=invited.grant)
    away = view("client-2", actor="gina", grant=invited.grant)
    away.reset()
    kept = view("client-3", actor="hal", grant=other.grant)
    began = time.monotonic()
    shared.revoke(invited.grant)
    code, reason = viewer.read_to_end()
    assert time.monotonic() - began < 1.0
    assert code == 1008
    assert reason
    wait_for_status(shared, lambda s: not any(p.actor == "gina" for p in s.presence))
    assert reply_in(kept.run("1"))["content"]["status"] == "ok"
    kept.connect(grant="renewed-grant")
    shared.revoke(other.grant)
    assert reply_in(kept.run("2"))["content"]["status"] == "ok"


def test_closing_the_session_says_so(session: Sessions, closing: Closing) -> None:
    """1000: there is nothing to come back to."""
    made = session()
    front = closing(Front(made))
    viewer = closing(Viewer(front.address, "client-1"))
    viewer.catch_up()
    made.close(force=True)
    assert viewer.read_to_end() == (1000, "the session has ended")


def test_activity_and_pings(view: View, shared: Session, link: ServerLink, gate: Gate) -> None:
    """What a Jupyter server culls by: at once, and on each change, until it is cancelled. And a client that says
    nothing is pinged meanwhile, so that no proxy cuts it off; that it answers is no activity.
    """
    number = link.start("activity", {})

    def next_item() -> dict[str, Any]:
        frame = link.next()
        assert frame["id"] == number
        return dict(frame["item"])

    first = next_item()
    assert first["execution_state"] == "idle"
    assert first["state"] == "open"
    assert first["incarnation"] == 1
    before = first["connections"]
    quiet = view("client-quiet", actor="quentin")
    assert next_item()["connections"] == before + 1
    viewer = view("client-1")
    assert next_item()["connections"] == before + 2
    msg_id = viewer.execute(gate.code)
    busy = next_item()
    assert busy["execution_state"] == "busy"
    assert busy["last_activity"] > first["last_activity"]
    gate.open()
    viewer.until(is_idle_of(msg_id))
    assert next_item()["execution_state"] == "idle"
    viewer.leave()
    last = next_item()
    assert last["connections"] == before + 1
    # Between two of its pings lie ten seconds; what it was shown before has been marked and answered.
    quiet.until(is_type("stream"))
    quiet.marks.clear()
    while not quiet.marks:
        assert quiet.read(limit_seconds=13.0)
    link.send({"cancel": number})
    while "item" in (ended := link.next()):
        # Only the time of what was shown before may still have been told.
        assert {**ended["item"], "last_activity": last["last_activity"]} == last
    assert ended == {"id": number, "result": {"cancelled": True}}

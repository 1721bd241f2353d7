"""A snapshot is the whole state: a session that is restored from it goes on as the first."""

from __future__ import annotations

import json

from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.session import Session
from tests.core.stage import Stage


def busy_stage() -> Stage:
    """Something of everything: grants, lanes, queues, prompts, a loss, adopted and ended operations."""
    stage = Stage("turns")
    ann, bob = stage.attach("ann"), stage.attach("bob")
    bot = stage.invite("bot", "1", by=ann, expires=stage.now + 1000)
    stage.finish(stage.run(bot, "first", msg_id="m1", request_id="r1").admitted, "error")
    asking = stage.run(bot, msg_id="m2").admitted
    for _ in range(3):
        stage.run(bot)
    stage.run(bot, lane="sub")
    stage.ask(asking)
    stage.do(ev.Take(bob, "why", queue="adopt", lease_seconds=300))
    stage.do(ev.Interrupt(bob, asking))
    return stage


def test_snapshot_is_json_and_restores_to_itself() -> None:
    snapshot = busy_stage().session.snapshot()
    again = Session.restore(json.loads(json.dumps(snapshot)))
    assert again.snapshot() == snapshot


def test_new_session_restores_to_itself() -> None:
    snapshot = Stage("open", is_ready=False).session.snapshot()
    assert Session.restore(json.loads(json.dumps(snapshot))).snapshot() == snapshot


def test_restored_session_shares_nothing_with_the_first() -> None:
    stage = busy_stage()
    snapshot = stage.session.snapshot()
    before = json.dumps(snapshot)
    other = Session.restore(snapshot)
    other.handle(ev.BackendDied("gone"), stage.now)
    other.handle(ev.Take("ann"), stage.now)
    assert json.dumps(snapshot) == before
    assert stage.session.snapshot() == snapshot


def test_restored_session_goes_on_as_the_first() -> None:
    stage = busy_stage()
    other = Session.restore(stage.session.snapshot())
    asking = stage.session.running()[0].id
    events = [
        ev.Submit(
            "g-1",
            "client-of-g-1",
            "m1",
            "execute_request",
            stage.op("o1").input_class,
            True,
            digest="sha:first",
        ),
        ev.Submit(
            "g-1", "x", "m9", "execute_request", stage.op("o1").input_class, True, digest="x", request_id="r1"
        ),
        ev.Submit("g-1", "client-of-g-1", "m10", "execute_request", stage.op("o1").input_class, True),
        ev.Answer("bob"),
        ev.Replied(asking, "error"),
        ev.Idle(asking),
        ev.HandBack("bob"),
        ev.Revoke("ann", "1"),
        ev.BackendDied("gone"),
    ]
    for number, event in enumerate(events):
        now = stage.now + number
        assert stage.session.handle(event, now) == other.handle(event, now)
        assert stage.session.next_timer() == other.next_timer()
    assert stage.session.snapshot() == other.snapshot()

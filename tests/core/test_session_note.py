"""A note: an attributed entry of the record, which is no input."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.interaction import MAX_NOTE_CHARACTERS
from tests.core.stage import Stage


def stage(policy: str = "open") -> Stage:
    made = Stage(policy)  # type: ignore[arg-type]
    for actor in ("ann", "bob", "bot", "eve"):
        made.attach(actor)
    return made


@pytest.mark.parametrize("policy", ["open", "turns", "readonly"])
def test_peer_writes_into_the_record_under_every_policy(policy: str) -> None:
    session = stage(policy)
    effects = session.do(ev.Note("bot", "checked"))
    entry = effects.entry("note")
    assert entry.actor is not None
    assert (entry.actor.id, entry.data, entry.basis, entry.durable) == (
        "bot",
        {"text": "checked"},
        "reported",
        True,
    )
    assert effects.entries == ["note"]


def test_note_needs_no_floor_and_takes_none() -> None:
    session = stage("turns")
    session.do(ev.Take("bob"))
    generation = session.session.floor.generation
    assert session.do(ev.Note("bot", "a remark")).code is None
    assert session.session.floor.driver == "bob"
    assert session.session.floor.generation == generation


def test_observer_writes_nothing() -> None:
    effects = stage().do(ev.Note("eve", "x"))
    assert effects.code == "read_only"
    assert effects.entries == ["refused"]
    assert effects.refusal is not None
    assert effects.refusal.next


def test_note_of_a_connection_that_has_ended() -> None:
    session = stage()
    session.do(ev.Detach("bot"))
    assert session.do(ev.Note("bot", "x")).code == "revoked"


def test_note_has_a_limit() -> None:
    session = stage()
    assert session.do(ev.Note("bot", "x" * MAX_NOTE_CHARACTERS)).code is None
    effects = session.do(ev.Note("bot", "x" * (MAX_NOTE_CHARACTERS + 1)))
    assert effects.code == "too_large"
    assert not effects.of(fx.Announce)

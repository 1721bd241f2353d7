"""The same thing sent twice is done once."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.policy import InputClass
from tests.core.stage import Effects, Stage


def repeated(effects: Effects) -> str | None:
    return next((effect.operation for effect in effects.of(fx.Duplicate)), None)


# ---------------------------------------------------------------------- message ids


def test_same_message_with_same_content_is_a_duplicate() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    first = stage.run(bot, "x", msg_id="m").admitted
    assert repeated(stage.run(bot, "x", msg_id="m")) == first
    stage.finish(first)
    again = stage.run(bot, "x", msg_id="m")
    assert repeated(again) == first
    assert again.entries == ["duplicate"]


def test_same_message_id_with_other_content_is_a_new_operation() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    first = stage.run(bot, "x", msg_id="m").admitted
    stage.finish(first)
    assert stage.run(bot, "y", msg_id="m").admitted != first


def test_first_content_of_a_message_id_is_remembered_beside_the_second() -> None:
    """A client that resends x, y, x under one id: the second x was taken for new, and ran again."""
    stage = Stage("open")
    bot = stage.attach("bot")
    first = stage.run(bot, "x", msg_id="m").admitted
    stage.finish(first)
    second = stage.run(bot, "y", msg_id="m").admitted
    stage.finish(second)
    assert repeated(stage.run(bot, "x", msg_id="m")) == first
    assert repeated(stage.run(bot, "y", msg_id="m")) == second


def test_message_id_in_use_with_other_content_is_a_conflict() -> None:
    """What the backend says of that id could not be told apart."""
    stage = Stage("open")
    bot = stage.attach("bot")
    stage.run(bot, "x", msg_id="m")
    assert stage.run(bot, "y", msg_id="m").code == "request_id_conflict"


@pytest.mark.parametrize("other", [{"client": "another"}, {"msg_id": "another"}])
def test_other_client_or_other_message_is_new(other: dict[str, str]) -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    same = {"client": "c", "msg_id": "m"}
    first = stage.run(bot, "x", **same).admitted
    assert stage.run(bot, "x", **{**same, **other}).admitted != first


def test_same_message_through_another_credential_is_new() -> None:
    stage = Stage("open")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    first = stage.run(bot, "x", client="c", msg_id="m").admitted
    assert stage.run(bob, "x", client="c", msg_id="m").admitted != first


def test_duplicate_is_answered_after_the_floor_was_lost() -> None:
    """It asks for a result and not for the floor."""
    stage = Stage("turns")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    first = stage.run(bot, "x", msg_id="m").admitted
    stage.do(ev.Take(bob))
    assert repeated(stage.run(bot, "x", msg_id="m", composed_before=True)) == first
    assert stage.run(bot, "y").code == "stale_generation", "and it does not count as told"


def test_what_is_no_operation_is_not_compared() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    assert stage.move_slider(bot, msg_id="m").of(fx.Forward)
    assert stage.move_slider(bot, msg_id="m").of(fx.Forward)


# ---------------------------------------------------------------------- request ids


def test_request_id_runs_once_for_one_actor_whatever_the_connection() -> None:
    stage = Stage("open")
    first = stage.run(stage.act_as("bot"), "x", request_id="r").admitted
    again = stage.run(stage.act_as("bot"), "x", request_id="r")
    assert repeated(again) == first
    assert again.entry("duplicate").request_id == "r"


def test_request_id_of_another_actor_is_another() -> None:
    stage = Stage("open")
    first = stage.run(stage.attach("bot"), "x", request_id="r").admitted
    assert stage.run(stage.attach("bob"), "x", request_id="r").admitted != first


def test_request_id_with_other_content_is_a_conflict_for_ever() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    first = stage.run(bot, "x", request_id="r").admitted
    refusal = stage.run(bot, "y", request_id="r").refusal
    assert refusal is not None
    assert refusal.code == "request_id_conflict"
    assert first in refusal.message
    stage.finish(first)
    assert stage.run(bot, "y", request_id="r").code == "request_id_conflict"


@pytest.mark.parametrize("outcome", ["error", "withdrawn", "superseded", "aborted", "unknown"])
def test_request_that_did_not_succeed_is_not_run_again(outcome: str) -> None:
    stage = Stage("open")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    if outcome in ("withdrawn", "superseded", "aborted"):
        stage.run(ann)
    first = stage.run(bot, "x", request_id="r").admitted
    if outcome == "error":
        stage.finish(first, "error")
    elif outcome == "withdrawn":
        stage.do(ev.Interrupt(bot))
    elif outcome == "superseded":
        stage.do(ev.Take(ann))
    else:
        stage.do(ev.BackendDied("gone"))
    assert stage.op(first).outcome == outcome
    assert repeated(stage.run(bot, "x", request_id="r")) == first


def test_request_that_only_the_journal_remembers_is_a_duplicate() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    prior = ev.Prior("o17", "sha:x")
    assert repeated(stage.run(bot, "x", request_id="r", prior=prior)) == "o17"
    assert stage.run(bot, "y", request_id="r", prior=prior).code == "request_id_conflict"


def test_session_knows_better_than_the_journal() -> None:
    """An entry that is not committed yet cannot be found there."""
    stage = Stage("open")
    bot = stage.attach("bot")
    first = stage.run(bot, "x", request_id="r").admitted
    assert repeated(stage.run(bot, "x", request_id="r", prior=ev.Prior("o0", "sha:other"))) == first


def test_refused_request_id_is_free_for_the_next_try() -> None:
    stage = Stage("turns")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    stage.do(ev.Take(bob))
    assert stage.run(bot, "x", request_id="r").code == "not_driver"
    stage.do(ev.Release(bob))
    assert stage.run(bot, "x", request_id="r").admitted


def test_silent_execute_with_a_request_id_runs_once() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    fields = {"executes": True, "digest": "d", "request_id": "r"}
    first = stage.send(bot, "execute_request", InputClass.IMPLICIT, **fields).admitted
    assert repeated(stage.send(bot, "execute_request", InputClass.IMPLICIT, **fields)) == first

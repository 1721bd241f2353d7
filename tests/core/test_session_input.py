"""Which input is let in, under which policy, and with which rights."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import admission, state
from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.admission import MAX_QUEUED_BYTES, MAX_QUEUED_OPERATIONS
from jupyter_cmdop.core.grants import Attachment
from jupyter_cmdop.core.policy import POLICIES, InputClass
from jupyter_cmdop.core.session import Session
from tests.core.stage import ACTORS, Stage


def test_policy_of_a_session_is_one_that_exists() -> None:
    with pytest.raises(ValueError, match="policy must be one of"):
        Session(owner=ACTORS["ann"], policy="chaos")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- turns


def test_free_floor_is_claimed_by_first_explicit_input_under_turns() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    effects = stage.run(bot)
    assert stage.floor == ("held", "bot")
    assert stage.generation == 1
    assert effects.entries == ["claimed", "admitted", "delivered"]
    assert effects.delivered == [effects.admitted]


def test_cell_is_on_disk_before_it_is_delivered_and_implicit_input_is_recorded() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    assert stage.run(bot).entry("admitted").durable
    assert not stage.silent(bot).entry("admitted").durable
    assert not stage.move_slider(bot).entry("input").durable


def test_other_input_is_refused_while_somebody_drives_under_turns() -> None:
    stage = Stage("turns")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    stage.run(bot)
    refusal = stage.run(bob).refusal
    assert refusal is not None
    assert (refusal.code, refusal.driver, refusal.since) == ("not_driver", "bot", stage.now)
    assert (refusal.generation, refusal.next) == (1, ("take", "wait"))
    assert stage.move_slider(bob).code == "not_driver"
    assert stage.silent(bob).code == "not_driver"


def test_implicit_input_passes_on_a_free_floor_and_does_not_claim_it() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    forwarded = stage.move_slider(bot)
    assert forwarded.entries == ["input"]
    assert [type(effect) for effect in forwarded] == [fx.Record, fx.Forward]
    assert stage.silent(bot).code is None
    assert stage.floor == ("free", None)


def test_implicit_input_of_the_driver_renews_his_lease() -> None:
    stage = Stage("turns")
    bot = stage.act_as("bot")
    stage.do(ev.Take(bot, lease_seconds=10))
    stage.wait(9)
    stage.move_slider(bot)
    stage.wait(9)
    assert stage.floor == ("held", "bot")


def test_explicit_input_that_is_no_operation_is_recorded_and_claims() -> None:
    """Keys of a terminal will be such: they reach the backend at once, and their entry is on disk before."""
    stage = Stage("turns")
    effects = stage.send(stage.attach("bot"), "keys", InputClass.EXPLICIT)
    assert effects.entries == ["claimed", "input"]
    assert effects.entry("input").durable
    assert effects.of(fx.Forward) == [fx.Forward(1)]


# ---------------------------------------------------------------------- open


def test_anybody_may_input_under_open_and_nobody_drives() -> None:
    stage = Stage("open")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    first, second = stage.run(bot), stage.run(bob)
    assert stage.floor == ("free", None)
    assert (first.delivered, second.delivered) == ([first.admitted], [])
    assert stage.move_slider(bob).of(fx.Forward), "a widget is never behind the execute queue"


def test_taken_floor_under_open_is_as_turns_until_it_is_released() -> None:
    stage = Stage("open")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    stage.do(ev.Take(bot))
    assert stage.run(bob).code == "not_driver"
    assert stage.move_slider(bob).code == "not_driver"
    stage.do(ev.Release(bot))
    assert stage.run(bob).code is None


def test_stale_driver_under_open_yields_to_input_and_the_floor_is_free() -> None:
    stage = Stage("open")
    bot, bob = stage.act_as("bot"), stage.attach("bob")
    stage.do(ev.Take(bot))
    stage.wait(121)
    assert stage.floor == ("stale", "bot")
    assert stage.move_slider(bob).code == "not_driver", "implicit input does not end a hold"
    effects = stage.run(bob)
    assert effects.code is None
    assert effects.entry("freed").actor == ACTORS["bob"]
    assert stage.floor == ("free", None)


# ---------------------------------------------------------------------- readonly


def test_nobody_may_input_under_readonly_and_everybody_may_look() -> None:
    stage = Stage("readonly")
    ann, bot, eve = stage.attach("ann"), stage.attach("bot"), stage.attach("eve")
    for attachment in (ann, bot):
        assert stage.run(attachment).code == "read_only"
        assert stage.move_slider(attachment).code == "read_only"
        assert stage.complete(attachment).of(fx.Forward)
    assert stage.look(eve).of(fx.Forward)


def test_floor_cannot_be_taken_under_readonly() -> None:
    stage = Stage("readonly")
    assert stage.do(ev.Take(stage.attach("ann"))).code == "read_only"


# ---------------------------------------------------------------------- rights


@pytest.mark.parametrize("policy", POLICIES)
def test_observer_looks_and_is_refused_everything_else(policy: str) -> None:
    stage = Stage("turns")
    ann, eve = stage.attach("ann"), stage.attach("eve")
    operation = stage.run(ann).admitted
    stage.ask(operation)
    stage.do(ev.SetPolicy(ann, policy))  # type: ignore[arg-type]
    before = stage.session.snapshot()
    refused = [
        stage.run(eve),
        stage.silent(eve),
        stage.move_slider(eve),
        stage.complete(eve),
        stage.do(ev.Take(eve)),
        stage.do(ev.HandBack(eve)),
        stage.do(ev.Release(eve)),
        stage.do(ev.SetPolicy(eve, "open")),
        stage.do(ev.Interrupt(eve)),
        stage.do(ev.Interrupt(eve, operation)),
        stage.do(ev.Answer(eve)),
        stage.do(ev.Lifecycle(eve, "close", force=True)),
        stage.do(ev.Lifecycle(eve, "restart")),
        stage.do(ev.Lifecycle(eve, "rename", "x")),
        stage.do(ev.Revoke(eve, "nothing")),
    ]
    assert all([type(effect) for effect in effects] == [fx.Record, fx.Reject] for effects in refused)
    assert {effects.code for effects in refused} == {"read_only", "forbidden", "unknown_grant"}
    assert stage.session.snapshot() == before
    assert stage.look(eve).of(fx.Forward)


def test_looking_is_not_recorded() -> None:
    stage = Stage("turns")
    assert stage.look(stage.attach("eve")).entries == []


def test_input_of_a_connection_that_has_ended_is_refused() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    stage.do(ev.Detach(bot))
    for event in (ev.Take(bot), ev.HandBack(bot), ev.Release(bot), ev.Interrupt(bot), ev.Answer(bot)):
        assert stage.do(event).code == "revoked"
    for later in (ev.SetPolicy(bot, "open"), ev.Revoke(bot, "x"), ev.Lifecycle(bot, "close")):
        assert stage.do(later).code == "revoked"
    refused = stage.run(bot)
    assert refused.code == "revoked"
    assert refused.entry("refused").attachment == bot, "whose it was is not known any more, which it was is"


def test_entries_name_the_way_in() -> None:
    """Who, through which connection, with which grant, from below what: answered by each entry itself."""
    stage = Stage("turns")
    ann = stage.attach("ann")
    grant = stage.invite("bot", "1", by=ann)
    below = stage.attach("bob", "below", via="o7", persistent=False, client="make")
    for attachment, expected in ((grant, ("g-1", "1", None)), (below, ("below", None, "o7"))):
        effects = stage.do(ev.Take(attachment))
        effects += stage.run(attachment)
        effects += stage.do(ev.Interrupt(attachment))
        for record in effects.of(fx.Record):
            if record.type in ("taken", "admitted", "interrupted"):
                assert (record.attachment, record.grant, record.via) == expected
    assert effects.entry("taken").data["client"] == "make", "it has no entry `attached` that says so"
    assert stage.do(ev.Release(below)).entry("released").attachment == "below"


# ---------------------------------------------------------------------- the backend


def test_input_waits_for_the_backend_and_goes_out_when_it_is_ready() -> None:
    stage = Stage("open", is_ready=False)
    bot = stage.attach("bot")
    effects = stage.run(bot)
    assert effects.delivered == []
    assert stage.do(ev.BackendReady(1)).delivered == [effects.admitted]


@pytest.mark.parametrize("is_closed", [False, True])
def test_input_for_a_backend_that_is_gone_is_refused(is_closed: bool) -> None:
    stage = Stage("open")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.do(ev.Lifecycle(ann, "close") if is_closed else ev.BackendDied("oom", will_restart=False))
    assert stage.run(bot).code == "backend_lost"
    assert stage.look(bot).code == "backend_lost"


# ---------------------------------------------------------------------- busy and full


def test_run_that_would_wait_can_ask_to_be_refused() -> None:
    stage = Stage("open")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    first = stage.run(bot, if_busy="refuse").admitted
    stage.now += 5
    refusal = stage.run(bob, if_busy="refuse").refusal
    assert refusal is not None
    assert (refusal.code, refusal.since) == ("busy", stage.op(first).since)
    assert first in refusal.message
    assert stage.run(bob, if_busy="refuse", lane="sub").code is None, "another lane is another matter"


def test_run_that_would_wait_for_a_queue_is_busy_too() -> None:
    stage = Stage("open", is_ready=False)
    bot = stage.attach("bot")
    stage.run(bot)
    assert stage.run(bot, if_busy="refuse").code == "busy"


def test_queue_is_full_at_1024_operations_of_one_actor_and_open_to_others() -> None:
    session = Session(owner=ACTORS["ann"], policy="open")
    for name in ("bot", "bob"):
        session.handle(ev.Attach(Attachment(name, ACTORS[name], "peer", "link")), 0.0)
    for n in range(MAX_QUEUED_OPERATIONS):
        session.handle(cell("bot", n), 0.0)
    effects = session.handle(cell("bot", -1), 0.0)
    assert isinstance(effects[-1], fx.Reject)
    assert effects[-1].refusal.code == "queue_full"
    assert any(isinstance(effect, fx.Admitted) for effect in session.handle(cell("bob", 0), 0.0))
    assert MAX_QUEUED_OPERATIONS == 1024


def cell(attachment: str, number: int) -> ev.Submit:
    return ev.Submit(attachment, "s", f"m{number}", "execute_request", InputClass.EXPLICIT, True)


def test_queue_is_full_at_64_mib_of_one_actor() -> None:
    stage = Stage("open", is_ready=False)
    bot, bob = stage.attach("bot"), stage.attach("bob")
    half = MAX_QUEUED_BYTES // 2
    assert stage.run(bot, size=half).code is None
    assert stage.run(bot, size=half).code is None
    assert stage.run(bot, size=1).code == "queue_full"
    assert stage.run(bob, size=half).code is None
    assert MAX_QUEUED_BYTES == 64 * 2**20


def test_what_runs_does_not_count_as_waiting() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    stage.run(bot, size=MAX_QUEUED_BYTES)
    assert stage.run(bot, size=MAX_QUEUED_BYTES).code is None


def test_input_that_can_never_fit_is_too_large() -> None:
    """It was refused as `queue_full`, "0 operations waiting": waiting would never have helped."""
    stage = Stage("open")
    assert stage.run(stage.attach("bot"), size=MAX_QUEUED_BYTES + 1).code == "too_large"


# ---------------------------------------------------------------------- bounds of memory


def test_ended_operations_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "REMEMBERED_OPERATIONS", 10)
    stage = Stage("open")
    bot = stage.attach("bot")
    first = stage.run(bot, "first", msg_id="first", request_id="r").admitted
    for _ in range(20):
        stage.finish(stage.session.running()[0].id)
        stage.run(bot)
    assert len(stage.session.operations) == 10
    assert first not in stage.session.operations
    assert stage.session.of_message((bot, f"client-of-{bot}"), "first") == {}
    assert stage.session.of_request("bot", "r") is None


def test_operations_that_have_not_ended_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "REMEMBERED_OPERATIONS", 10)
    stage = Stage("open")
    bot = stage.attach("bot")
    waiting = [stage.run(bot).admitted for _ in range(30)]
    assert list(stage.session.operations) == waiting
    assert stage.finish_all() == waiting


def test_client_sessions_of_one_attachment_are_bounded() -> None:
    stage = Stage("turns")
    ann, bob = stage.attach("ann"), stage.attach("bob")
    for n in range(state.REMEMBERED_CONNECTIONS * 2):
        stage.finish(stage.run(ann, client=f"c{n}").admitted)
    assert len(stage.session.connections[ann]) == state.REMEMBERED_CONNECTIONS
    stage.do(ev.Take(bob))
    stage.do(ev.Release(bob))
    assert len(stage.session.lost) == state.REMEMBERED_CONNECTIONS
    for n in range(state.REMEMBERED_CONNECTIONS * 2):
        stage.look(ann)
        stage.send(ann, "comm_msg", InputClass.IMPLICIT, client=f"d{n}")
    assert len(stage.session.lost) == 0, "a connection that is forgotten cannot be told any more"


def test_connections_that_cannot_come_back_are_forgotten() -> None:
    stage = Stage("turns")
    bob = stage.attach("bob")
    for _ in range(100):
        call = stage.act_as("bot")
        stage.do(ev.Take(call))
        stage.finish(stage.run(call, act=True).admitted)
        stage.do(ev.Take(bob))
        stage.do(ev.Detach(call))
    assert stage.session.connections == {}
    assert stage.session.lost == {}
    assert set(stage.session.attachments) == {bob}


def test_lane_of_a_subshell_exists_while_something_is_in_it() -> None:
    stage = Stage("open", is_ready=False)
    bot = stage.attach("bot")
    operation = stage.run(bot, lane="sub").admitted
    assert set(stage.session.lanes) == {"", "sub"}
    stage.do(ev.Interrupt(bot, operation))
    assert set(stage.session.lanes) == {""}
    stage.do(ev.BackendReady(1))
    stage.finish(stage.run(bot, lane="sub").admitted)
    assert set(stage.session.lanes) == {""}


def test_limits_are_those_of_the_admission_rules() -> None:
    assert admission.MAX_QUEUED_OPERATIONS < state.REMEMBERED_OPERATIONS

"""How long the floor is held: signs of life, leases of acts, work in progress; and those who lost it."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.floor import FloorState
from jupyter_cmdop.core.policy import InputClass
from jupyter_cmdop.core.state import REMEMBERED_AWAY
from tests.core.stage import ACTORS, Stage

# ---------------------------------------------------------------------- coming and going


def test_persistent_attachment_is_recorded_and_announced() -> None:
    stage = Stage("open")
    bot = stage.attach("bot", client="console")
    entry = stage.do(ev.Detach(bot, "gone")).entry("detached")
    assert (entry.actor, entry.attachment, entry.data) == (ACTORS["bot"], "bot", {"reason": "gone"})


def test_call_of_the_command_line_is_no_presence() -> None:
    stage = Stage("turns")
    call = stage.act_as("bot")
    assert stage.do(ev.Alive(call)) == []
    assert stage.do(ev.Detach(call)) == []


def test_attaching_twice_is_a_bug_of_the_caller() -> None:
    stage = Stage("open")
    stage.attach("bot")
    with pytest.raises(AssertionError, match="attached already"):
        stage.attach("bot")


def test_unknown_attachments_may_go_and_live() -> None:
    stage = Stage("open")
    assert stage.do(ev.Detach("nobody")) == []
    assert stage.do(ev.Alive("nobody")) == []


# ---------------------------------------------------------------------- signs of life


def test_driver_is_stale_without_a_sign_of_life_for_30_seconds() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    stage.finish(stage.run(bot).admitted)
    for _ in range(10):
        stage.wait(25)
        stage.do(ev.Alive(bot))
    assert stage.floor == ("held", "bot")
    effects = stage.wait(31)
    assert effects.entries == ["stale"]
    assert stage.floor == ("stale", "bot")
    assert not effects.of(fx.Fence), "nobody's right has changed"


def test_driver_is_stale_when_his_last_attachment_breaks_and_no_act_is_in_its_lease() -> None:
    stage = Stage("turns")
    bot, second = stage.attach("bot"), stage.attach("bot", "second")
    stage.finish(stage.run(bot).admitted)
    stage.wait(29)
    stage.do(ev.Alive(second))
    stage.wait(2)
    stage.do(ev.Detach(bot))
    assert stage.floor == ("held", "bot")
    stage.do(ev.Detach(second))
    assert stage.floor == ("stale", "bot")


def test_call_that_is_going_on_does_not_keep_its_driver_present() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    stage.act_as("bot")
    stage.finish(stage.run(bot).admitted)
    stage.wait(29)
    stage.do(ev.Alive(bot))
    stage.wait(2)
    stage.do(ev.Detach(bot))
    assert stage.floor == ("stale", "bot")


def test_late_timer_does_not_matter() -> None:
    """The next event brings about what time has."""
    stage = Stage("turns")
    bot, bob = stage.attach("bot"), stage.attach("bob")
    stage.finish(stage.run(bot).admitted)
    stage.now += 1000
    assert stage.run(bob).entries == ["stale", "claimed", "admitted", "delivered"]


# ---------------------------------------------------------------------- acts


def test_take_holds_the_lease_for_120_seconds() -> None:
    stage = Stage("turns")
    stage.do(ev.Take(stage.act_as("bot")))
    stage.wait(119)
    assert stage.floor == ("held", "bot")
    stage.wait(2)
    assert stage.floor == ("stale", "bot")


@pytest.mark.parametrize(("asked", "held"), [(5.0, 5), (300.0, 300), (600.0, 600), (86_400.0, 600)])
def test_lease_can_be_asked_for_up_to_600_seconds(asked: float, held: int) -> None:
    stage = Stage("turns")
    stage.do(ev.Take(stage.act_as("bot"), lease_seconds=asked))
    stage.wait(held - 1)
    assert stage.floor == ("held", "bot")
    stage.wait(2)
    assert stage.floor == ("stale", "bot")


def test_run_as_an_act_holds_the_lease_for_120_seconds_after_it_ended() -> None:
    """A running operation renews the lease; a cell of ten minutes left its author 30 s to think."""
    stage = Stage("turns")
    operation = stage.run(stage.act_as("bot"), act=True).admitted
    stage.wait(600)
    assert stage.floor == ("held", "bot")
    stage.finish(operation)
    stage.wait(119)
    assert stage.floor == ("held", "bot")
    stage.wait(2)
    assert stage.floor == ("stale", "bot")


def test_send_as_an_act_holds_it_for_120_seconds_whatever_it_came_through() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    stage.send(bot, "keys", InputClass.EXPLICIT, act=True)
    stage.do(ev.Detach(bot))
    stage.wait(119)
    assert stage.floor == ("held", "bot")
    stage.wait(2)
    assert stage.floor == ("stale", "bot")


def test_run_of_a_kernel_client_holds_it_for_30_seconds_after_it_ended() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    operation = stage.run(bot).admitted
    stage.do(ev.Detach(bot))
    stage.wait(600)
    stage.finish(operation)
    stage.wait(29)
    assert stage.floor == ("held", "bot")
    stage.wait(2)
    assert stage.floor == ("stale", "bot")


def test_driver_whose_work_is_lost_keeps_the_lease_of_its_end() -> None:
    """It ended with the backend, long after the lease of its submission: he was stale in that moment."""
    stage = Stage("turns")
    stage.run(stage.act_as("bot"), act=True)
    stage.wait(600)
    stage.do(ev.BackendDied("oom"))
    assert stage.floor == ("held", "bot")
    stage.wait(121)
    assert stage.floor == ("stale", "bot")


def test_busy_driver_never_lapses() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    stage.run(bot)
    stage.do(ev.Detach(bot))
    assert stage.session.next_timer() is None
    stage.wait(1e6)
    assert stage.floor == ("held", "bot")


def test_driver_whose_work_waits_for_the_backend_never_lapses() -> None:
    stage = Stage("turns", is_ready=False)
    bot = stage.attach("bot")
    stage.run(bot)
    stage.wait(1e6)
    assert stage.floor == ("held", "bot")


def test_adopter_of_what_runs_is_busy_with_it() -> None:
    stage = Stage("turns")
    ann, bot = stage.act_as("ann"), stage.attach("bot")
    first, second = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.Take(ann, queue="adopt"))
    stage.finish(first)
    stage.wait(1e4)
    assert stage.floor == ("held", "ann")
    stage.finish(second)
    stage.wait(31)
    assert stage.floor == ("stale", "ann")


def test_author_of_what_runs_is_busy_with_it_though_another_had_adopted_it() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.act_as("bot")
    first, second = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.Take(ann, queue="adopt"))
    stage.finish(first)
    stage.do(ev.Take(bot))
    stage.wait(1e4)
    assert stage.floor == ("held", "bot")
    stage.finish(second)
    stage.wait(31)
    assert stage.floor == ("stale", "bot")


# ---------------------------------------------------------------------- stale


def stale_stage() -> tuple[Stage, str, str]:
    """bot is stale since now; he drove through a call, and bob is here."""
    stage = Stage("turns")
    bot, bob = stage.act_as("bot"), stage.attach("bob")
    stage.do(ev.Take(bot))
    stage.wait(120)
    assert stage.floor == ("stale", "bot")
    return stage, bot, bob


def test_stale_driver_resumes_within_60_seconds_under_the_same_generation() -> None:
    stage, bot, _ = stale_stage()
    stage.wait(59)
    effects = stage.run(bot, generation=1)
    assert effects.entries == ["resumed", "admitted", "delivered"]
    assert (stage.floor, stage.generation) == (("held", "bot"), 1)


def test_stale_floor_is_free_after_60_seconds() -> None:
    stage, _, _ = stale_stage()
    effects = stage.wait(60)
    assert effects.entries == ["freed"]
    assert effects.of(fx.Tell) == [fx.Tell("bot", None, "the stale driver did not return", 2)]
    assert stage.floor == ("free", None)


def test_stale_floor_is_claimed_by_explicit_input_of_another() -> None:
    stage, _, bob = stale_stage()
    assert stage.move_slider(bob).code == "not_driver"
    assert stage.run(bob).code is None
    assert (stage.floor, stage.generation) == (("held", "bob"), 2)


@pytest.mark.parametrize(
    "how", ["attach", "alive", "slider", "take", "interrupt", "answer", "policy", "invite"]
)
def test_stale_driver_resumes_by_any_act_or_sign_of_life(how: str) -> None:
    """Interrupting and answering extended the lease of a driver who stayed stale."""
    stage = Stage("turns")
    quiet = stage.attach("ann")
    call = stage.act_as("ann")
    bob = stage.attach("bob")
    operation = stage.run(bob).admitted
    stage.ask(operation)
    stage.do(ev.Take(call))
    stage.wait(120)
    assert stage.floor == ("stale", "ann")
    if how == "attach":
        stage.attach("ann", "another")
    elif how == "alive":
        stage.do(ev.Alive(quiet))
    elif how == "slider":
        stage.move_slider(call)
    elif how == "take":
        stage.do(ev.Take(call))
    elif how == "interrupt":
        stage.do(ev.Interrupt(call))
    elif how == "answer":
        stage.do(ev.Answer(call))
    elif how == "policy":
        stage.do(ev.SetPolicy(call, "open"))
    else:
        stage.invite("bot", "1", by=call)
    assert stage.floor == ("held", "ann")
    assert stage.session.floor.driver == "ann"
    assert stage.generation == (3 if how == "policy" else 2)
    stage.wait(29)
    assert stage.floor == ("held", "ann")


@pytest.mark.parametrize("how", ["interrupt", "hand_back", "policy", "composed", "generation"])
def test_refused_act_does_not_resume(how: str) -> None:
    stage, bot, _ = stale_stage()
    if how == "interrupt":
        refused = stage.do(ev.Interrupt(bot, "o99"))
    elif how == "hand_back":
        refused = stage.do(ev.HandBack(bot, to="stranger"))
    elif how == "policy":
        refused = stage.do(ev.SetPolicy(bot, "open"))
    elif how == "composed":
        refused = stage.run(bot, composed_before=True)
    else:
        refused = stage.run(bot, generation=0)
    assert refused.code is not None
    assert stage.floor == ("stale", "bot")
    assert stage.session.next_timer() == stage.now + 60


def test_looking_is_no_sign_of_life() -> None:
    stage, bot, _ = stale_stage()
    stage.look(bot)
    stage.complete(bot)
    assert stage.floor == ("stale", "bot")


def test_peer_takes_from_a_stale_driver() -> None:
    stage, _, bob = stale_stage()
    assert stage.do(ev.Take(bob)).of(fx.Tell) == [fx.Tell("bot", "bob", "", 2)]


# ---------------------------------------------------------------------- told of the loss


def test_connection_that_lost_the_floor_is_told_once_before_it_may_claim_again() -> None:
    stage = Stage("turns")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    stage.run(bot)
    stage.do(ev.Take(bob, "mine"))
    told = stage.run(bot).refusal
    assert told is not None
    assert told.code == "stale_generation"
    assert "bob took over at generation 2 (mine)" in told.message
    assert (told.driver, told.generation, told.next) == ("bob", 2, ("take",))
    assert stage.run(bot).code == "not_driver"


@pytest.mark.parametrize(("policy", "advice"), [("turns", "run it again to drive"), ("open", "run it again")])
def test_connection_is_told_also_when_the_floor_is_free_by_then(policy: str, advice: str) -> None:
    stage = Stage(policy)  # type: ignore[arg-type]
    bob, bot = stage.attach("bob"), stage.attach("bot")
    stage.do(ev.Take(bot))
    stage.run(bot)
    stage.do(ev.Take(bob))
    stage.do(ev.Release(bob))
    told = stage.run(bot).refusal
    assert told is not None
    assert told.code == "stale_generation"
    assert told.message.endswith(f"bob took over at generation 2: {advice}")
    assert stage.run(bot).code is None


def test_each_connection_of_the_loser_is_told() -> None:
    stage = Stage("turns")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    for client in ("notebook", "console"):
        stage.finish(stage.run(bot, client=client).admitted)
    stage.do(ev.Take(bob))
    stage.do(ev.Release(bob))
    assert stage.run(bot, client="notebook").code == "stale_generation"
    assert stage.run(bot, client="notebook").code is None
    assert stage.run(bot, client="console").code == "stale_generation"
    assert stage.run(bot, client="new").code is None, "one that came later has lost nothing"


def test_connection_that_only_read_is_told_too() -> None:
    """It was there when the floor was lost, though its actor drove through another."""
    stage = Stage("turns")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    stage.complete(bot)
    stage.do(ev.Take(stage.act_as("bot")))
    stage.do(ev.Take(bob))
    stage.do(ev.Release(bob))
    assert stage.run(bot).code == "stale_generation"


def test_implicit_input_neither_is_told_nor_counts_as_told() -> None:
    stage = Stage("turns")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    stage.run(bot)
    stage.do(ev.Take(bob))
    assert stage.move_slider(bot).code == "not_driver"
    stage.do(ev.Release(bob))
    assert stage.move_slider(bot).code is None
    assert stage.run(bot).code == "stale_generation"


def test_loss_by_time_says_that_nobody_took_it() -> None:
    """It said "somebody else took over"."""
    stage = Stage("turns")
    ann = stage.attach("ann")
    grant = stage.invite("bot", "1", by=ann)
    stage.finish(stage.run(grant).admitted)
    stage.do(ev.Detach(grant))
    stage.wait(100)
    assert stage.floor == ("free", None)
    stage.attach("bot", grant, grant="1")
    told = stage.run(grant).refusal
    assert told is not None
    assert told.code == "stale_generation"
    assert told.message.startswith("the floor was lost at generation 2 (the stale driver did not return)")


@pytest.mark.parametrize("how", ["take", "hand_back"])
def test_actor_who_has_the_floor_again_on_purpose_knows(how: str) -> None:
    stage = Stage("turns")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    stage.run(bot)
    stage.do(ev.Take(bob))
    stage.do(ev.Take(stage.act_as("bot")) if how == "take" else ev.HandBack(bob))
    assert stage.session.floor.driver == "bot"
    assert stage.run(bot).code is None


def test_who_gave_the_floor_away_has_not_lost_it() -> None:
    stage = Stage("turns")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    stage.finish(stage.run(bob).admitted)
    stage.do(ev.HandBack(bob, to="bot"))
    stage.do(ev.Release(bot))
    assert stage.run(bob).code is None
    stage.do(ev.Release(bob))
    assert stage.run(bob).code is None


def test_input_composed_while_its_connection_was_away_is_refused() -> None:
    for policy in ("open", "turns"):
        stage = Stage(policy)  # type: ignore[arg-type]
        bot = stage.attach("bot")
        assert stage.run(bot, composed_before=True).code == "stale_generation"
        assert stage.floor == ("free", None)
        assert stage.run(bot).code is None


# ---------------------------------------------------------------------- timers


def test_timer_is_that_of_the_next_change() -> None:
    stage = Stage("turns")
    assert stage.session.next_timer() is None
    ann = stage.attach("ann")
    stage.invite("bot", "1", by=ann, expires=stage.now + 50)
    assert stage.session.next_timer() == stage.now + 50
    stage.do(ev.Take(ann, lease_seconds=40))
    assert stage.session.next_timer() == stage.now + 40
    assert stage.session.lease_until() == stage.now + 40
    stage.run(ann)
    assert stage.session.lease_until() is None, "while he works time changes nothing"
    assert stage.session.next_timer() == stage.now + 50


def test_timer_before_its_time_changes_nothing() -> None:
    stage = Stage("turns")
    stage.do(ev.Take(stage.act_as("bot")))
    before = stage.session.snapshot()
    assert stage.session.handle_timer(stage.now + 119.9) == []
    assert stage.session.snapshot() == before


def test_long_sleep_makes_stale_first_and_free_only_after_the_grace_time() -> None:
    """The host was suspended: the driver gets his minute from the moment in which anybody can tell."""
    stage = Stage("turns")
    stage.do(ev.Take(stage.act_as("bot")))
    stage.now += 86_400
    stage.session.handle_timer(stage.now)
    assert stage.session.floor.state is FloorState.STALE
    assert stage.session.next_timer() == stage.now + 60


# ---------------------------------------------------------------------- clients that were away


def test_a_client_that_was_away_when_its_floor_was_taken_is_told_when_it_returns() -> None:
    """A browser without network: somebody takes over and releases again; its next cell must not just run."""
    stage = Stage("turns")
    bob = stage.attach("bob", "w1", can_return=True)
    stage.finish(stage.run(bob).admitted)
    stage.do(ev.Detach(bob, "its network is gone"))
    ann = stage.attach("ann")
    stage.do(ev.Take(ann, "meanwhile"))
    stage.do(ev.Release(ann))
    stage.attach("bob", "w1", can_return=True)
    assert stage.run(bob).code == "stale_generation"
    assert stage.run(bob).code is None


def test_clients_that_may_return_are_forgotten_when_there_are_too_many() -> None:
    stage = Stage("open")
    for number in range(REMEMBERED_AWAY + 5):
        name = stage.attach("bob", f"w{number}", can_return=True)
        stage.finish(stage.run(name).admitted)
        stage.do(ev.Detach(name))
    assert len(stage.session.away) == REMEMBERED_AWAY
    assert "w0" not in stage.session.connections
    assert f"w{REMEMBERED_AWAY + 4}" in stage.session.connections

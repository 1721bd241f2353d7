"""How the floor moves between actors, and what that does to what is in flight."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.operations import Status
from tests.core.stage import ACTORS, Stage

# ---------------------------------------------------------------------- take


def test_take_supersedes_what_waits_and_lets_run_what_runs() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    running, *waiting = [stage.run(bot).admitted for _ in range(3)]
    effects = stage.do(ev.Take(ann, "demo now"))
    assert stage.floor == ("held", "ann")
    assert effects.ends == dict.fromkeys(waiting, "superseded")
    assert all(end.by == "ann" and end.reason == "demo now" for end in effects.of(fx.End))
    assert stage.op(running).status is Status.RUNNING
    assert not effects.of(fx.InterruptBackend, fx.RestartBackend)
    assert stage.finish(running).ends == {running: "ok"}


def test_take_tells_the_loser_by_whom_and_why() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.run(bot)
    effects = stage.do(ev.Take(ann, "demo now"))
    assert effects.of(fx.Tell) == [fx.Tell("bot", "ann", "demo now", 2)]
    entry = effects.entry("taken")
    assert (entry.actor, entry.durable) == (ACTORS["ann"], True)
    assert entry.data == {"from": "bot", "to": "ann", "reason": "demo now"}


def test_take_can_adopt_what_waits_and_both_authors_are_kept() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    running, waiting = (stage.run(bot).admitted for _ in range(2))
    effects = stage.do(ev.Take(ann, queue="adopt"))
    assert effects.ends == {}
    adopted = effects.entry("adopted")
    assert (adopted.operation, adopted.actor, adopted.data) == (waiting, ACTORS["ann"], {"author": "bot"})
    operation = stage.op(waiting)
    assert (operation.actor.id, operation.adopted_by, operation.holder) == ("bot", "ann", "ann")
    assert stage.finish(running).delivered == [waiting]
    assert operation.generation == stage.generation, "it is delivered under the adopter's generation"


def test_adopted_operations_are_the_adopters_to_lose() -> None:
    stage = Stage("turns")
    ann, bob, bot = stage.attach("ann"), stage.attach("bob"), stage.attach("bot")
    _, waiting = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.Take(ann, queue="adopt"))
    assert stage.do(ev.Take(bob)).ends == {waiting: "superseded"}


def test_take_can_interrupt_what_runs() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    running = stage.run(bot).admitted
    effects = stage.do(ev.Take(ann, running="interrupt"))
    assert effects.of(fx.InterruptBackend) == [fx.InterruptBackend(running)]
    assert stage.finish(running, "error").ends == {running: "interrupted"}
    assert stage.op(running).interrupted_by == "ann"


def test_driver_who_takes_again_can_interrupt_what_the_one_before_left_running() -> None:
    """The choice `running=interrupt` was ignored when the taker had the floor already."""
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    running = stage.run(bot).admitted
    stage.do(ev.Take(ann))
    effects = stage.do(ev.Take(ann, running="interrupt"))
    assert effects.of(fx.InterruptBackend) == [fx.InterruptBackend(running)]
    assert effects.entries == ["interrupted"]


def test_take_of_the_own_floor_renews_and_changes_nothing_else() -> None:
    stage = Stage("turns")
    bot = stage.act_as("bot")
    stage.do(ev.Take(bot))
    stage.wait(100)
    assert stage.do(ev.Take(bot)) == []
    stage.wait(100)
    assert stage.floor == ("held", "bot")
    assert stage.generation == 1


def test_take_needs_the_right() -> None:
    stage = Stage("turns")
    assert stage.do(ev.Take(stage.attach("eve"))).code == "forbidden"


@pytest.mark.parametrize("policy", ["open", "turns"])
def test_take_gives_the_floor_of_nobody_too(policy: str) -> None:
    stage = Stage(policy)  # type: ignore[arg-type]
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.silent(ann)
    waiting = stage.silent(ann).admitted
    effects = stage.do(ev.Take(bot))
    assert stage.floor == ("held", "bot")
    assert effects.ends == {waiting: "superseded"}
    assert not effects.of(fx.Tell), "nobody has lost it"


# ---------------------------------------------------------------------- hand back, release


def test_hand_back_gives_it_to_whom_he_has_it_from() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.run(bot)
    stage.do(ev.Take(ann))
    waiting = stage.run(ann).admitted
    effects = stage.do(ev.HandBack(ann, note="yours"))
    assert stage.floor == ("held", "bot")
    assert effects.entry("handed_back").data == {"from": "ann", "to": "bot", "reason": "yours"}
    assert effects.ends == {waiting: "superseded"}
    stage.do(ev.HandBack(bot))
    assert stage.floor == ("held", "ann")


def test_hand_back_to_somebody_named() -> None:
    stage = Stage("turns")
    ann, bob, bot = stage.attach("ann"), stage.attach("bob"), stage.attach("bot")
    stage.run(bot)
    stage.do(ev.Take(ann))
    stage.do(ev.HandBack(ann, to="bob"))
    assert stage.floor == ("held", "bob")
    assert stage.run(bob).code is None


def test_hand_back_to_nobody_gives_the_floor_up() -> None:
    """He claimed a free floor: he has it from nobody."""
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.do(ev.Take(bot))
    stage.do(ev.Release(bot))
    stage.run(ann)
    effects = stage.do(ev.HandBack(ann))
    assert effects.entries == ["released"]
    assert stage.floor == ("free", None)


def test_hand_back_to_somebody_who_has_left_for_good_gives_the_floor_up() -> None:
    stage = Stage("turns")
    ann, bob = stage.attach("ann"), stage.attach("bob")
    stage.run(bob)
    stage.do(ev.Take(ann))
    stage.do(ev.Detach(bob))
    assert stage.do(ev.HandBack(ann)).entries == ["released"]


@pytest.mark.parametrize("to", ["eve", "stranger"])
def test_hand_back_to_somebody_who_may_not_input_is_refused(to: str) -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    stage.attach("eve")
    stage.run(ann)
    assert stage.do(ev.HandBack(ann, to=to)).code == "forbidden"
    assert stage.floor == ("held", "ann")


def test_hand_back_to_somebody_who_is_not_here_now_but_has_a_grant() -> None:
    stage = Stage("turns")
    ann = stage.attach("ann")
    grant = stage.invite("bot", "1", by=ann)
    stage.do(ev.Detach(grant))
    stage.run(ann)
    stage.do(ev.HandBack(ann, to="bot"))
    assert stage.floor == ("held", "bot")
    stage.wait(119)
    assert stage.floor == ("held", "bot")
    stage.wait(2)
    assert stage.floor == ("stale", "bot")


def test_hand_back_to_the_owner_who_is_not_here() -> None:
    """The session is his: he needs no grant and no connection."""
    stage = Stage("turns")
    bot = stage.attach("bot")
    stage.run(bot)
    stage.do(ev.HandBack(bot, to="ann"))
    assert stage.floor == ("held", "ann")


def test_release_leaves_the_floor_to_nobody_and_the_queue_in_order() -> None:
    stage = Stage("turns")
    bot = stage.attach("bot")
    running, waiting = (stage.run(bot).admitted for _ in range(2))
    effects = stage.do(ev.Release(bot))
    assert stage.floor == ("free", None)
    assert effects.ends == {}
    assert stage.finish(running).delivered == [waiting]


@pytest.mark.parametrize("verb", [ev.HandBack, ev.Release])
def test_only_the_driver_gives_the_floor_away(verb: type[ev.HandBack | ev.Release]) -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    nobody = stage.do(verb(ann)).refusal
    assert nobody is not None
    assert (nobody.code, nobody.driver) == ("not_driver", None)
    stage.run(bot)
    refusal = stage.do(verb(ann)).refusal
    assert refusal is not None
    assert (refusal.code, refusal.driver, refusal.next) == ("not_driver", "bot", ("take",))


@pytest.mark.parametrize(
    "event", [ev.HandBack("ann", "bob"), ev.Release("ann"), ev.SetPolicy("ann", "readonly")]
)
def test_who_gives_the_floor_away_himself_is_not_told_of_a_loss(event: ev.Event) -> None:
    stage = Stage("turns")
    for actor in ("ann", "bob"):
        stage.attach(actor)
    stage.run("ann")
    assert stage.do(event).of(fx.Tell) == []
    assert stage.session.lost == {}


@pytest.mark.parametrize("verb", [ev.HandBack, ev.Release])
def test_stale_driver_can_give_the_floor_away(verb: type[ev.HandBack | ev.Release]) -> None:
    """Both raised, and ended the keeper: a driver through the command line becomes stale after 120 s."""
    stage = Stage("turns")
    bot = stage.act_as("bot")
    stage.do(ev.Take(bot))
    stage.wait(130)
    assert stage.floor == ("stale", "bot")
    assert stage.do(verb(bot)).entries == ["resumed", "released"]
    assert stage.floor == ("free", None)


def test_stale_driver_can_hand_the_floor_back() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.act_as("bot")
    stage.run(ann)
    stage.do(ev.Take(bot))
    stage.wait(130)
    assert stage.do(ev.HandBack(bot)).entries == ["resumed", "handed_back"]
    assert stage.floor == ("held", "ann")


# ---------------------------------------------------------------------- policy


def test_policy_change_is_an_entry_and_a_new_generation() -> None:
    stage = Stage("open")
    effects = stage.do(ev.SetPolicy(stage.attach("ann"), "turns"))
    assert stage.session.policy == "turns"
    entry = effects.entry("policy")
    assert (entry.actor, entry.data, entry.durable) == (ACTORS["ann"], {"from": "open", "to": "turns"}, True)
    assert effects.of(fx.Fence) == [fx.Fence(1)]


def test_setting_the_policy_in_force_changes_nothing() -> None:
    """It raised the generation, and so refused what everybody had composed."""
    stage = Stage("turns")
    assert stage.do(ev.SetPolicy(stage.attach("ann"), "turns")) == []


def test_policy_needs_the_right_and_must_exist() -> None:
    stage = Stage("open")
    assert stage.do(ev.SetPolicy(stage.attach("bot"), "turns")).code == "forbidden"
    assert stage.do(ev.SetPolicy(stage.attach("ann"), "approve")).code == "unsupported"  # type: ignore[arg-type]


def test_readonly_frees_the_floor_supersedes_what_waits_and_lets_run_what_runs() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    running, waiting = (stage.run(bot).admitted for _ in range(2))
    effects = stage.do(ev.SetPolicy(ann, "readonly"))
    assert stage.floor == ("free", None)
    assert effects.ends == {waiting: "superseded"}
    assert effects.of(fx.Tell) == [fx.Tell("bot", None, "policy readonly", stage.generation)]
    assert stage.do(ev.Interrupt(bot)).of(fx.InterruptBackend) == [fx.InterruptBackend(running)]


def test_readonly_is_left_by_a_holder_of_the_right() -> None:
    stage = Stage("readonly")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    assert stage.do(ev.SetPolicy(bot, "open")).code == "forbidden"
    stage.do(ev.SetPolicy(ann, "open"))
    assert stage.run(bot).code is None


def test_turns_gives_the_floor_to_whoever_runs_first() -> None:
    stage = Stage("open")
    ann, bob, bot = stage.attach("ann"), stage.attach("bob"), stage.attach("bot")
    stage.run(bot)
    own, other = stage.run(bot).admitted, stage.run(bob).admitted
    effects = stage.do(ev.SetPolicy(ann, "turns"))
    assert stage.floor == ("held", "bot")
    assert effects.ends == {other: "superseded"}
    assert stage.op(own).status is Status.QUEUED
    claimed = effects.entry("claimed")
    assert (claimed.actor, claimed.data["to"]) == (ACTORS["ann"], "bot"), "the change has its author"


def test_turns_gives_the_floor_to_nobody_who_may_not_input_any_more() -> None:
    """A cell goes on after its author's grant was revoked; the floor went to him."""
    stage = Stage("open")
    ann, bob = stage.attach("ann"), stage.attach("bob")
    stage.run(stage.invite("bot", "1", by=ann))
    stage.do(ev.Revoke(ann, "1"))
    waiting = stage.run(bob).admitted
    stage.do(ev.SetPolicy(ann, "turns"))
    assert stage.floor == ("held", "bob")
    assert stage.op(waiting).status is Status.QUEUED


def test_turns_gives_a_quiet_session_to_nobody() -> None:
    stage = Stage("open")
    ann = stage.attach("ann")
    stage.finish(stage.run(ann).admitted)
    stage.do(ev.SetPolicy(ann, "turns"))
    assert stage.floor == ("free", None)


def test_open_leaves_the_floor_with_its_driver() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.run(bot)
    stage.do(ev.SetPolicy(ann, "open"))
    assert stage.floor == ("held", "bot")


# ---------------------------------------------------------------------- generation


@pytest.mark.parametrize("policy", ["open", "turns"])
def test_generation_given_is_compared_while_somebody_drives(policy: str) -> None:
    stage = Stage(policy)  # type: ignore[arg-type]
    bot = stage.attach("bot")
    stage.do(ev.Take(bot))
    refusal = stage.run(bot, generation=0).refusal
    assert refusal is not None
    assert (refusal.code, refusal.generation) == ("stale_generation", 1)
    assert stage.run(bot, generation=1).code is None


def test_generation_given_is_compared_on_a_free_floor_under_turns_only() -> None:
    for policy, expected in (("open", None), ("turns", "stale_generation")):
        stage = Stage(policy)  # type: ignore[arg-type]
        bot = stage.attach("bot")
        stage.do(ev.Take(bot))
        stage.do(ev.Release(bot))
        assert stage.run(bot, generation=1).code == expected


def test_generation_given_fences_implicit_input_too() -> None:
    """The driver who lost the floor and has it again: what he sent in between is over."""
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.do(ev.Take(bot))
    stage.do(ev.Take(ann))
    stage.do(ev.Take(bot))
    assert stage.silent(bot, generation=1).code == "stale_generation"
    assert stage.move_slider(bot, generation=1).code == "stale_generation"
    assert stage.silent(bot, generation=3).code is None


def test_queue_is_delivered_under_the_generation_in_force() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    running, waiting = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.SetPolicy(ann, "open"))
    deliver = stage.finish(running).of(fx.Deliver)
    assert deliver == [fx.Deliver(waiting, "", 2)]


def test_adopted_work_is_its_authors_again_when_he_drives_again() -> None:
    stage = Stage("turns")
    bot, ann = stage.attach("bot"), stage.attach("ann")
    stage.run(bot, "1")
    waiting = stage.run(bot, "2").admitted
    stage.do(ev.Take(ann, queue="adopt"))
    assert stage.session.operations[waiting].holder == "ann"
    effects = stage.do(ev.HandBack(ann))
    assert waiting not in effects.ends, "it is not given back to somebody who drives"
    assert stage.session.operations[waiting].holder == "bot"

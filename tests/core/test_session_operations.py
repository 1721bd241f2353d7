"""One operation at a time a lane, in turn, each with one outcome; errors and interrupts hit their own only."""

from __future__ import annotations

from collections import Counter

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.operations import Status
from tests.core.stage import ACTORS, Stage

# ---------------------------------------------------------------------- order


def test_next_goes_out_after_idle_and_not_after_the_reply() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    first, second = (stage.run(bot).admitted for _ in range(2))
    assert stage.do(ev.Replied(first, "ok")) == []
    assert stage.do(ev.Idle(first)).delivered == [second]


def test_idle_may_come_before_the_reply() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    first, second = (stage.run(bot).admitted for _ in range(2))
    assert stage.do(ev.Idle(first, inferred=True)) == []
    assert stage.do(ev.Replied(first, "ok")).delivered == [second]


def test_actors_take_turns_and_each_keeps_his_order() -> None:
    stage = Stage("open")
    ann, bob, bot = stage.attach("ann"), stage.attach("bob"), stage.attach("bot")
    mine = {who: [stage.run(who).admitted for _ in range(n)] for who, n in ((ann, 6), (bob, 2), (bot, 3))}
    done = stage.finish_all()
    authors = [stage.op(name).actor.id for name in done]
    assert authors == ["ann", "bob", "bot", "ann", "bob", "bot", "ann", "bot", "ann", "ann", "ann"]
    assert Counter(authors) == {"ann": 6, "bob": 2, "bot": 3}
    for who, operations in mine.items():
        assert [name for name in done if stage.op(name).actor.id == who] == operations


def test_turn_of_what_was_adopted_is_its_adopters() -> None:
    stage = Stage("turns")
    ann, bob, bot = stage.attach("ann"), stage.attach("bob"), stage.attach("bot")
    first, second, third = (stage.run(bot).admitted for _ in range(3))
    stage.do(ev.Take(ann, queue="adopt"))
    stage.do(ev.SetPolicy(ann, "open"))
    stage.do(ev.Release(ann))
    other = stage.run(bob).admitted
    assert stage.finish_all() == [first, second, other, third], "ann had her turn with the second"


def test_lanes_run_beside_each_other() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    main, sub = stage.run(bot), stage.run(bot, lane="sub")
    assert main.delivered == [main.admitted]
    assert sub.delivered == [sub.admitted]
    assert stage.run(bot, lane="sub").delivered == []
    assert stage.finish(sub.admitted).of(fx.Deliver)[0].lane == "sub"


def test_late_words_of_the_backend_change_nothing() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    first, waiting = (stage.run(bot).admitted for _ in range(2))
    for event in (ev.Replied(waiting, "ok"), ev.Idle(waiting), ev.Prompted(waiting, "p", "", False)):
        assert stage.do(event) == []
    stage.finish(first)
    for event in (ev.Replied(first, "error"), ev.Idle(first), ev.Prompted(first, "p", "", False)):
        assert stage.do(event) == []
    for event in (ev.Replied("o99", "ok"), ev.Idle("o99"), ev.Prompted("o99", "p", "", False)):
        assert stage.do(event) == []
    assert stage.op(first).outcome == "ok"


def test_first_reply_counts() -> None:
    stage = Stage("open")
    first = stage.run(stage.attach("bot")).admitted
    stage.do(ev.Replied(first, "ok"))
    stage.do(ev.Replied(first, "error", "ValueError"))
    stage.do(ev.Idle(first))
    assert (stage.op(first).outcome, stage.op(first).error_name) == ("ok", None)


@pytest.mark.parametrize("status", ["ok", "error", "aborted"])
def test_outcome_is_what_the_backend_replied(status: str) -> None:
    stage = Stage("open")
    effects = stage.finish(stage.run(stage.attach("bot"), request_id="r").admitted, status)  # type: ignore[arg-type]
    (end,) = effects.of(fx.End)
    assert (end.outcome, end.delivered, end.by) == (status, True, None)
    entry = effects.entry("ended")
    assert (entry.actor, entry.request_id, entry.data) == (ACTORS["bot"], "r", {"outcome": status})


# ---------------------------------------------------------------------- errors


def test_error_aborts_only_what_the_same_client_session_queued_behind_it() -> None:
    stage = Stage("open")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    failing = stage.run(bot, client="notebook").admitted
    same = stage.run(bot, client="notebook").admitted
    other_client = stage.run(bot, client="console").admitted
    other_actor = stage.run(ann, client="notebook").admitted
    other_lane = stage.run(bot, client="notebook", lane="sub").admitted
    effects = stage.finish(failing, "error")
    assert effects.ends == {failing: "error", same: "aborted"}
    (aborted,) = [end for end in effects.of(fx.End) if end.operation == same]
    assert (aborted.delivered, aborted.reason) == (False, f"operation {failing} failed before it")
    assert all(stage.op(name).is_active for name in (other_client, other_actor, other_lane))


def test_error_aborts_only_what_waited_when_its_client_was_told() -> None:
    """A client that sends its next cell as soon as it has the error had it aborted: idle had not come yet."""
    stage = Stage("open")
    bot = stage.attach("bot")
    failing, behind = stage.run(bot).admitted, stage.run(bot).admitted
    stage.do(ev.Replied(failing, "error", "ValueError"))
    later = stage.run(bot).admitted
    effects = stage.do(ev.Idle(failing))
    assert effects.ends == {failing: "error", behind: "aborted"}
    assert effects.delivered == [later]


def test_what_was_withdrawn_before_the_error_took_effect_stays_withdrawn() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    failing, behind = stage.run(bot).admitted, stage.run(bot).admitted
    stage.do(ev.Replied(failing, "error", "ValueError"))
    stage.do(ev.Interrupt(bot, behind))
    assert stage.do(ev.Idle(failing)).ends == {failing: "error"}


def test_error_of_one_that_does_not_stop_on_error_aborts_nothing() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    failing, behind = stage.run(bot, stop_on_error=False).admitted, stage.run(bot).admitted
    effects = stage.finish(failing, "error")
    assert effects.ends == {failing: "error"}
    assert effects.delivered == [behind]


def test_adopted_queue_of_a_client_is_aborted_by_its_error_too() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    failing, behind = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.Take(ann, queue="adopt"))
    assert stage.finish(failing, "error").ends == {failing: "error", behind: "aborted"}


# ---------------------------------------------------------------------- interrupts


def test_interrupt_with_a_name_reaches_the_backend_only_if_that_one_runs() -> None:
    stage = Stage("open")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    running, waiting = stage.run(bot).admitted, stage.run(bot).admitted
    effects = stage.do(ev.Interrupt(ann, waiting))
    assert effects.ends == {waiting: "withdrawn"}
    assert not effects.of(fx.InterruptBackend)
    assert stage.do(ev.Interrupt(ann, running)).of(fx.InterruptBackend) == [fx.InterruptBackend(running)]
    stage.finish(running, "error")
    assert stage.do(ev.Interrupt(ann, running)) == [], "it has ended: the next one is not hit"


def test_interrupt_of_an_unknown_operation_is_refused() -> None:
    stage = Stage("open")
    assert stage.do(ev.Interrupt(stage.attach("ann"), "o99")).code == "unknown_operation"


def test_interrupt_without_a_name_means_first_the_own_running_operation() -> None:
    stage = Stage("open")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    running = stage.run(bot).admitted
    waiting = [stage.run(who).admitted for who in (bot, bob)]
    effects = stage.do(ev.Interrupt(bot))
    assert effects.of(fx.InterruptBackend) == [fx.InterruptBackend(running)]
    assert all(stage.op(name).status is Status.QUEUED for name in waiting)


def test_interrupt_without_a_name_means_then_the_own_queued_operations() -> None:
    stage = Stage("open")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    running = stage.run(bot).admitted
    mine = [stage.run(bob).admitted, stage.run(bob, lane="sub2").admitted, stage.run(bob).admitted]
    stage.finish(mine[1])
    effects = stage.do(ev.Interrupt(bob))
    assert effects.ends == {mine[0]: "withdrawn", mine[2]: "withdrawn"}
    assert not effects.of(fx.InterruptBackend), "the cell of another goes on"
    assert stage.op(running).interrupted_by is None


def test_interrupt_without_a_name_means_last_the_running_one_of_another() -> None:
    stage = Stage("open")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    running = stage.run(bot).admitted
    effects = stage.do(ev.Interrupt(bob))
    assert effects.of(fx.InterruptBackend) == [fx.InterruptBackend(running)]
    entry = effects.entry("interrupted")
    assert (entry.actor, entry.operation, entry.durable) == (ACTORS["bob"], running, True)
    (end,) = stage.finish(running, "error").of(fx.End)
    assert (end.outcome, end.by) == ("interrupted", "bob")


def test_interrupt_without_a_name_hits_one_operation_of_another() -> None:
    stage = Stage("open")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    stage.run(bot, lane="sub")
    main = stage.run(bot).admitted
    assert stage.do(ev.Interrupt(bob)).of(fx.InterruptBackend) == [fx.InterruptBackend(main)]


def test_interrupt_of_a_quiet_session_changes_nothing() -> None:
    stage = Stage("open")
    assert stage.do(ev.Interrupt(stage.attach("bob"))) == []


@pytest.mark.parametrize("policy", ["open", "turns", "readonly"])
def test_peer_may_interrupt_under_every_policy(policy: str) -> None:
    stage = Stage("turns")
    ann, bob, bot = stage.attach("ann"), stage.attach("bob"), stage.attach("bot")
    running = stage.run(bot).admitted
    stage.do(ev.SetPolicy(ann, policy))  # type: ignore[arg-type]
    assert stage.do(ev.Interrupt(bob)).of(fx.InterruptBackend) == [fx.InterruptBackend(running)]


def test_busy_subshell_cannot_be_interrupted() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    running = stage.run(bot, lane="sub").admitted
    waiting = stage.run(bot, lane="sub").admitted
    assert stage.do(ev.Interrupt(bot, running)).code == "unsupported"
    assert stage.do(ev.Interrupt(bot)).code == "unsupported"
    assert stage.do(ev.Interrupt(bot, waiting)).ends == {waiting: "withdrawn"}


def test_interrupt_prefers_the_main_lane() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    stage.run(bot, lane="sub")
    main = stage.run(bot).admitted
    assert stage.do(ev.Interrupt(bot)).of(fx.InterruptBackend) == [fx.InterruptBackend(main)]


def test_interrupt_hits_what_an_actor_has_adopted_as_his_own() -> None:
    stage = Stage("turns")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    first, second = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.Take(ann, queue="adopt"))
    assert stage.do(ev.Interrupt(ann)).ends == {second: "withdrawn"}
    assert stage.op(first).interrupted_by is None


def test_interrupted_operation_that_ends_well_is_ok_and_aborts_nothing() -> None:
    stage = Stage("open")
    bot = stage.attach("bot")
    running, behind = (stage.run(bot).admitted for _ in range(2))
    stage.do(ev.Interrupt(bot))
    effects = stage.finish(running)
    assert effects.ends == {running: "ok"}
    assert effects.delivered == [behind]


def test_interrupt_aborts_only_what_the_interrupted_client_queued() -> None:
    stage = Stage("open")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    running, behind, other = stage.run(bot).admitted, stage.run(bot).admitted, stage.run(bob).admitted
    stage.do(ev.Interrupt(bob, running))
    effects = stage.finish(running, "error")
    assert effects.ends == {running: "interrupted", behind: "aborted"}
    assert effects.delivered == [other]


def test_interrupt_after_the_reply_does_not_change_what_it_said() -> None:
    """An error that had nothing to do with the interrupt was reported as `interrupted`, with its author."""
    stage = Stage("open")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    running = stage.run(bot).admitted
    stage.do(ev.Replied(running, "error", "ValueError"))
    assert stage.do(ev.Interrupt(bob)).of(fx.InterruptBackend), "it may hang before it is idle"
    (end,) = stage.do(ev.Idle(running)).of(fx.End)
    assert (end.outcome, end.by) == ("error", None)

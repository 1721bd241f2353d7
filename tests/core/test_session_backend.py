"""The backend comes, dies, is restarted and closed: every operation knows how it ended."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from tests.core.stage import ACTORS, Stage


def working(policy: str = "open") -> tuple[Stage, str, list[str]]:
    """bot's cell runs and three wait; ann is here."""
    stage = Stage(policy)  # type: ignore[arg-type]
    stage.attach("ann")
    stage.attach("bot")
    running, *waiting = [stage.run("bot").admitted for _ in range(4)]
    return stage, running, waiting


def test_first_incarnation_is_recorded() -> None:
    stage = Stage("open", is_ready=False)
    effects = stage.do(ev.BackendReady(1))
    assert effects.entry("backend_ready").data == {"incarnation": 1}
    assert (stage.session.backend, stage.session.incarnation, stage.generation) == ("ready", 1, 0)


def test_incarnations_are_counted_by_the_caller_and_never_fall() -> None:
    stage = Stage("open")
    with pytest.raises(AssertionError, match="incarnation 1 after 1"):
        stage.do(ev.BackendReady(1))


def test_what_ran_when_the_backend_died_is_unknown_and_what_waited_is_aborted() -> None:
    stage, running, waiting = working()
    effects = stage.do(ev.BackendDied("SIGKILL"))
    assert effects.ends == {running: "unknown", **dict.fromkeys(waiting, "aborted")}
    assert all(end.reason == "SIGKILL" for end in effects.of(fx.End))
    entry = effects.entry("backend_died")
    assert (entry.durable, entry.data) == (True, {"reason": "SIGKILL", "incarnation": 1})
    assert stage.session.backend == "starting"


def test_death_of_the_backend_is_a_new_generation_under_the_same_driver() -> None:
    stage, _, _ = working("turns")
    assert stage.do(ev.BackendDied("gone")).of(fx.Fence) == [fx.Fence(2)]
    assert stage.floor == ("held", "bot")
    stage.do(ev.BackendReady(2))
    assert stage.run("bot", generation=1).code == "stale_generation"
    assert stage.op(stage.run("bot").admitted).incarnation == 2


def test_nothing_is_run_again_by_itself() -> None:
    stage, _, _ = working()
    stage.do(ev.BackendDied("gone"))
    assert stage.do(ev.BackendReady(2)).delivered == []


def test_input_that_comes_between_two_incarnations_waits_for_the_next() -> None:
    stage, _, _ = working()
    stage.do(ev.BackendDied("gone"))
    operation = stage.run("bot").admitted
    assert stage.do(ev.BackendReady(2)).delivered == [operation]
    assert stage.op(operation).incarnation == 2


@pytest.mark.parametrize("event", [ev.BackendDied("gone"), ev.Lifecycle("ann", "restart")])
@pytest.mark.parametrize("status", ["ok", "error"])
def test_what_was_answered_ends_as_it_was_answered(event: ev.Event, status: str) -> None:
    """Delivered *and unanswered* is unknown; a cell whose reply had come, and its idle had not, was unknown too."""
    stage, running, waiting = working()
    stage.do(ev.Replied(running, status))  # type: ignore[arg-type]
    assert stage.do(event).ends == {running: status, **dict.fromkeys(waiting, "aborted")}


def test_what_was_interrupted_when_the_backend_died_is_unknown() -> None:
    stage, running, _ = working()
    stage.do(ev.Interrupt("bot"))
    assert stage.do(ev.BackendDied("gone")).ends[running] == "unknown"


def test_words_of_the_dead_change_nothing() -> None:
    stage, running, _ = working()
    stage.do(ev.BackendDied("gone"))
    assert stage.do(ev.Replied(running, "ok")) == []
    assert stage.do(ev.Idle(running)) == []
    assert stage.op(running).outcome == "unknown"


def test_backend_that_is_given_up_is_lost_once() -> None:
    """The keeper says first that it died, then that it gives up: one death, one entry."""
    stage, _, _ = working()
    stage.do(ev.BackendDied("gone", will_restart=False))
    assert stage.session.backend == "lost"
    assert stage.do(ev.BackendDied("gone; it was restarted 5 times", will_restart=False)) == []


def test_restart_that_fails_is_a_loss_of_its_own() -> None:
    stage, _, _ = working()
    stage.do(ev.BackendDied("gone"))
    effects = stage.do(ev.BackendDied("it does not start", will_restart=False))
    assert effects.of(fx.Announce)[-1].data == {"state": "lost", "reason": "it does not start"}


def test_mute_backend_loses_what_it_had_and_takes_nothing_until_it_is_restarted() -> None:
    """It lives: reading goes on, an interrupt too. What would be done in it could not be seen."""
    stage, running, waiting = working("turns")
    effects = stage.do(ev.BackendMute("not a word"))
    assert effects.ends == {running: "unknown", **dict.fromkeys(waiting, "aborted")}
    assert effects.of(fx.Fence) == [fx.Fence(2)]
    assert stage.floor == ("held", "bot")
    refused = stage.run("bot")
    assert (refused.code, refused.refusal and refused.refusal.next[0]) == ("backend_lost", "restart")
    assert stage.do(ev.Replied(running, "ok")) == []
    assert stage.do(ev.BackendMute("still not a word")) == []
    stage.do(ev.Lifecycle("ann", "restart"))
    stage.do(ev.BackendReady(2))
    assert stage.run("bot").delivered


def test_mute_backend_that_answered_has_its_outcome() -> None:
    stage, running, _ = working()
    stage.do(ev.Replied(running, "ok"))
    assert stage.do(ev.BackendMute("not a word")).ends[running] == "ok"


def test_mute_backend_that_dies_is_restarted() -> None:
    stage, _, _ = working()
    stage.do(ev.BackendMute("not a word"))
    stage.do(ev.BackendDied("SIGKILL"))
    assert stage.session.backend == "starting"


# ---------------------------------------------------------------------- restart


def test_restart_interrupts_what_runs_and_aborts_what_waits() -> None:
    stage, running, waiting = working("turns")
    effects = stage.do(ev.Lifecycle("ann", "restart"))
    assert effects.ends == {running: "interrupted", **dict.fromkeys(waiting, "aborted")}
    assert all(end.by == "ann" for end in effects.of(fx.End))
    assert effects[-1] == fx.RestartBackend()
    entry = effects.entry("restarted")
    assert (entry.actor, entry.durable, entry.basis) == (ACTORS["ann"], True, "intended")
    assert (stage.session.backend, stage.generation) == ("starting", 2)
    assert stage.floor == ("held", "bot"), "taking over and restarting have nothing to do with each other"


def test_lost_backend_can_be_restarted() -> None:
    stage, _, _ = working()
    stage.do(ev.BackendDied("gone", will_restart=False))
    assert stage.do(ev.Lifecycle("ann", "restart")).of(fx.RestartBackend)
    stage.do(ev.BackendReady(2))
    assert stage.run("bot").delivered


@pytest.mark.parametrize("verb", ["restart", "close", "rename"])
def test_lifecycle_needs_the_right(verb: str) -> None:
    stage = Stage("open")
    assert stage.do(ev.Lifecycle(stage.attach("bot"), verb, "x", force=True)).code == "forbidden"  # type: ignore[arg-type]


# ---------------------------------------------------------------------- close


def test_close_is_refused_while_somebody_elses_work_runs_or_waits() -> None:
    stage, running, _ = working()
    refusal = stage.do(ev.Lifecycle("ann", "close")).refusal
    assert refusal is not None
    assert refusal.code == "busy"
    assert running in refusal.message
    assert stage.session.backend == "ready"


def test_close_by_force_ends_it() -> None:
    stage, running, waiting = working()
    effects = stage.do(ev.Lifecycle("ann", "close", force=True))
    assert effects.ends == {running: "interrupted", **dict.fromkeys(waiting, "aborted")}
    assert effects[-1] == fx.StopBackend()
    assert stage.session.backend == "closed"


def test_close_needs_no_force_for_the_own_work() -> None:
    stage = Stage("open")
    ann = stage.attach("ann")
    stage.run(ann)
    assert stage.do(ev.Lifecycle(ann, "close")).of(fx.StopBackend)


def test_closed_session_stays_closed() -> None:
    """A kernel that was starting when its session was closed reported itself ready, and input was let in again."""
    stage = Stage("open", is_ready=False)
    ann, bot = stage.attach("ann"), stage.attach("bot")
    stage.do(ev.Lifecycle(ann, "close"))
    assert stage.do(ev.BackendReady(1)) == []
    assert stage.do(ev.BackendDied("killed")) == []
    assert stage.do(ev.Lifecycle(ann, "restart")).code == "backend_lost"
    assert stage.do(ev.Lifecycle(ann, "close")) == [], "once is enough"
    assert stage.session.backend == "closed"
    assert stage.run(bot).code == "backend_lost"


def test_rename_is_recorded_and_carried_out() -> None:
    stage = Stage("open")
    effects = stage.do(ev.Lifecycle(stage.attach("ann"), "rename", "new"))
    assert effects.entry("renamed").data == {"name": "new"}
    assert effects[-1] == fx.Renamed("new")


def test_rename_without_a_name_is_a_bug_of_the_caller() -> None:
    stage = Stage("open")
    with pytest.raises(AssertionError, match="needs a name"):
        stage.do(ev.Lifecycle(stage.attach("ann"), "rename"))

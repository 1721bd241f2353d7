"""A pending `input()` is state of the session: who may answer it, and where it is shown."""

from __future__ import annotations

import pytest

from jupyter_cmdop.core import effects as fx
from jupyter_cmdop.core import events as ev
from jupyter_cmdop.core.operations import Status
from tests.core.stage import ACTORS, Effects, Stage


def asking(policy: str = "turns") -> tuple[Stage, str]:
    """bot's cell asks; ann, bob and eve are here too."""
    stage = Stage(policy)  # type: ignore[arg-type]
    for actor in ("ann", "bob", "bot", "eve"):
        stage.attach(actor)
    operation = stage.run("bot").admitted
    stage.ask(operation)
    return stage, operation


def shown_to_author(effects: Effects) -> list[bool]:
    return [effect.to_author for effect in effects.of(fx.ShowPrompt)]


def test_prompt_is_recorded_and_shown() -> None:
    stage, operation = asking()
    effects = stage.ask(operation, "p2", "again? ", password=True)
    assert effects.entry("input_requested").data == {"prompt_id": "p2", "prompt": "again? ", "password": True}
    assert effects.of(fx.ShowPrompt) == [fx.ShowPrompt(operation, "p2", True)]
    assert stage.op(operation).status is Status.AWAITING_INPUT
    assert stage.session.prompts[operation]["since"] == stage.now


def test_driver_answers() -> None:
    stage, operation = asking()
    effects = stage.do(ev.Answer("bot"))
    assert effects.of(fx.SendAnswer) == [fx.SendAnswer(operation, "p1")]
    entry = effects.entry("input_answered")
    assert (entry.actor, entry.operation, entry.durable) == (ACTORS["bot"], operation, True)
    assert entry.data == {"prompt_id": "p1", "withheld": False}
    assert stage.op(operation).status is Status.RUNNING
    assert stage.session.prompts == {}


def test_others_do_not_answer_while_somebody_drives() -> None:
    stage, operation = asking()
    refusal = stage.do(ev.Answer("bob")).refusal
    assert refusal is not None
    assert (refusal.code, refusal.driver, refusal.next) == ("not_driver", "bot", ("take",))
    assert stage.do(ev.Answer("eve")).code == "read_only"
    assert operation in stage.session.prompts


def test_first_answer_of_any_peer_wins_while_nobody_drives() -> None:
    stage, _ = asking("open")
    assert stage.do(ev.Answer("bob")).code is None
    assert stage.do(ev.Answer("bot")).code == "no_prompt"
    assert stage.floor == ("free", None)


def test_answer_of_a_password_says_that_it_is_withheld() -> None:
    stage, operation = asking()
    stage.ask(operation, password=True)
    assert stage.do(ev.Answer("bot")).entry("input_answered").data["withheld"] is True


def test_answer_is_explicit_input_and_claims_a_free_floor_under_turns() -> None:
    """The table of the policy lists it: who answers under `turns` drives from then on."""
    stage, _ = asking()
    stage.do(ev.Release("bot"))
    effects = stage.do(ev.Answer("bob"))
    assert effects.entries == ["claimed", "input_answered"]
    assert stage.floor == ("held", "bob")


def test_answer_claims_the_floor_of_a_stale_driver() -> None:
    stage, _ = asking()
    stage.do(ev.Take(stage.act_as("ann")))
    stage.do(ev.Detach("ann"))
    stage.wait(121)
    assert stage.floor == ("stale", "ann")
    assert stage.do(ev.Answer("bob")).code is None
    assert stage.floor == ("held", "bob")


def test_nobody_answers_under_readonly() -> None:
    """`readonly` lets nobody input; answers still went through."""
    stage, operation = asking()
    stage.do(ev.SetPolicy("ann", "readonly"))
    assert stage.do(ev.Answer("bot")).code == "read_only"
    assert stage.do(ev.Answer("ann")).code == "read_only"
    assert operation in stage.session.prompts
    assert stage.do(ev.Interrupt("bot")).of(fx.InterruptBackend)


# ---------------------------------------------------------------------- the right to answer moves


def test_right_to_answer_moves_with_the_floor_and_the_prompt_is_shown_again() -> None:
    stage, operation = asking()
    effects = stage.do(ev.Take("bob"))
    assert effects.of(fx.ShowPrompt) == [fx.ShowPrompt(operation, "p1", False)]
    assert stage.do(ev.Answer("bot")).code == "not_driver"
    assert shown_to_author(stage.do(ev.HandBack("bob"))) == [True]
    assert stage.do(ev.Answer("bot")).code is None


def test_prompt_that_comes_after_the_floor_was_lost_is_not_shown_to_its_author() -> None:
    stage = Stage("turns")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    operation = stage.run(bot).admitted
    stage.do(ev.Take(bob))
    assert shown_to_author(stage.ask(operation)) == [False]
    assert shown_to_author(stage.do(ev.Release(bob))) == [True]


def test_prompt_that_came_under_readonly_is_shown_when_the_policy_ends() -> None:
    """Its author's client had not been shown it, and would have waited for ever."""
    stage = Stage("open")
    ann, bot = stage.attach("ann"), stage.attach("bot")
    operation = stage.run(bot).admitted
    stage.do(ev.SetPolicy(ann, "readonly"))
    assert shown_to_author(stage.ask(operation)) == [False]
    assert shown_to_author(stage.do(ev.SetPolicy(ann, "open"))) == [True]


# ---------------------------------------------------------------------- several prompts, stock clients


def test_several_prompts_are_answered_by_their_ids() -> None:
    stage = Stage("open")
    bob, bot = stage.attach("bob"), stage.attach("bot")
    first, second = stage.run(bot).admitted, stage.run(bob, lane="sub").admitted
    stage.ask(first, "p1")
    stage.ask(second, "p2")
    assert stage.do(ev.Answer(bot, "p9")).code == "no_prompt"
    assert stage.do(ev.Answer(bot, "p2")).of(fx.SendAnswer) == [fx.SendAnswer(second, "p2")]
    assert stage.do(ev.Answer(bot)).of(fx.SendAnswer) == [fx.SendAnswer(first, "p1")]


def test_prompt_that_was_replaced_cannot_be_answered_any_more() -> None:
    stage, operation = asking()
    stage.ask(operation, "p2")
    assert stage.do(ev.Answer("bot", "p1")).code == "no_prompt"
    assert stage.do(ev.Answer("bot", "p2")).code is None


def test_stock_client_answers_only_the_prompt_of_its_own_cell() -> None:
    stage, operation = asking("open")
    own = "client-of-bot"
    assert stage.do(ev.Answer("bot", client_session="another", stock=True)).code == "no_prompt"
    assert stage.do(ev.Answer("bob", client_session=own, stock=True)).code == "no_prompt"
    answered = stage.do(ev.Answer("bot", client_session=own, stock=True))
    assert answered.of(fx.SendAnswer) == [fx.SendAnswer(operation, "p1")]


def test_stock_client_answers_only_while_its_actor_may() -> None:
    stage, _ = asking()
    stage.do(ev.Take("bob"))
    assert stage.do(ev.Answer("bot", client_session="client-of-bot", stock=True)).code == "not_driver"


def test_stock_client_that_lost_the_floor_answers_its_own_cell_and_does_not_claim_by_it() -> None:
    """It cannot be asked to type it again; and it must be told before it may claim again."""
    stage, operation = asking()
    stage.do(ev.Take("bob"))
    stage.do(ev.Release("bob"))
    answered = stage.do(ev.Answer("bot", client_session="client-of-bot", stock=True))
    assert answered.entries == ["input_answered"]
    assert stage.floor == ("free", None)
    stage.finish(operation)
    assert stage.run("bot").code == "stale_generation"


# ---------------------------------------------------------------------- prompts end


@pytest.mark.parametrize("how", ["finished", "died", "restarted"])
def test_prompt_ends_with_its_operation(how: str) -> None:
    stage, operation = asking()
    if how == "finished":
        stage.finish(operation, "error")
    else:
        stage.do(ev.BackendDied("gone") if how == "died" else ev.Lifecycle("ann", "restart"))
    assert stage.session.prompts == {}
    assert stage.do(ev.Answer("bot")).code == "no_prompt"

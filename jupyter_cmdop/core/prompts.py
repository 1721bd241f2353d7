"""A running operation's question (`input()`): who may answer it, and to whom it is shown."""

from __future__ import annotations

from . import effects as fx
from . import events as ev
from .operations import Operation, Status, Step
from .refusal import Refusal
from .state import State
from .turn import Turn


def prompted(turn: Turn, event: ev.Prompted) -> None:
    operation = turn.state.operations.get(event.operation)
    if operation is None or operation.status not in (Status.RUNNING, Status.AWAITING_INPUT):
        return
    operation.step(Step.PROMPT)
    turn.state.prompts[operation.id] = {
        "prompt": event.prompt,
        "text": event.text,
        "password": event.password,
        "since": turn.now,
    }
    data = {"prompt_id": event.prompt, "prompt": event.text, "password": event.password}
    turn.note("input_requested", operation, data=data)
    _show(turn, operation)


def show_all(turn: Turn) -> None:
    """The right to answer may have moved."""
    for name in turn.state.prompts:
        _show(turn, turn.state.operations[name])


def _show(turn: Turn, operation: Operation) -> None:
    prompt = turn.state.prompts[operation.id]["prompt"]
    to_author = may_answer(turn.state, operation.actor.id, operation) is None
    turn.do(fx.ShowPrompt(operation.id, prompt, to_author))
    turn.do(fx.Announce("prompt", {"operation": operation.id, "prompt_id": prompt}))


def may_answer(state: State, actor: str, operation: Operation, *, may_claim: bool = True) -> Refusal | None:
    """An answer is explicit input: the driver's, or any peer's while nobody drives (the first answer wins)."""
    if state.policy == "readonly":
        return state.refusal(
            "read_only",
            "the policy of this session is readonly: nobody may answer",
            next_=("policy open", "policy turns"),
        )
    if state.is_barred(actor, explicit=may_claim):
        message = (
            f"{state.floor.driver} drives this session and has the right to answer operation {operation.id}"
        )
        return state.refusal("not_driver", message, next_=("take",))
    return None


def find(state: State, event: ev.Answer) -> Operation | None:
    """The operation whose prompt an answer is for: a stock client's own cell, or the one that is named or first."""
    for name, prompt in state.prompts.items():
        operation = state.operations[name]
        if event.prompt is not None and prompt["prompt"] != event.prompt:
            continue
        if event.stock and operation.connection != (event.attachment, event.client_session):
            continue
        return operation
    return None

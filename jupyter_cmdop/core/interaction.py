"""Acting on what runs: answering its prompt, interrupting it, saying something about it."""

from __future__ import annotations

from . import effects as fx
from . import events as ev
from .grants import Attachment
from .lanes import drop
from .moves import renew, settle
from .operations import MAIN_LANE, Operation, Status, Step
from .prompts import find, may_answer
from .state import State
from .turn import Turn

MAX_NOTE_CHARACTERS = 16 * 1024  # a remark for a person; what is longer belongs into a file


def note(turn: Turn, event: ev.Note) -> None:
    """Write a remark into the record. It is no input: it needs no floor, and passes under every policy."""
    attachment = turn.attachment(event)
    if attachment is None:
        return
    if "input" not in attachment.rights:
        message = f"{attachment.actor.id} observes this session and may not write into its record"
        return turn.reject(attachment, event, "read_only", message, next_=("ask for an invitation as peer",))
    if len(event.text) > MAX_NOTE_CHARACTERS:
        message = f"a note has at most {MAX_NOTE_CHARACTERS} characters, not {len(event.text)}"
        return turn.reject(attachment, event, "too_large", message)
    renew(turn, attachment)
    turn.note(
        "note",
        attachment,
        basis="reported",
        durable=True,
        data={"text": event.text},
    )


def answer(turn: Turn, event: ev.Answer) -> None:
    attachment, state = turn.attachment(event), turn.state
    if attachment is None:
        return
    actor = attachment.actor.id
    if "answer" not in attachment.rights:
        message = f"{actor} observes this session and may not answer"
        return turn.reject(attachment, event, "read_only", message, next_=("ask for an invitation as peer",))
    operation = find(state, event)
    if operation is None:
        message = "nothing waits for this answer"
        if event.stock:
            message += ": a kernel client can answer only the prompt of its own cell"
        return turn.reject(attachment, event, "no_prompt", message, next_=("status",))
    # A stock client cannot be asked to type its answer again; one that was not told of a loss does not claim by it.
    may_claim = (attachment.id, event.client_session) not in state.lost
    refusal = may_answer(state, actor, operation, may_claim=may_claim)
    if refusal is not None:
        return turn.refuse(attachment, event, refusal)
    prompt = state.prompts.pop(operation.id)
    operation.step(Step.ANSWER)
    if may_claim:
        settle(turn, attachment, explicit=True)
    turn.note(
        "input_answered",
        attachment,
        operation=operation.id,
        basis="attempted",
        durable=True,
        data={"prompt_id": prompt["prompt"], "withheld": prompt["password"]},
    )
    turn.do(fx.SendAnswer(operation.id, prompt["prompt"]))
    turn.do(fx.Announce("prompt", {"operation": operation.id, "answered_by": actor}))


def interrupt(turn: Turn, event: ev.Interrupt) -> None:
    attachment, state = turn.attachment(event), turn.state
    if attachment is None:
        return
    actor = attachment.actor.id
    if "interrupt" not in attachment.rights:
        message = f"{actor} observes this session and may not interrupt"
        return turn.reject(attachment, event, "read_only", message, next_=("ask for an invitation as peer",))
    if event.operation is not None and event.operation not in state.operations:
        message = f"no operation {event.operation!r} is known here"
        return turn.reject(attachment, event, "unknown_operation", message, next_=("status", "log"))
    targets = _likely(state, actor) if event.operation is None else [state.operations[event.operation]]
    for operation in targets:
        if operation.lane != MAIN_LANE and operation.status in (Status.RUNNING, Status.AWAITING_INPUT):
            message = f"operation {operation.id} runs in a subshell, which cannot be interrupted"
            return turn.reject(attachment, event, "unsupported", message, next_=("wait", "restart"))
    renew(turn, attachment)
    for operation in targets:
        if operation.status is Status.QUEUED:
            drop(turn, operation, "withdrawn", by=actor, reason="interrupt")
        elif operation.is_active:
            interrupt_running(turn, operation, attachment)


def _likely(state: State, actor: str) -> list[Operation]:
    """Without a name: the actor's own running operation; else his queued ones; else the running one."""
    running = state.running()
    own = [op for op in running if actor in (op.actor.id, op.adopted_by)]
    if own:
        return own[:1]
    waiting = [op for op in state.queued() if actor in (op.actor.id, op.adopted_by)]
    return waiting or running[:1]


def interrupt_running(turn: Turn, operation: Operation, by: Attachment) -> None:
    if operation.replied is None:  # else its outcome is decided, and the interrupt comes too late
        operation.interrupted_by = by.actor.id
    turn.note("interrupted", by, operation=operation.id, basis="attempted", durable=True)
    turn.do(fx.InterruptBackend(operation.id))

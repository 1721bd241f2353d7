"""Which input is let in: the rules as pure questions, then what an admitted input brings about."""

from __future__ import annotations

from . import effects as fx
from . import events as ev
from .grants import Attachment, Right
from .lanes import pump
from .moves import settle
from .operations import Lane, Operation
from .policy import InputClass
from .refusal import Refusal
from .state import Connection, Loss, State
from .turn import Turn

MAX_QUEUED_OPERATIONS = 1024  # an actor; JupyterLab's "Run all" sends every cell at once
MAX_QUEUED_BYTES = 64 * 1024 * 1024  # an actor

_INPUT = (InputClass.EXPLICIT, InputClass.IMPLICIT)


def submit(turn: Turn, event: ev.Submit) -> None:
    attachment = turn.attachment(event)
    if attachment is None:
        return
    earlier = repeated(turn.state, attachment, event)
    if isinstance(earlier, Refusal):
        return turn.refuse(attachment, event, earlier)
    if earlier is not None:
        turn.note("duplicate", attachment, operation=earlier, request_id=event.request_id, basis="intended")
        return turn.do(fx.Duplicate(earlier))
    refusal = may_submit(turn.state, attachment, event)
    if refusal is not None:
        if refusal.code == "stale_generation":
            turn.state.lost.pop(_connection(event), None)  # now it has been told
        return turn.refuse(attachment, event, refusal)
    turn.state.remember_connection(_connection(event))
    if event.input_class in _INPUT:
        settle(turn, attachment, explicit=event.input_class is InputClass.EXPLICIT, act=event.act)
    if event.executes:
        _admit(turn, attachment, event)
        return pump(turn, event.lane)
    if event.input_class in _INPUT:
        turn.note(
            "input",
            attachment,
            basis="intended",
            durable=event.input_class is InputClass.EXPLICIT,
            data={"message": event.message_type, "msg_id": event.msg_id},
        )
    turn.do(fx.Forward(turn.state.floor.generation))


def _connection(event: ev.Submit) -> Connection:
    return event.attachment, event.client_session


# ---------------------------------------------------------------------- the rules


def repeated(state: State, attachment: Attachment, event: ev.Submit) -> str | Refusal | None:
    """The operation that an input repeats; a refusal, when it only seems to; None, when it is new."""
    if not event.executes:
        return None
    if event.request_id is not None:
        prior = event.prior
        known = state.of_request(attachment.actor.id, event.request_id)
        if known is not None:
            prior = ev.Prior(known.id, known.digest)
        if prior is not None:
            return prior.operation if prior.digest == event.digest else _used(state, event.request_id, prior)
    same_message = state.of_message(_connection(event), event.msg_id)
    if event.digest in same_message:
        return same_message[event.digest].id
    active = next((op for op in same_message.values() if op.is_active), None)
    if active is None:
        return None
    # What the backend says of a message id could not be told apart.
    message = f"message id {event.msg_id!r} belongs to operation {active.id}, which has not ended"
    return state.refusal("request_id_conflict", message, next_=("use a new message id",))


def _used(state: State, request_id: str, prior: ev.Prior) -> Refusal:
    return state.refusal(
        "request_id_conflict",
        f"request id {request_id!r} was used for operation {prior.operation}, whose content differs",
        next_=("use another request id", f"wait {prior.operation}"),
    )


def may_submit(state: State, attachment: Attachment, event: ev.Submit) -> Refusal | None:
    """The admission rules, in order: rights, backend, policy, staleness, floor, room."""
    needed: Right = "observe" if event.input_class is InputClass.READING else "input"
    if needed not in attachment.rights:
        return state.refusal(
            "read_only",
            f"{attachment.actor.id} observes this session and may not input",
            next_=("ask for an invitation as peer",),
        )
    if state.backend in ("lost", "closed"):
        return state.refusal(
            "backend_lost", "the backend of this session has ended", next_=("restart", "close")
        )
    if event.input_class not in _INPUT:
        return None
    if state.backend == "mute":
        return state.refusal(
            "backend_lost",
            "the backend of this session lives, but nothing that it publishes arrives any more",
            next_=("restart", "close"),
        )
    if state.policy == "readonly":
        return state.refusal(
            "read_only",
            "the policy of this session is readonly: nobody may input",
            next_=("policy open", "policy turns"),
        )
    return (
        _stale(state, attachment, event)
        or _barred(state, attachment, event)
        or (_room(state, attachment, event) if event.executes else None)
    )


def _stale(state: State, attachment: Attachment, event: ev.Submit) -> Refusal | None:
    """Made under a generation, or while a floor was held, that is over."""
    explicit = event.input_class is InputClass.EXPLICIT
    loss = state.lost.get(_connection(event))
    if loss is not None and explicit:
        return _told(state, attachment, loss)
    floor = state.floor
    compared = floor.driver is not None or state.policy == "turns"
    if event.generation is not None and compared and event.generation != floor.generation:
        return state.refusal(
            "stale_generation",
            f"this was made under generation {event.generation}; generation {floor.generation} is in force",
            next_=("status", "run it again with the generation in force"),
        )
    if event.composed_before and explicit:
        return state.refusal(
            "stale_generation",
            "this was made while its connection was away, or the session stood still: "
            "look at the session, then run it again",
            next_=("run it again",),
        )
    return None


def _told(state: State, attachment: Attachment, loss: Loss) -> Refusal:
    what = "the floor was lost" if loss.by is None else f"{loss.by} took over"
    why = f" ({loss.reason})" if loss.reason else ""
    if state.is_barred(attachment.actor.id, explicit=True):
        advice, helps = "take over to drive again", "take"
    elif state.policy == "turns":
        advice, helps = "run it again to drive", "run it again"
    else:
        advice, helps = "run it again", "run it again"
    return state.refusal(
        "stale_generation", f"{what} at generation {loss.generation}{why}: {advice}", next_=(helps,)
    )


def _barred(state: State, attachment: Attachment, event: ev.Submit) -> Refusal | None:
    if not state.is_barred(attachment.actor.id, explicit=event.input_class is InputClass.EXPLICIT):
        return None
    floor = state.floor
    why = f" ({floor.reason})" if floor.reason else ""  # who was never told of the take-over learns it here
    return state.refusal("not_driver", f"{floor.driver} drives this session{why}", next_=("take", "wait"))


def _room(state: State, attachment: Attachment, event: ev.Submit) -> Refusal | None:
    lane = state.lanes.get(event.lane, Lane())
    first = lane.running or next(iter(lane.queue), None)
    if event.if_busy == "refuse" and first is not None:
        busy = state.operations[first]
        return state.refusal(
            "busy",
            f"operation {busy.id} of {busy.actor.id} is {busy.state}",
            since=busy.since,
            next_=("wait", "interrupt", "run it without if_busy=refuse"),
        )
    limit = f"{MAX_QUEUED_BYTES // 2**20} MiB"
    if event.size > MAX_QUEUED_BYTES:
        return state.refusal("too_large", f"this has {event.size} bytes; no input may have more than {limit}")
    actor = attachment.actor.id
    waiting = [op.size for op in state.queued() if op.actor.id == actor]
    if len(waiting) < MAX_QUEUED_OPERATIONS and sum(waiting) + event.size <= MAX_QUEUED_BYTES:
        return None
    return state.refusal(
        "queue_full",
        f"{actor} has {len(waiting)} operations waiting; the limits are {MAX_QUEUED_OPERATIONS} operations and {limit}",
        next_=("wait", "interrupt"),
    )


# ---------------------------------------------------------------------- letting in


def _admit(turn: Turn, attachment: Attachment, event: ev.Submit) -> None:
    state = turn.state
    state.counter += 1
    operation = Operation(
        id=f"o{state.counter}",
        actor=attachment.actor,
        attachment=attachment.id,
        grant=attachment.grant,
        client_session=event.client_session,
        msg_id=event.msg_id,
        message_type=event.message_type,
        lane=event.lane,
        input_class=event.input_class,
        digest=event.digest,
        size=event.size,
        generation=state.floor.generation,
        incarnation=state.incarnation,
        since=turn.now,
        request_id=event.request_id,
        stop_on_error=event.stop_on_error,
        via=attachment.via,
        act=event.act,
    )
    state.remember(operation)
    state.forget_old()
    state.lanes.setdefault(event.lane, Lane()).queue.append(operation.id)
    turn.note(
        "admitted",
        attachment,
        operation=operation.id,
        request_id=event.request_id,
        basis="intended",
        durable=event.input_class is InputClass.EXPLICIT,
        data={
            "message": event.message_type,
            "class": event.input_class.value,
            "digest": event.digest,
            "lane": event.lane,
            "msg_id": event.msg_id,
            "client_session": event.client_session,
        },
    )
    turn.do(fx.Admitted(operation.id))
    turn.do(fx.Announce("operation", {"operation": operation.id, "status": "queued"}))

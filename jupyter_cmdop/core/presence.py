"""Who is here: connections come, give signs of life, and go."""

from __future__ import annotations

from . import effects as fx
from . import events as ev
from .floor import SIGN_OF_LIFE_SECONDS, FloorEvent, FloorState
from .grants import Attachment
from .moves import move
from .turn import Turn


def attach(turn: Turn, event: ev.Attach) -> None:
    attachment, state = event.attachment, turn.state
    if attachment.id in state.attachments:
        raise AssertionError(f"attachment {attachment.id} is attached already")
    state.attachments[attachment.id] = attachment
    state.away.pop(attachment.id, None)
    if not attachment.persistent:
        return
    data = {
        "role": attachment.role,
        "transport": attachment.transport,
        "client": attachment.client,
        "kind": attachment.actor.kind,
    }
    turn.note("attached", attachment, data=data)
    _live(turn, attachment)
    turn.do(fx.Announce("presence", {"actor": attachment.actor.id, "attached": True}))


def detach(turn: Turn, event: ev.Detach) -> None:
    attachment = turn.state.attachments.get(event.attachment)
    if attachment is not None:
        leave(turn, attachment, event.reason)


def leave(turn: Turn, attachment: Attachment, reason: str) -> None:
    state, actor = turn.state, attachment.actor.id
    del state.attachments[attachment.id]
    if attachment.can_return and attachment.id in state.connections:
        state.remember_away(attachment)
    elif state.attachment_actor(attachment.id) is None:
        state.forget_connections(attachment.id)
    if not attachment.persistent:
        return
    turn.note("detached", attachment, data={"reason": reason})
    if not any(a.persistent and a.actor.id == actor for a in state.attachments.values()):
        state.alive_until.pop(actor, None)
    turn.do(fx.Announce("presence", {"actor": actor, "attached": False}))


def alive(turn: Turn, event: ev.Alive) -> None:
    attachment = turn.state.attachments.get(event.attachment)
    if attachment is not None and attachment.persistent:
        _live(turn, attachment)


def _live(turn: Turn, attachment: Attachment) -> None:
    actor, floor = attachment.actor.id, turn.state.floor
    turn.state.alive_until[actor] = turn.now + SIGN_OF_LIFE_SECONDS
    if floor.state is FloorState.STALE and floor.driver == actor:
        move(turn, FloorEvent.RESUME, attachment)

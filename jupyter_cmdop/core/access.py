"""Grants: given, revoked, expired, and what each of these entails."""

from __future__ import annotations

from . import effects as fx
from . import events as ev
from .actor import Actor
from .floor import FloorEvent
from .grants import MAX_GRANTS, Attachment, Grant, attachment_of_grant
from .lanes import drop
from .moves import move, renew
from .presence import leave
from .refusal import Refusal
from .state import State
from .turn import Turn


def invite(turn: Turn, event: ev.Invite) -> None:
    attachment, state, grant = turn.attachment_with(event, "invite"), turn.state, event.grant
    if attachment is None:
        return
    if grant.id in state.grants:
        raise AssertionError(f"grant {grant.id} exists already")
    refusal = _widens(state, attachment, grant)
    if refusal is None and len(state.grants) >= MAX_GRANTS:
        refusal = Refusal(
            "queue_full", f"{MAX_GRANTS} grants are in force, which is the limit", next=("grants", "revoke")
        )
    if refusal is not None:
        return turn.refuse(attachment, event, refusal)
    renew(turn, attachment)
    state.grants[grant.id] = grant
    turn.note(
        "granted",
        attachment,
        grant=grant.id,
        durable=True,
        data={
            "actor": grant.actor.id,
            "kind": grant.actor.kind,
            "name": grant.actor.display_name,
            "on_behalf_of": grant.actor.on_behalf_of or "",
            "role": grant.role,
            "transport": grant.transport,
            "expires_in": "" if grant.expires is None else str(round(grant.expires - turn.now)),
        },
    )
    turn.do(fx.OpenGrant(grant.id))


def _widens(state: State, giver: Attachment, grant: Grant) -> Refusal | None:
    """What is passed on can only be narrowed: in rights, and in time."""
    if not grant.rights <= giver.rights:
        return state.refusal("forbidden", "a grant can only carry rights that its giver has")
    own = state.grants.get(giver.grant or "")
    if own is None or own.expires is None:
        return None
    if grant.expires is None or grant.expires > own.expires:
        return state.refusal(
            "forbidden", "a grant cannot outlast that of its giver", next_=("invite with an earlier expiry",)
        )
    return None


def revoke(turn: Turn, event: ev.Revoke) -> None:
    attachment, grant = turn.attachment(event), turn.state.grants.get(event.grant)
    if attachment is None:
        return
    if grant is None:
        message = f"no grant {event.grant!r} here"
        return turn.reject(attachment, event, "unknown_grant", message, next_=("grants",))
    if "invite" not in attachment.rights and attachment.actor.id != grant.actor.id:
        message = f"{attachment.actor.id} may revoke only his own grants"
        return turn.reject(attachment, event, "forbidden", message, next_=("ask the owner",))
    renew(turn, attachment)
    end_grant(turn, grant, "revoked", attachment)


def end_grant(turn: Turn, grant: Grant, how: str, by: Attachment | Actor) -> None:
    """Nothing that came with it is delivered any more, and what was opened with it closes."""
    state, actor = turn.state, grant.actor.id
    who = by.actor.id if isinstance(by, Attachment) else by.id
    reason = f"grant {how}"
    del state.grants[grant.id]
    turn.note(how, by, grant=grant.id, durable=True, data={"actor": actor})
    for operation in state.queued():
        if operation.grant == grant.id and operation.holder == actor:
            drop(turn, operation, "withdrawn", by=who, reason=reason)
    for operation in state.running():
        if operation.grant == grant.id and operation.holder == actor:
            operation.revoked = True
    turn.do(fx.CloseGrant(grant.id, how))
    for attachment in [a for a in state.attachments.values() if a.grant == grant.id]:
        leave(turn, attachment, how)
    state.forget_connections(attachment_of_grant(grant.id))
    if state.may(actor, "input"):
        return
    for operation in state.queued():
        if operation.holder == actor:  # what he has adopted
            drop(turn, operation, "withdrawn", by=who, reason=reason)
    if state.floor.driver == actor:
        move(turn, FloorEvent.VACATE, by, reason=reason)

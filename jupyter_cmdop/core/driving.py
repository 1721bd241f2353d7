"""The floor's verbs: take, hand back, release, and the change of the policy itself."""

from __future__ import annotations

from . import effects as fx
from . import events as ev
from .floor import ACT_LEASE_SECONDS, MAX_LEASE_SECONDS, FloorEvent
from .grants import Attachment
from .interaction import interrupt_running
from .lanes import supersede
from .moves import move, raise_generation, renew
from .operations import MAIN_LANE
from .policy import POLICIES
from .prompts import show_all
from .turn import Turn


def take(turn: Turn, event: ev.Take) -> None:
    attachment, state = turn.attachment_with(event, "take"), turn.state
    if attachment is None:
        return
    if state.policy == "readonly":
        message = "the policy of this session is readonly: there is no floor to take"
        return turn.reject(attachment, event, "read_only", message, next_=("policy open", "policy turns"))
    actor = attachment.actor.id
    state.forget_loss(actor)
    if state.floor.driver != actor:
        adopt = event.queue == "adopt"
        move(turn, FloorEvent.TAKE, attachment, to=actor, reason=event.reason, adopt=adopt)
    lease = min(event.lease_seconds or ACT_LEASE_SECONDS, MAX_LEASE_SECONDS)
    renew(turn, attachment, lease_seconds=lease)
    running = state.lanes[MAIN_LANE].running
    if event.running == "interrupt" and running is not None:
        interrupt_running(turn, state.operations[running], attachment)


def hand_back(turn: Turn, event: ev.HandBack) -> None:
    attachment, state = turn.attachment_with(event, "take"), turn.state
    if attachment is None or not _drives(turn, attachment, event):
        return
    to = state.floor.previous if event.to is None else event.to
    able = to is not None and state.actor_of(to) is not None and state.may(to, "input")
    if event.to is not None and not able:
        message = f"{to} is not an actor of this session who may input"
        return turn.reject(attachment, event, "forbidden", message, next_=("status", "invite"))
    renew(turn, attachment)
    if to is None or not able or to == attachment.actor.id:
        return move(turn, FloorEvent.RELEASE, attachment, reason=event.note)
    state.forget_loss(to)
    move(turn, FloorEvent.HAND_BACK, attachment, to=to, reason=event.note)
    state.floor.renew_act(turn.now, ACT_LEASE_SECONDS)


def release(turn: Turn, event: ev.Release) -> None:
    attachment = turn.attachment_with(event, "take")
    if attachment is None or not _drives(turn, attachment, event):
        return
    renew(turn, attachment)
    move(turn, FloorEvent.RELEASE, attachment)


def _drives(turn: Turn, attachment: Attachment, event: ev.HandBack | ev.Release) -> bool:
    driver, actor = turn.state.floor.driver, attachment.actor.id
    if driver == actor:
        return True
    if driver is None:
        turn.reject(attachment, event, "not_driver", "nobody drives this session", next_=("status",))
    else:
        message = f"{driver} drives this session, not {actor}"
        turn.reject(attachment, event, "not_driver", message, next_=("take",))
    return False


def set_policy(turn: Turn, event: ev.SetPolicy) -> None:
    attachment, state = turn.attachment_with(event, "policy"), turn.state
    if attachment is None:
        return
    if event.policy not in POLICIES:
        message = f"no policy {event.policy!r}: use one of {', '.join(POLICIES)}"
        return turn.reject(attachment, event, "unsupported", message)
    renew(turn, attachment)
    if event.policy == state.policy:
        return
    before, state.policy = state.policy, event.policy
    raise_generation(turn, "policy", attachment, data={"from": before, "to": event.policy})
    if event.policy == "readonly":
        supersede(turn, lambda op: True, by=attachment.actor.id, reason="policy readonly")
        if state.floor.driver is not None:
            move(turn, FloorEvent.VACATE, attachment, reason="policy readonly")
    elif event.policy == "turns" and state.floor.driver is None:
        _give_to_first(turn, attachment)
    show_all(turn)
    turn.do(fx.Announce("policy", {"policy": event.policy, "by": attachment.actor.id}))


def _give_to_first(turn: Turn, by: Attachment) -> None:
    """Under turns, whoever runs or waits first has the floor, as if he had claimed it."""
    state = turn.state
    holders = (op.holder for op in (*state.running(), *state.queued()))
    first = next((holder for holder in holders if state.may(holder, "input")), None)
    if first is not None:
        move(turn, FloorEvent.CLAIM, by, to=first, reason="policy turns")

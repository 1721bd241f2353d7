"""A move of the floor with all it entails: the entry, the fence, the queue, the prompts, and who is told."""

from __future__ import annotations

from typing import Any

from . import effects as fx
from .actor import Actor
from .floor import ACT_LEASE_SECONDS, SIGN_OF_LIFE_SECONDS, FloorEvent, FloorState
from .grants import Attachment
from .lanes import supersede
from .prompts import show_all
from .turn import Author, Turn


def move(
    turn: Turn,
    event: FloorEvent,
    by: Attachment | Actor,
    *,
    to: str | None = None,
    reason: str = "",
    adopt: bool = False,
) -> None:
    """Apply a floor event.

    Args:
        turn: in which it happens.
        event: what happens to the floor.
        by: the connection whose act it is, or the actor.
        to: who drives afterwards, where somebody new does.
        reason: why, in the actor's words.
        adopt: what waits goes on under the new driver, instead of being given back.
    """
    floor = turn.state.floor
    actor = by.actor if isinstance(by, Attachment) else by
    loser, generation = floor.driver, floor.generation
    entry = floor.apply(event, now=turn.now, actor=to, reason=reason)
    if entry is None:
        raise AssertionError(f"no transition for {event} from {floor.state}")
    changed = floor.generation != generation
    data: dict[str, Any] = {"from": loser, "to": floor.driver}
    if reason:
        data["reason"] = reason
    turn.note(entry, by, durable=changed, data=data)
    if changed:
        turn.do(fx.Fence(floor.generation))
        if floor.driver is not None:
            _return_adopted(turn, floor.driver)
            if adopt:
                _adopt(turn, by, floor.driver)
            supersede(turn, lambda op: op.holder != floor.driver, by=actor.id, reason=reason or entry)
        if loser not in (None, actor.id):  # who gives it away himself knows
            turn.state.note_loss(loser, floor.driver, reason)
            turn.do(fx.Tell(loser, floor.driver, reason, floor.generation))
    show_all(turn)
    _announce(turn, actor, entry)


def raise_generation(turn: Turn, entry: str, author: Author, **fields: Any) -> None:
    """A new generation without a move, and the entry that begins it: the policy or the backend has changed."""
    turn.state.floor.generation += 1
    turn.note(entry, author, durable=True, **fields)
    turn.do(fx.Fence(turn.state.floor.generation))


def settle(turn: Turn, attachment: Attachment, *, explicit: bool, act: bool = False) -> None:
    """Claim, resume or renew, as an input that has passed the rules does."""
    state, floor, actor = turn.state, turn.state.floor, attachment.actor.id
    if floor.state is FloorState.STALE and floor.driver != actor and state.policy != "turns":
        move(turn, FloorEvent.VACATE, attachment, reason="its driver was stale")
    elif floor.driver != actor and explicit and state.policy == "turns":
        move(turn, FloorEvent.CLAIM, attachment, to=actor)
    renew(turn, attachment, lease_seconds=ACT_LEASE_SECONDS if act else None)


def renew(turn: Turn, attachment: Attachment, *, lease_seconds: float | None = None) -> None:
    """An admitted act of the driver: it resumes his floor if he was stale, and renews his lease.

    Args:
        turn: in which it happens.
        attachment: through which he acts.
        lease_seconds: for how long; if not given, that of an act where the connection is none that could be lost.
    """
    floor = turn.state.floor
    if floor.driver != attachment.actor.id:
        return
    if floor.state is FloorState.STALE:
        move(turn, FloorEvent.RESUME, attachment)
    if lease_seconds is None:
        lease_seconds = SIGN_OF_LIFE_SECONDS if attachment.persistent else ACT_LEASE_SECONDS
    floor.renew_act(turn.now, lease_seconds)


def _return_adopted(turn: Turn, driver: str) -> None:
    """What was adopted from him who drives now is simply his again."""
    for operation in turn.state.queued():
        if operation.adopted_by is not None and operation.actor.id == driver:
            operation.adopted_by = None


def _adopt(turn: Turn, by: Attachment | Actor, driver: str) -> None:
    for operation in turn.state.queued():
        if operation.holder != driver:
            operation.adopted_by = driver
            data = {"author": operation.actor.id}
            turn.note("adopted", by, operation=operation.id, basis="intended", data=data)


def _announce(turn: Turn, by: Actor, how: str) -> None:
    floor = turn.state.floor
    facts = {
        "state": floor.state.value,
        "driver": floor.driver,
        "generation": floor.generation,
        "by": by.id,
        "how": how,
        "reason": floor.reason,
    }
    turn.do(fx.Announce("floor", facts))

"""The one place where a session's state changes: `Session.handle(event, now) -> list[Effect]`.

Every endpoint submits here and none decides. Effects come in the order in which they must be carried out: the record
before the send it justifies. Remote input never raises; it yields `Reject`. What raises is a bug of the caller.

The kind of an actor is never read (a test swaps all kinds in recorded runs and compares).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import access, admission, driving, interaction, lifecycle, presence, prompts, snapshot
from . import events as ev
from .actor import KEEPER, Actor
from .effects import Effect
from .floor import FloorEvent, FloorState
from .grants import attachment_of_grant
from .moves import move
from .state import State
from .turn import Turn

__all__ = ["Session", "attachment_of_grant"]

_HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    ev.Attach: presence.attach,
    ev.Detach: presence.detach,
    ev.Alive: presence.alive,
    ev.Submit: admission.submit,
    ev.Take: driving.take,
    ev.HandBack: driving.hand_back,
    ev.Release: driving.release,
    ev.SetPolicy: driving.set_policy,
    ev.Interrupt: interaction.interrupt,
    ev.Answer: interaction.answer,
    ev.Note: interaction.note,
    ev.Invite: access.invite,
    ev.Revoke: access.revoke,
    ev.Lifecycle: lifecycle.lifecycle,
    ev.BackendReady: lifecycle.ready,
    ev.BackendDied: lifecycle.died,
    ev.BackendMute: lifecycle.mute,
    ev.Replied: lifecycle.replied,
    ev.Idle: lifecycle.idle,
    ev.Prompted: prompts.prompted,
}


class Session(State):
    """The arbitration state of one session, and what may happen to it.

    Args:
        owner: the actor to whom the session belongs.
        policy: how the floor moves at first.
    """

    def handle(self, event: ev.Event, now: float) -> list[Effect]:
        """Take one event.

        Args:
            event: what happened.
            now: session-clock seconds, monotonic.

        Returns:
            What to do, in order. A refused event yields its refusal's record and one `Reject`, and changes nothing
            but what the refusal itself says (a stale connection has been told).
        """
        turn = Turn(self, now)
        _expire(turn)
        _HANDLERS[type(event)](turn, event)
        _expire(turn)  # the driver's last connection may have been the one that went
        return turn.effects

    def handle_timer(self, now: float) -> list[Effect]:
        """Do what the passing of time demands."""
        turn = Turn(self, now)
        _expire(turn)
        return turn.effects

    def next_timer(self) -> float | None:
        """The session-clock second at which `handle_timer` is due, or None."""
        due = [self.lease_until(), *(grant.expires for grant in self.grants.values())]
        return min((moment for moment in due if moment is not None), default=None)

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON values: what `restore` takes."""
        return snapshot.dump(self)

    @classmethod
    def restore(cls, data: dict[str, Any]) -> Session:
        """A session that goes on exactly where the snapshot `data` was taken."""
        session = cls(owner=Actor(**data["owner"]), policy=data["policy"])
        snapshot.fill(session, data)
        return session


def _expire(turn: Turn) -> None:
    """What time alone brings about: ended grants, a lapsed driver, a grace time that is over."""
    state = turn.state
    for grant in [g for g in state.grants.values() if g.expires is not None and g.expires <= turn.now]:
        access.end_grant(turn, grant, "expired", KEEPER)
    if not state.has_lapsed(turn.now):
        return
    if state.floor.state is FloorState.HELD:
        move(turn, FloorEvent.LAPSE, KEEPER, reason="no sign of life within the lease")
    else:
        move(turn, FloorEvent.VACATE, KEEPER, reason="the stale driver did not return")

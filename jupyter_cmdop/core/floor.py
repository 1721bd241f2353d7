"""The floor: who has the right to send input, and how that right moves.

Theory
======

The floor is *free*, *held* by one actor (the driver), or *stale*: its driver gave no sign of life within his lease.
A stale driver's input is not delivered; he resumes by acting again, unless another peer claims the floor first or
the grace time ends and it becomes free.

Every change of who may input raises the *generation*, a fencing token (the idea is Chubby's sequencer, the shape is
Boston Dynamics Spot's lease). Lapsing and resuming change nobody's right, so they do not.

Time enters only as an argument. The driver holds the floor while any of these is true:

* an operation of his is queued or running (`busy`): it renews the lease, the last time when it ends;
* his last act's lease runs (`act_until`): acts through a command line are not connections that could be lost;
* one of his persistent attachments gave a sign of life within `SIGN_OF_LIFE_SECONDS` (`alive_until`).

`TRANSITIONS` is the whole of it; an event that has no row there changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

SIGN_OF_LIFE_SECONDS = 30.0
ACT_LEASE_SECONDS = 120.0
MAX_LEASE_SECONDS = 600.0
STALE_GRACE_SECONDS = 60.0


class FloorState(Enum):
    """Where the right to input is."""

    FREE = "free"
    HELD = "held"
    STALE = "stale"


class FloorEvent(Enum):
    """What can happen to the floor."""

    CLAIM = "claim"  # first explicit input on a floor that is free, or whose driver is stale
    TAKE = "take"  # a peer takes over
    HAND_BACK = "hand_back"  # the driver gives it to somebody
    RELEASE = "release"  # the driver gives it up
    LAPSE = "lapse"  # no sign of life within the lease
    RESUME = "resume"  # the stale driver acts again
    VACATE = "vacate"  # the driver's grace time ended, or his rights did


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table: the state that follows, whether the generation rises, and the journal's word for it."""

    to: FloorState
    new_generation: bool
    entry: str


TRANSITIONS: dict[tuple[FloorState, FloorEvent], Transition] = {
    (FloorState.FREE, FloorEvent.CLAIM): Transition(FloorState.HELD, True, "claimed"),
    (FloorState.FREE, FloorEvent.TAKE): Transition(FloorState.HELD, True, "taken"),
    (FloorState.HELD, FloorEvent.TAKE): Transition(FloorState.HELD, True, "taken"),
    (FloorState.HELD, FloorEvent.HAND_BACK): Transition(FloorState.HELD, True, "handed_back"),
    (FloorState.HELD, FloorEvent.RELEASE): Transition(FloorState.FREE, True, "released"),
    (FloorState.HELD, FloorEvent.LAPSE): Transition(FloorState.STALE, False, "stale"),
    (FloorState.HELD, FloorEvent.VACATE): Transition(FloorState.FREE, True, "freed"),
    (FloorState.STALE, FloorEvent.RESUME): Transition(FloorState.HELD, False, "resumed"),
    (FloorState.STALE, FloorEvent.CLAIM): Transition(FloorState.HELD, True, "claimed"),
    (FloorState.STALE, FloorEvent.TAKE): Transition(FloorState.HELD, True, "taken"),
    (FloorState.STALE, FloorEvent.VACATE): Transition(FloorState.FREE, True, "freed"),
}


@dataclass(slots=True)
class Floor:
    """The state of one session's floor. Only `Session` changes it, through `apply`."""

    state: FloorState = FloorState.FREE
    driver: str | None = None
    generation: int = 0
    since: float | None = None  # the last change of driver; None before the first
    previous: str | None = None
    act_until: float = float("-inf")
    stale_until: float = float("-inf")
    reason: str = ""

    def apply(
        self, event: FloorEvent, *, now: float, actor: str | None = None, reason: str = ""
    ) -> str | None:
        """Move along `TRANSITIONS`.

        Args:
            event: what happened.
            now: session-clock seconds.
            actor: who drives afterwards; needed when the next state is held by somebody new.
            reason: why, in the actor's words.

        Returns:
            The journal's word for the transition, or None when the table has no such row (nothing changed).
        """
        row = TRANSITIONS.get((self.state, event))
        if row is None:
            return None
        if row.to is FloorState.HELD and row.new_generation:
            if actor is None:
                raise AssertionError(f"{event} needs the actor who drives afterwards")
            self.previous = self.driver if self.driver != actor else self.previous
            self.driver, self.since = actor, now
            self.act_until, self.stale_until = float("-inf"), float("-inf")
        elif row.to is FloorState.FREE:
            self.previous, self.driver, self.since = self.driver, None, now
            self.act_until, self.stale_until = float("-inf"), float("-inf")
        elif row.to is FloorState.STALE:
            self.stale_until = now + STALE_GRACE_SECONDS
        else:  # resumed
            self.stale_until = float("-inf")
        self.state = row.to
        self.reason = reason
        if row.new_generation:
            self.generation += 1
        return row.entry

    def renew_act(self, now: float, lease_seconds: float) -> None:
        self.act_until = max(self.act_until, now + lease_seconds)

    def is_held_against(self, actor_id: str) -> bool:
        """Somebody else has the floor, stale or not."""
        return self.driver is not None and self.driver != actor_id

    def to_dict(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "driver": self.driver,
            "generation": self.generation,
            "since": self.since,
            "previous": self.previous,
            "act_until": _finite(self.act_until),
            "stale_until": _finite(self.stale_until),
            "reason": self.reason,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Floor:
        floor = cls(**{**data, "state": FloorState(data["state"])})
        floor.act_until = float("-inf") if floor.act_until is None else floor.act_until
        floor.stale_until = float("-inf") if floor.stale_until is None else floor.stale_until
        return floor


def _finite(value: float) -> float | None:
    return None if value == float("-inf") else value

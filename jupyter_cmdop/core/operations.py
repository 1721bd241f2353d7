"""Operations: what was admitted, where it stands, and the one outcome it ends with.

Theory
======

An operation is one admitted input that executes: a cell, a `run`. It waits in the queue of its *lane* (the main shell
or one subshell), is delivered, may wait for an answer to `input()`, and ends in exactly one outcome. At most one
operation a lane is in the backend; the next one goes out when the backend is idle again, not when it has replied, so
that one actor's error or interrupt can never abort another's input.

Delivered and unanswered when the backend died is *unknown*: it may have run, and is never run again silently.

`TRANSITIONS` holds every allowed step; anything else is a bug here and raises. Conflicts resolve by order of events:
an operation that ended stays ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from .actor import Actor
from .policy import InputClass

Outcome = Literal["ok", "error", "interrupted", "aborted", "superseded", "withdrawn", "unknown"]
OUTCOMES: tuple[Outcome, ...] = (
    "ok",
    "error",
    "interrupted",
    "aborted",
    "superseded",
    "withdrawn",
    "unknown",
)
ReplyStatus = Literal["ok", "error", "aborted"]
MAIN_LANE = ""
SERVED_KEPT = 256  # holders remembered for round-robin; an older one counts as never served


class Status(Enum):
    """Where an operation stands before it has an outcome, and that it has one."""

    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_INPUT = "awaiting_input"
    ENDED = "ended"


class Step(Enum):
    """What can happen to an operation."""

    DELIVER = "deliver"
    PROMPT = "prompt"
    ANSWER = "answer"
    FINISH = "finish"  # the backend said how it ended
    DROP = "drop"  # ended without ever being delivered
    LOSE = "lose"  # the backend is gone, and did not say


TRANSITIONS: dict[tuple[Status, Step], Status] = {
    (Status.QUEUED, Step.DELIVER): Status.RUNNING,
    (Status.QUEUED, Step.DROP): Status.ENDED,
    (Status.RUNNING, Step.PROMPT): Status.AWAITING_INPUT,
    (Status.RUNNING, Step.FINISH): Status.ENDED,
    (Status.RUNNING, Step.LOSE): Status.ENDED,
    (Status.AWAITING_INPUT, Step.PROMPT): Status.AWAITING_INPUT,
    (Status.AWAITING_INPUT, Step.ANSWER): Status.RUNNING,
    (Status.AWAITING_INPUT, Step.FINISH): Status.ENDED,
    (Status.AWAITING_INPUT, Step.LOSE): Status.ENDED,
}

DROP_OUTCOMES: frozenset[Outcome] = frozenset({"aborted", "superseded", "withdrawn"})
FINISH_OUTCOMES: frozenset[Outcome] = frozenset({"ok", "error", "interrupted", "aborted"})
LOSE_OUTCOMES: frozenset[Outcome] = frozenset({"unknown", "interrupted"})
_OUTCOMES_OF: dict[Step, frozenset[Outcome]] = {
    Step.DROP: DROP_OUTCOMES,
    Step.FINISH: FINISH_OUTCOMES,
    Step.LOSE: LOSE_OUTCOMES,
}


@dataclass(slots=True)
class Operation:
    """One admitted input. Only `Session` changes it, through `step`.

    Attributes:
        generation: under which it was admitted, then under which it was delivered.
        act: sent as an act, so that its lease is that of an act.
        since: when it was admitted, then when it was delivered.
        replied: what the backend's reply said, which counts once it is idle.
        revoked: the grant that it came with has ended; if the backend has not got it yet, it is not to get it.
        aborts: what waited behind it when it replied with an error, and is aborted by that.
    """

    id: str
    actor: Actor
    attachment: str
    grant: str | None
    client_session: str
    msg_id: str
    message_type: str
    lane: str
    input_class: InputClass
    digest: str
    size: int
    generation: int
    incarnation: int
    since: float
    request_id: str | None = None
    stop_on_error: bool = True
    adopted_by: str | None = None
    via: str | None = None
    act: bool = False
    status: Status = Status.QUEUED
    outcome: Outcome | None = None
    interrupted_by: str | None = None
    revoked: bool = False
    replied: ReplyStatus | None = None
    error_name: str | None = None
    aborts: tuple[str, ...] = ()
    idle: bool = False

    @property
    def holder(self) -> str:
        """Under whose right it waits or runs: its author, or who adopted it."""
        return self.adopted_by or self.actor.id

    @property
    def connection(self) -> tuple[str, str]:
        """(attachment, client's header session)."""
        return self.attachment, self.client_session

    @property
    def reported(self) -> Outcome | None:
        """The outcome that the backend's reply stands for, once there is a reply."""
        if self.replied == "error" and self.interrupted_by is not None:
            return "interrupted"
        return self.replied

    @property
    def is_active(self) -> bool:
        return self.status is not Status.ENDED

    @property
    def state(self) -> str:
        """The word shown for it: its outcome, or its status before it has one."""
        return self.outcome or self.status.value

    def step(self, step: Step, outcome: Outcome | None = None) -> None:
        """Move along `TRANSITIONS`; an outcome comes with the steps that end it, and only with them."""
        following = TRANSITIONS.get((self.status, step))
        if following is None:
            raise AssertionError(f"operation {self.id}: no step {step.value} from {self.status.value}")
        allowed = _OUTCOMES_OF.get(step)
        if (allowed is None) != (outcome is None) or (allowed is not None and outcome not in allowed):
            raise AssertionError(f"operation {self.id}: outcome {outcome} does not go with {step.value}")
        self.status, self.outcome = following, outcome

    def to_dict(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__slots__}
        data["actor"] = {name: getattr(self.actor, name) for name in Actor.__slots__}
        data["input_class"] = self.input_class.value
        data["status"] = self.status.value
        data["aborts"] = list(self.aborts)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Operation:
        return cls(
            **{
                **data,
                "actor": Actor(**data["actor"]),
                "input_class": InputClass(data["input_class"]),
                "status": Status(data["status"]),
                "aborts": tuple(data["aborts"]),
            }
        )


@dataclass(slots=True)
class Lane:
    """One place where the backend executes: its queue, and what is in it now.

    `served` lists the holders it has served, the most recent last.
    """

    running: str | None = None
    queue: list[str] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"running": self.running, "queue": list(self.queue), "served": list(self.served)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Lane:
        return cls(data["running"], list(data["queue"]), list(data["served"]))

    def note_served(self, holder: str) -> None:
        if holder in self.served:
            self.served.remove(holder)
        self.served.append(holder)
        del self.served[:-SERVED_KEPT]


def next_in_turn(queue: list[tuple[str, str]], served: list[str]) -> str | None:
    """Pick the next of `queue`, a list of (operation id, holder) in order of arrival: round-robin over holders.

    The turn goes to the waiting holder who was served longest ago (never served counts as longest); among equals,
    and inside one holder, arrival order decides.
    """
    first_of: dict[str, str] = {}
    for operation, holder in queue:
        first_of.setdefault(holder, operation)
    if not first_of:
        return None
    recency = {holder: position for position, holder in enumerate(served)}
    chosen = min(first_of, key=lambda holder: recency.get(holder, -1))
    return first_of[chosen]

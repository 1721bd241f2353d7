"""What is to be done about an event: the output of `Session.handle`, in the order in which it must be done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .actor import Actor
from .operations import Outcome
from .refusal import Refusal


@dataclass(frozen=True, slots=True)
class Record:
    """Write an entry. It stands before the effects that it justifies.

    Attributes:
        durable: it must be on disk before the following effects are carried out.
        generation: in force when it happened; one event can bring about several.
        data: the entry's body; the keeper adds the input itself to `admitted` and `input`.
    """

    type: str
    actor: Actor | None = None
    operation: str | None = None
    attachment: str | None = None
    grant: str | None = None
    request_id: str | None = None
    basis: Literal["intended", "attempted", "observed", "reported"] = "observed"
    via: str | None = None
    durable: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Reject:
    """The event in hand is refused."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Admitted:
    """The event in hand became this operation."""

    operation: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The event in hand repeats this operation: its result answers it."""

    operation: str


@dataclass(frozen=True, slots=True)
class Forward:
    """Pass the message in hand on to the backend at once; it is no operation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Write this operation's input to the backend, unless the fence has moved on."""

    operation: str
    lane: str
    generation: int


@dataclass(frozen=True, slots=True)
class Fence:
    """From here on the backend must refuse input of a lower generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class End:
    """An operation has its outcome.

    Attributes:
        delivered: whether the backend ever had it; if not, its client is owed the messages of one that did not run.
    """

    operation: str
    outcome: Outcome
    delivered: bool
    by: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class InterruptBackend:
    """Interrupt what the backend runs now, which is this operation."""

    operation: str


@dataclass(frozen=True, slots=True)
class ShowPrompt:
    """Show a pending prompt to whoever may answer; to the asking client too when `to_author`."""

    operation: str
    prompt: str
    to_author: bool


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Write the answer in hand to the backend."""

    operation: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell everybody who watches that something visible changed."""

    kind: Literal["floor", "policy", "presence", "operation", "prompt", "backend", "session"]
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell one actor that he lost the floor, by whom and why."""

    actor: str
    by: str | None
    reason: str
    generation: int


@dataclass(frozen=True, slots=True)
class OpenGrant:
    """Open what the grant needs to be used."""

    grant: str


@dataclass(frozen=True, slots=True)
class CloseGrant:
    """Close everything that was opened with this grant, at once."""

    grant: str
    reason: str


@dataclass(frozen=True, slots=True)
class RestartBackend:
    """End the backend and start its next incarnation."""


@dataclass(frozen=True, slots=True)
class StopBackend:
    """End the backend and the session."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """The session has a new name."""

    name: str


Effect = (
    Record
    | Reject
    | Admitted
    | Duplicate
    | Forward
    | Deliver
    | Fence
    | End
    | InterruptBackend
    | ShowPrompt
    | SendAnswer
    | Announce
    | Tell
    | OpenGrant
    | CloseGrant
    | RestartBackend
    | StopBackend
    | Renamed
)

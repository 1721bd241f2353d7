"""What can happen to a session: the input of `Session.handle`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .grants import Attachment, Grant
from .operations import MAIN_LANE, ReplyStatus
from .policy import InputClass, PolicyName


@dataclass(frozen=True, slots=True)
class Attach:
    """An actor's connection came."""

    attachment: Attachment


@dataclass(frozen=True, slots=True)
class Detach:
    """An actor's connection went."""

    attachment: str
    reason: str = "closed"


@dataclass(frozen=True, slots=True)
class Alive:
    """A persistent attachment gave a sign of life."""

    attachment: str


@dataclass(frozen=True, slots=True)
class Prior:
    """What the journal knows of a request id that has left the session's memory."""

    operation: str
    digest: str


@dataclass(frozen=True, slots=True)
class Submit:
    """An attachment wants something to reach the backend.

    Attributes:
        client_session: the client's header session; with `attachment` it names the connection.
        msg_id: the client's message id.
        executes: whether it becomes an operation in a lane (an execute) or is passed on at once.
        digest: content digest; HMAC where the content must not be guessable.
        size: bytes it occupies while it waits.
        generation: the generation its author had in view, where his client carries one.
        composed_before: it was made while its connection was away or the session stood still, so its author has not
            seen who drives.
        if_busy: `refuse` answers `busy` instead of queueing behind others.
        act: sent as an act (command line, HTTP, MCP), whose lease is that of an act.
    """

    attachment: str
    client_session: str
    msg_id: str
    message_type: str
    input_class: InputClass
    executes: bool
    lane: str = MAIN_LANE
    digest: str = ""
    size: int = 0
    stop_on_error: bool = True
    generation: int | None = None
    request_id: str | None = None
    composed_before: bool = False
    prior: Prior | None = None
    if_busy: Literal["queue", "refuse"] = "queue"
    act: bool = False


@dataclass(frozen=True, slots=True)
class Take:
    """A peer takes the floor over."""

    attachment: str
    reason: str = ""
    running: Literal["let", "interrupt"] = "let"
    queue: Literal["drop", "adopt"] = "drop"
    lease_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HandBack:
    """The driver gives the floor to `to`, or to whom he has it from."""

    attachment: str
    to: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """The driver gives the floor up."""

    attachment: str


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """An actor with the right `policy` changes how the floor moves."""

    attachment: str
    policy: PolicyName


@dataclass(frozen=True, slots=True)
class Interrupt:
    """An actor wants an operation (or what is most likely his) to stop."""

    attachment: str
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """An actor answers a pending prompt.

    Attributes:
        prompt: the prompt's id, or None for the one that is pending.
        client_session: the connection of a stock client, which can answer only the prompt of its own cell.
    """

    attachment: str
    prompt: str | None = None
    client_session: str | None = None
    stock: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """An actor writes something into the record that reaches no backend."""

    attachment: str
    text: str


@dataclass(frozen=True, slots=True)
class Invite:
    """A new grant, made by an actor with the right `invite`."""

    attachment: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class Revoke:
    """A grant ends; its connections are closed."""

    attachment: str
    grant: str


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """An actor with the right `lifecycle` restarts the backend, closes the session or renames it.

    `force` closes also while an operation of somebody else runs or waits.
    """

    attachment: str
    verb: Literal["restart", "close", "rename"]
    name: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class BackendReady:
    """The backend can take input; `incarnation` counts its lives."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class BackendDied:
    """The backend is gone without having been asked to go."""

    reason: str
    will_restart: bool = True


@dataclass(frozen=True, slots=True)
class BackendMute:
    """The backend lives, but nothing that it publishes arrives any more: what runs in it cannot be followed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Replied:
    """The backend answered an operation."""

    operation: str
    status: ReplyStatus
    error_name: str | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """The backend has finished with an operation.

    `inferred` when its idle message was lost and a later one proved it.
    """

    operation: str
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Prompted:
    """A running operation asks for a line of input."""

    operation: str
    prompt: str
    text: str
    password: bool


Event = (
    Attach
    | Detach
    | Alive
    | Submit
    | Take
    | HandBack
    | Release
    | SetPolicy
    | Interrupt
    | Answer
    | Note
    | Invite
    | Revoke
    | Lifecycle
    | BackendReady
    | BackendDied
    | BackendMute
    | Replied
    | Idle
    | Prompted
)

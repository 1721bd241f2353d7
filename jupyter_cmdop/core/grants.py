"""Rights, the roles that bundle them, and the credentials (grants) that carry them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .actor import Actor

Right = Literal["observe", "input", "take", "interrupt", "approve", "policy", "lifecycle", "invite", "answer"]
Role = Literal["observer", "peer", "owner"]
Transport = Literal["ipc", "tcp", "link", "websocket"]

RIGHTS: frozenset[Right] = frozenset(
    {"observe", "input", "take", "interrupt", "approve", "policy", "lifecycle", "invite", "answer"}
)
ROLE_RIGHTS: dict[Role, frozenset[Right]] = {
    "observer": frozenset({"observe"}),
    "peer": frozenset({"observe", "input", "take", "interrupt", "answer"}),
    "owner": RIGHTS,
}

MAX_GRANTS = 128  # of a session at a time: each has sockets of its own, and those of a process are limited


@dataclass(frozen=True, slots=True)
class Grant:
    """A credential's meaning: which actor it speaks for and what he may do here.

    Attributes:
        expires: session-clock second after which it ends, or None.
    """

    id: str
    actor: Actor
    role: Role
    transport: Transport
    expires: float | None = None

    @property
    def rights(self) -> frozenset[Right]:
        return ROLE_RIGHTS[self.role]


@dataclass(frozen=True, slots=True)
class Attachment:
    """One live connection of one actor.

    Attributes:
        grant: id of the grant it came with; None for the owner's own link.
        persistent: whether its loss says something about the actor's presence (a command line call is an act,
            not a presence).
        client: free text naming the program, shown and recorded.
        via: what the connection came through, when the caller runs below a session's backend.
        can_return: whether a later connection of the same client bears the same id.
    """

    id: str
    actor: Actor
    role: Role
    transport: Transport
    grant: str | None = None
    persistent: bool = True
    client: str = ""
    via: str | None = None
    can_return: bool = False

    @property
    def rights(self) -> frozenset[Right]:
        return ROLE_RIGHTS[self.role]


def attachment_of_grant(grant: str) -> str:
    """The id of the attachment that a grant's own endpoint makes: known before it is attached, and after."""
    return f"g-{grant}"

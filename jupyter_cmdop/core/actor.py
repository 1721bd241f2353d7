"""Who causes input, and the names that actors and sessions may bear."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

ActorKind = Literal["human", "agent", "service", "device"]
ACTOR_KINDS: tuple[ActorKind, ...] = ("human", "agent", "service", "device")

_SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
# An issuer and a slash are allowed: "github:alice", "alice/mcp-editor" (see the glossary in the documentation).
_ACTOR_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@:/+-]{0,127}", re.ASCII)
_RESERVED_ACTORS = frozenset({"keeper", "kernel", "unattributed"})
_RESERVED_ISSUERS = ("session:",)


class BadName(ValueError):
    """A session name or actor id that is not allowed; the message says what is."""


@dataclass(frozen=True, slots=True)
class Actor:
    """One cause of input.

    `kind` is shown and recorded; nothing in this package decides on it.
    """

    id: str
    kind: ActorKind = "human"
    name: str = ""
    on_behalf_of: str | None = None

    @property
    def display_name(self) -> str:
        return self.name or self.id


KEEPER = Actor("keeper", "service", "keeper")
KERNEL = Actor("kernel", "service", "kernel")
UNATTRIBUTED = Actor("unattributed", "service", "unattributed")


def check_session_name(name: str) -> str:
    """Return `name` when it may name a session.

    Raises:
        BadName: it may not; the message names the rule.
    """
    if not _SESSION_NAME.fullmatch(name):
        raise BadName(
            f"{name[:80]!r} cannot name a session: use 1 to 64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


def check_actor_id(actor_id: str) -> str:
    """Return `actor_id` when an actor may be invited under it.

    Raises:
        BadName: it may not; the message names the rule.
    """
    if not _ACTOR_ID.fullmatch(actor_id):
        raise BadName(
            f"{actor_id[:140]!r} cannot name an actor: use 1 to 128 letters, digits or any of . _ @ : / + -, "
            "beginning with a letter or digit"
        )
    if actor_id in _RESERVED_ACTORS or actor_id.startswith(_RESERVED_ISSUERS):
        raise BadName(f"{actor_id!r} is reserved for what the keeper itself reports: choose another name")
    return actor_id

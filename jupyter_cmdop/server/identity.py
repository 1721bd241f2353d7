"""From a user of the Jupyter server to an actor of its sessions.

Whoever holds the server's one token or password is the owner: that credential names nobody else. On a JupyterHub the
owner is the user whose server it is. Everybody else is known by an identity provider of the administrator's choice, and
bears its name in front of his own, so that a stranger who calls himself as the owner does is not taken for him.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_server import CallContext
from jupyter_server.auth import IdentityProvider, PasswordIdentityProvider, User
from tornado import web

from jupyter_cmdop.client.identity import OWNER, Identity, owner_name
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.grants import Role

from .settings import Settings

ID_CHARACTERS = 128
_ESCAPED = re.compile(r"[^A-Za-z0-9._@:/-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Person:
    """Who is behind a request, and what he may do in a session.

    Attributes:
        username: the name under which the identity provider knows this credential, "" for the server itself.
        owns: whether he is the person to whom the sessions belong, and not only somebody with the same role.
        session, token: of a grant, the id of its session, and what proves it.
    """

    actor: Actor
    role: Role
    grant: str | None = None
    username: str = ""
    owns: bool = False
    session: str = ""
    token: str | None = field(default=None, repr=False)

    def identity(self) -> Identity:
        """What a link that acts for this person says in its hello.

        For a grant that is its own token: the keeper judges it once more, and one that was just revoked opens nothing.
        """
        if self.token is not None:
            return Identity(token=self.token)
        if self.owns:
            return OWNER
        return Identity(verified={**self.actor_fields(), "role": self.role, "grant": self.grant})

    def actor_fields(self) -> dict[str, Any]:
        actor = self.actor
        return {
            "id": actor.id,
            "kind": actor.kind,
            "name": actor.display_name,
            "on_behalf_of": actor.on_behalf_of,
        }


class GrantUser(User):
    """The bearer of a grant: a user of one session and of nothing else."""

    person: Person

    @classmethod
    def of(cls, person: Person) -> GrantUser:
        made = cls(username=person.actor.id, name=person.actor.display_name)
        made.person = person
        return made


class People:
    """Knows the actor behind each user of this server."""

    def __init__(self, provider: IdentityProvider, settings: Settings) -> None:
        self._provider = provider
        self._settings = settings
        owner, full_name = owner_name()
        self.owner = Person(Actor(owner, "human", full_name), "owner", owns=True)

    def of(self, handler: web.RequestHandler) -> Person:
        """The person behind a request.

        Raises:
            HTTPError: 403, nobody has been identified.
        """
        user = handler.current_user
        if isinstance(user, GrantUser):
            return user.person
        if user is None:
            raise web.HTTPError(403, "nobody is known behind this request")
        if self._is_owner(user, handler):
            return replace(self.owner, username=user.username)
        issuer = self._settings.issuer or issuer_of(self._provider)
        actor = Actor(foreign_id(issuer, user.username), "human", user.display_name or user.name or "")
        return Person(actor, self._settings.user_role, username=user.username)

    def current(self) -> Person:
        """The person behind the request that is being answered; the owner where there is no request."""
        handler = CallContext.get(CallContext.JUPYTER_HANDLER)
        return self.owner if handler is None else self.of(handler)

    def _is_owner(self, user: User, handler: web.RequestHandler) -> bool:
        if self._settings.owner_is_hub_user:
            return user.username == os.environ.get("JUPYTERHUB_USER")
        if type(self._provider) in (IdentityProvider, PasswordIdentityProvider):
            return True
        return self.came_with_the_token(handler)

    def came_with_the_token(self, handler: web.RequestHandler) -> bool:
        """Whether the credential is the server's own token, which names nobody and ends with nothing."""
        token = self._provider.token
        return (
            bool(token)
            and self._provider.is_token_authenticated(handler)
            and self._provider.get_token(handler) == token
        )


def issuer_of(provider: IdentityProvider) -> str:
    """A short name for who vouches: `hub`, or what the provider's class is called."""
    kind = type(provider)
    if kind.__module__.partition(".")[0] == "jupyterhub":
        return "hub"
    return re.sub(r"[^a-z0-9]", "", kind.__name__.lower().removesuffix("identityprovider")) or "other"


def foreign_id(issuer: str, name: str) -> str:
    """`<issuer>:<name>`; two names never become one, whatever characters they have."""
    escaped = _ESCAPED.sub(lambda found: f"+{ord(found[0]):x}+", name)
    whole = f"{issuer}:{escaped}"
    if len(whole) <= ID_CHARACTERS:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{whole[: ID_CHARACTERS - 33]}+{digest}"

"""Grants as credentials for HTTP: the token of an invitation opens one session, and nothing else of this server.

A gate stands before whatever identity provider is configured. It looks for a grant in the Authorization header only
(never in a URL, which logs and histories keep), and knows one by the connection files of the sessions that live. Then
it asks the keeper, each time: a revoked grant fails at once. The bearer is a user on the model of his session's kernel,
on its websocket and its link, and on its routes of the HTTP API. On every other one he is refused before anything of it
runs, whatever another extension thinks of users who are logged in.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from jupyter_server.auth import IdentityProvider, User
from jupyter_server.services.kernels.handlers import KernelHandler
from tornado import web

from jupyter_cmdop.client.aio import AsyncConnection
from jupyter_cmdop.client.errors import ClientError, Refused
from jupyter_cmdop.client.identity import GRANT_FILE_BYTES, Identity
from jupyter_cmdop.client.registry import Registry, facts
from jupyter_cmdop.core.actor import ACTOR_KINDS, Actor, ActorKind
from jupyter_cmdop.core.grants import ROLE_RIGHTS, Role
from jupyter_cmdop.core.refusal import Refusal

from .api_base import Guarded, OfOneSession
from .api_errors import api_error, refused
from .api_reach import session_id_of
from .errors import http_error, problem
from .identity import GrantUser, Person
from .link_socket import LinkSocketHandler
from .websocket import NamedWebsocketHandler, SessionWebsocketHandler

CLIENT = "jupyter server: grant"


@dataclass(frozen=True, slots=True)
class Granted:
    """What a token stands for, as its connection file says; whether it still holds only the keeper knows."""

    token: str
    grant: str
    session: str
    link: str


class _GrantFile(msgspec.Struct):
    token: str
    grant: str
    session: str


class _ConnectionFile(msgspec.Struct):
    cmdop: _GrantFile


def find_grant(token: str) -> Granted | None:
    """The grant of a live session that this token is, if it is one."""
    registry = Registry.of_user()
    for pointer in registry.list_pointers():
        if pointer.link is None or facts(pointer).state != "alive":
            continue
        for path in registry.connections_dir(pointer.id).glob("*.json"):
            found = _read_grant(path)
            if found is not None and hmac.compare_digest(found.token.encode(), token.encode()):
                return Granted(token, found.grant, pointer.id, pointer.link)
    return None


def _read_grant(path: Path) -> _GrantFile | None:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(GRANT_FILE_BYTES), type=_ConnectionFile).cmdop
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


async def verify(granted: Granted) -> Person:
    """Ask the keeper whose grant this is.

    Raises:
        Refused: it was revoked or has expired.
        ClientError: the keeper does not answer.
    """
    async with await AsyncConnection.connect(
        granted.link, identity=Identity(token=granted.token), client=CLIENT
    ) as connection:
        actor, rights = connection.welcome.actor, frozenset(connection.welcome.rights)
    kind: ActorKind = next((kind for kind in ACTOR_KINDS if kind == actor.get("kind")), "agent")
    on_behalf_of = actor.get("on_behalf_of")
    # The role that the keeper's rights make: the widest of those that have no right more.
    roles: tuple[Role, ...] = ("owner", "peer", "observer")
    role: Role = next((role for role in roles if ROLE_RIGHTS[role] <= rights), "observer")
    return Person(
        Actor(str(actor["id"]), kind, str(actor.get("name") or ""), on_behalf_of),
        role,
        grant=granted.grant,
        session=granted.session,
        token=granted.token,
    )


class GrantGate:
    """Stands where the application looks for its identity provider; everything it does not know is the inner one's."""

    def __init__(
        self,
        inner: IdentityProvider,
        *,
        seen: Callable[[web.RequestHandler, User], None],
        logged_out: Callable[[User], None],
    ) -> None:
        self._inner = inner
        self._seen = seen
        self._logged_out = logged_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property  # type: ignore[misc]  # as unittest.mock does
    def __class__(self) -> type:
        # Jupyter's handlers, and those of extensions, ask with isinstance what the provider can do.
        return type(self._inner)

    @property
    def inner(self) -> IdentityProvider:
        return self._inner

    async def get_user(self, handler: web.RequestHandler) -> User | None:
        token = _header_token(handler)
        if token is not None and not _is_same(token, self._inner.token):
            granted = await asyncio.to_thread(find_grant, token)
            if granted is not None:
                return await self._bearer(handler, granted)
        user = self._inner.get_user(handler)
        if isinstance(user, Awaitable):
            user = await user
        if user is not None:
            self._seen(handler, user)
        return user

    async def _bearer(self, handler: web.RequestHandler, granted: Granted) -> GrantUser:
        handler.current_user = None  # the page of a refusal asks who is logged in
        if await _opens(handler) != granted.session:
            raise _closed(handler)
        try:
            return GrantUser.of(await verify(granted))
        except Refused as refused:
            raise _answer(handler, refused) from refused
        except ClientError as error:
            raise _answer(handler, error) from error

    def clear_login_cookie(self, handler: web.RequestHandler) -> None:
        """What a logout calls."""
        if handler.current_user is not None:
            self._logged_out(handler.current_user)
        self._inner.clear_login_cookie(handler)

    def is_token_authenticated(self, handler: web.RequestHandler) -> bool:
        if isinstance(handler.current_user, GrantUser):
            return True
        return self._inner.is_token_authenticated(handler)

    def should_check_origin(self, handler: web.RequestHandler) -> bool:
        return not self.is_token_authenticated(handler)


async def _opens(handler: web.RequestHandler) -> str | None:
    """Of which session a grant opens this; the whole list: what is not named here is closed."""
    if isinstance(handler, OfOneSession):
        return await handler.session_id_of_path()
    if isinstance(handler, LinkSocketHandler | NamedWebsocketHandler):
        return await asyncio.to_thread(session_id_of, (handler.path_kwargs or {}).get("name", ""))
    if isinstance(handler, SessionWebsocketHandler) or (
        type(handler) is KernelHandler and handler.request.method == "GET"
    ):
        return (handler.path_kwargs or {}).get("kernel_id")
    return None


def _closed(handler: web.RequestHandler) -> web.HTTPError:
    message = "a grant is good for its own session only"
    if isinstance(handler, Guarded):
        return refused(Refusal("forbidden", message, next=("ask for an invitation",)).to_dict())
    return web.HTTPError(403, f"{message}: its kernel, its websocket and its routes below cmdop/api/sessions")


def _answer(handler: web.RequestHandler, error: ClientError) -> web.HTTPError:
    """What the keeper says of a grant, in the words of the route that was asked."""
    if isinstance(handler, Guarded):
        return api_error(error)
    return problem(403, error.message) if isinstance(error, Refused) else http_error(error)


def _header_token(handler: web.RequestHandler) -> str | None:
    found = IdentityProvider.auth_header_pat.fullmatch(handler.request.headers.get("Authorization", ""))
    return found[2].strip() if found else None


def _is_same(token: str, server_token: str | None) -> bool:
    return bool(server_token) and hmac.compare_digest(token.encode(), str(server_token).encode())

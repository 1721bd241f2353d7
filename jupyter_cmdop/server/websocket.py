"""The route of a kernel's websocket: authenticate, authorise, ask the keeper, and give the connection away.

What tornado's and Jupyter's handlers check stays as it is (credentials, Origin, the Upgrade headers); only the object
that would speak the protocol is another one.
"""

from __future__ import annotations

import os
import socket
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.services.kernels.websocket import KernelWebsocketHandler
from tornado import web
from tornado.iostream import IOStream, SSLIOStream

from jupyter_cmdop.client.aio import AsyncConnection
from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.client.reach import link_of

from .errors import http_error, refuse_token_in_url
from .hand_over import HandOverLink, dup_of, refuse_bare

if TYPE_CHECKING:
    from .kernel_manager import SessionKernelManager
    from .session_kernel import SessionKernel
    from .websockets_open import OpenWebsockets

CREDENTIAL_SECONDS = 900.0
"""After so long without renewal a websocket whose credential can end may only observe."""
# What the keeper needs for the handshake; cookies and tokens are the server's business and stay here.
_HANDSHAKE_HEADERS = frozenset(
    {
        "connection",
        "host",
        "origin",
        "sec-websocket-extensions",
        "sec-websocket-key",
        "sec-websocket-protocol",
        "sec-websocket-version",
        "upgrade",
        "user-agent",
    }
)


class SessionWebsocketHandler(KernelWebsocketHandler):
    """`/api/kernels/<id>/channels`; a plain kernel is served as Jupyter does."""

    kernel_id: str
    session_kernel: SessionKernel | ElsewhereSession | None = None

    async def pre_get(self) -> None:
        if not await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "execute", "kernels")
        ):
            raise web.HTTPError(403)
        manager = cast("SessionKernelManager", self.kernel_manager)
        self.session_kernel = manager.session(self.kernel_id)
        if self.session_kernel is None:
            await super().pre_get()

    def get_websocket_protocol(self) -> Any:
        if self.session_kernel is None:
            return super().get_websocket_protocol()
        # The keeper's library speaks RFC 6455 and nothing older.
        if self.request.headers.get("Sec-WebSocket-Version") != "13":
            return None
        return HandingOver(self.session_kernel, self.settings["cmdop_websockets"])

    def on_close(self) -> None:
        if self.session_kernel is None:
            super().on_close()


class NamedWebsocketHandler(SessionWebsocketHandler):
    """`cmdop/api/sessions/<name>/channels`: the same for every session that this user may know of.

    The stock route has the kernels that this server shows; the command line's sessions are in all directories.
    """

    @ws_authenticated
    async def get(self, name: str) -> None:
        refuse_token_in_url(self)
        websockets: OpenWebsockets = self.settings["cmdop_websockets"]
        try:
            self._found = await websockets.find(name, websockets.people.of(self))
            self._link = link_of(self._found)
        except ClientError as error:
            raise http_error(error) from error
        await super().get(self._found.id)

    async def pre_get(self) -> None:
        if not await ensure_async(
            self.authorizer.is_authorized(self, self.current_user, "execute", "kernels")
        ):
            raise web.HTTPError(403)
        manager = cast("SessionKernelManager", self.kernel_manager)
        found = self._found
        shown = manager.session(found.id) if found.id in manager else None
        self.session_kernel = shown or ElsewhereSession(found.id, found.name, self._link)


@dataclass(frozen=True, slots=True)
class ElsewhereSession:
    """A session that this server does not show, and whose websockets it passes on all the same."""

    kernel_id: str
    name: str
    link: str

    def handing_over(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def ask(self, verb: str, args: dict[str, Any]) -> Any:
        async with await AsyncConnection.connect(self.link, client="jupyter server") as connection:
            return await connection.request(verb, args)


class HandingOver:
    """What tornado takes for a websocket protocol: it speaks none, it gives the connection away."""

    def __init__(self, session: SessionKernel | ElsewhereSession, websockets: OpenWebsockets) -> None:
        self._session = session
        self._websockets = websockets

    async def accept_connection(self, handler: SessionWebsocketHandler) -> None:
        """Called by tornado when the request has passed its checks.

        Raises:
            HTTPError: the keeper is not there; the client may try again.
        """
        args = self._args(handler)
        try:
            link = await HandOverLink.open(self._session.link, client="jupyter server: websocket")
        except ClientError as error:
            handler.log.warning(
                "The websocket of session %s cannot be handed over: %s", self._session.name, error
            )
            raise http_error(error) from error
        try:
            connection: Any = handler.request.connection  # tornado's type leaves `stream` to its HTTP/1 class
            stream = connection.stream
            if stream is None or stream.closed():
                return  # its client left while we asked
            attachment = await self._give(handler, stream, link, args)
        finally:
            link.close()
        if attachment is not None:
            self._websockets.opened(self._session, attachment, handler)
        handler.application.log_request(handler)
        handler.on_finish()

    async def _give(
        self, handler: SessionWebsocketHandler, stream: IOStream, link: HandOverLink, args: dict[str, Any]
    ) -> str | None:
        """The attachment; None when the keeper did not take it, and the client has been told."""
        if isinstance(stream, SSLIOStream):
            return await self._give_spliced(handler, link, args)
        # From here to `give` nothing may wait: the connection has no owner who would answer it.
        descriptor = dup_of(stream.socket)
        handler.detach()
        # tornado reads ahead to notice a client that leaves; what it has read is the beginning of the first frame.
        leftover = bytes(stream._read_buffer[: stream._read_buffer_size])  # noqa: SLF001 (there is no public name)
        stream.close()
        try:
            with self._session.handing_over():
                link.give(descriptor, args, leftover)
                attachment = await link.taken()
        except (ClientError, OSError) as error:
            self._failed(handler, error)
            refuse_bare(descriptor)
            return None
        except BaseException:
            refuse_bare(descriptor)
            raise
        os.close(descriptor)
        handler.set_status(101)
        return attachment

    async def _give_spliced(
        self, handler: SessionWebsocketHandler, link: HandOverLink, args: dict[str, Any]
    ) -> str | None:
        ours, theirs = socket.socketpair()
        stream = handler.detach()
        try:
            with self._session.handing_over():
                with theirs:
                    link.give(theirs.fileno(), {**args, "spliced": True}, b"")
                attachment = await link.taken()
        except BaseException as error:
            ours.close()
            stream.close()
            if not isinstance(error, ClientError | OSError):
                raise
            self._failed(handler, error)
            return None
        self._websockets.splices.start(stream, ours)
        handler.set_status(101)
        return attachment

    def _failed(self, handler: SessionWebsocketHandler, error: Exception) -> None:
        handler.set_status(503)
        handler.log.warning(
            "The keeper of session %s did not take a websocket: %s", self._session.name, error
        )

    def _args(self, handler: SessionWebsocketHandler) -> dict[str, Any]:
        request = handler.request
        person = self._websockets.people.of(handler)
        return {
            "path": request.path,
            "headers": [
                [name, value]
                for name, value in request.headers.get_all()
                if name.lower() in _HANDSHAKE_HEADERS
            ],
            "session_id": handler.get_argument("session_id", "") or "",
            "actor": person.actor_fields(),
            "role": person.role,
            "grant": person.grant,
            "valid_until_seconds": self._websockets.valid_seconds(handler, person),
            "client": request.headers.get("User-Agent", ""),
            "origin": request.headers.get("Origin"),
            "cursor": handler.get_argument("cursor", None),
            "spliced": False,
        }

    # What tornado asks of a protocol object, should the client go while we still ask the keeper.

    def on_connection_close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True

    def close(self, code: int | None = None, reason: str | None = None) -> None:
        pass

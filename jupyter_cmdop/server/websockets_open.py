"""The websockets that were handed over: whose credential is behind each, and whether it is still good.

A grant is the keeper's to judge. The server's own token ends with nothing. What else opens a websocket, a login cookie
or a Hub's word, can end: it is looked at again each minute and renewed through the link; what is not renewed for a
quarter of an hour may only observe, and a logout closes it at once.

A websocket that an earlier server handed over lives on without its request, and so without its cookie. It is renewed as
long as its actor is seen with a credential that is good now.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jupyter_server.auth import IdentityProvider, User
from tornado import web

from jupyter_cmdop.client.errors import ClientError, UnknownSession
from jupyter_cmdop.client.identity import OWNER
from jupyter_cmdop.client.reach import find_live
from jupyter_cmdop.client.registry import Found, Registry

from .identity import People, Person
from .link_socket import OpenLinks
from .splice import Splices
from .websocket import CREDENTIAL_SECONDS, ElsewhereSession
from .workspace import Credential, Workspace

if TYPE_CHECKING:
    from .kernel_manager import SessionKernelManager
    from .session_kernel import SessionKernel

log = logging.getLogger(__name__)

RENEW_SECONDS = 60.0
SEEN_SECONDS = 180.0
"""JupyterLab asks for its kernels every ten seconds, a hidden one about once a minute."""


class OpenWebsockets:
    """Knows what was handed over, and renews it while that is right."""

    def __init__(
        self,
        manager: SessionKernelManager,
        provider: IdentityProvider,
        people: People,
        workspace: Workspace,
    ) -> None:
        self.people = people
        self.splices = Splices()
        self.links = OpenLinks(people)
        self._manager = manager
        self._provider = provider
        self._workspace = workspace
        self._elsewhere: dict[str, ElsewhereSession] = {}
        self._feeds: dict[web.RequestHandler, Callable[[], None]] = {}
        self._requests: dict[tuple[str, str], web.RequestHandler] = {}
        self._seen: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._run(self._keep_renewing())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.splices.close()
        self.links.close()

    # --- what the handlers say

    def valid_seconds(self, handler: web.RequestHandler, person: Person) -> float | None:
        """How long the credential of this request holds unless it is renewed."""
        if person.grant is not None or self.people.came_with_the_token(handler):
            return None
        return CREDENTIAL_SECONDS

    async def find(self, name: str, person: Person) -> Found:
        """The live session that a name, an id or NAME@PREFIX stands for.

        Raises:
            UnknownSession: there is none, or none that this person may know of.
        """
        found = await asyncio.to_thread(find_live, name, OWNER, Registry.of_user())
        workspace = None if found.pointer is None else found.pointer.workspace
        if not self._workspace.may_know(person, found.id, workspace):
            raise UnknownSession(name)
        return found

    def opened(
        self, session: SessionKernel | ElsewhereSession, attachment: str, handler: web.RequestHandler
    ) -> None:
        person = self.people.of(handler)
        if self.valid_seconds(handler, person) is None:
            return
        if isinstance(session, ElsewhereSession):
            self._elsewhere[session.kernel_id] = session
        self._requests[(session.kernel_id, attachment)] = handler
        self._workspace.remember_websocket(
            Credential(
                session=session.kernel_id,
                attachment=attachment,
                actor=person.actor.id,
                username=person.username,
            )
        )

    def seen(self, handler: web.RequestHandler, user: User) -> None:
        """Somebody has just been identified."""
        handler.current_user = user
        self._seen[self.people.of(handler).actor.id] = time.monotonic()

    def logged_out(self, user: User) -> None:
        """Close what this credential has opened, now or in an earlier server's time."""
        for credential in self._workspace.credentials():
            if credential.username == user.username:
                self._run(self._drop(credential, "logged out"))
        for link in self.links.that_can_end():
            if link.username == user.username:
                link.end_login("logged out")
        for handler, close in list(self._feeds.items()):
            if self.people.of(handler).username == user.username:
                close()

    def feed_opened(self, handler: web.RequestHandler, close: Callable[[], None]) -> None:
        """A websocket that this process serves itself: `close` is called when its credential has ended."""
        if self.valid_seconds(handler, self.people.of(handler)) is not None:
            self._feeds[handler] = close

    def feed_closed(self, handler: web.RequestHandler) -> None:
        self._feeds.pop(handler, None)

    # --- renewal

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self.renew_all()

    async def renew_all(self) -> None:
        """Look at each credential once."""
        for link in self.links.that_can_end():
            if not await self._is_still(link, link.username):
                link.end_login("its login has ended")
        for credential in await asyncio.to_thread(self._workspace.credentials):
            session = self._session_of(credential)
            if session is None:
                self._forget(credential)
            elif not await self._is_good(credential):
                await self._drop(credential, "its login has ended")
            elif self._is_known(credential) or self._is_seen(credential):
                args = {"attachment": credential.attachment, "valid_until_seconds": CREDENTIAL_SECONDS}
                answer = await _ask(session, "renew", args)
                if answer is None and isinstance(session, ElsewhereSession):
                    del self._elsewhere[session.kernel_id]  # it has ended
                if answer is not None and not answer.get("renewed"):
                    self._forget(credential)  # the websocket has ended

        for handler, close in list(self._feeds.items()):
            if not await self._is_still(handler, self.people.of(handler).username):
                close()

    def _is_known(self, credential: Credential) -> bool:
        return (credential.session, credential.attachment) in self._requests

    def _is_seen(self, credential: Credential) -> bool:
        return time.monotonic() - self._seen.get(credential.actor, -SEEN_SECONDS) < SEEN_SECONDS

    async def _is_good(self, credential: Credential) -> bool:
        """Ask the identity provider once more, with the request that opened the websocket."""
        handler: Any = self._requests.get((credential.session, credential.attachment))
        return handler is None or await self._is_still(handler, credential.username)

    async def _is_still(self, handler: Any, username: str) -> bool:
        # Both are what providers remember of a request, and would answer with.
        handler._jupyter_current_user = None  # noqa: SLF001
        handler.__dict__.pop("_cached_hub_user", None)
        try:
            user = self._provider.get_user(handler)
            if isinstance(user, Awaitable):
                user = await user
        except (OSError, web.HTTPError) as error:
            log.warning("a login cannot be looked at again (%s); it stands for now", error)
            return True
        return user is not None and user.username == username

    async def _drop(self, credential: Credential, reason: str) -> None:
        session = self._session_of(credential)
        if session is not None:
            await _ask(session, "drop", {"attachment": credential.attachment, "reason": reason})
        self._forget(credential)

    def _forget(self, credential: Credential) -> None:
        self._requests.pop((credential.session, credential.attachment), None)
        self._workspace.forget_websocket(credential.session, credential.attachment)

    def _session_of(self, credential: Credential) -> SessionKernel | ElsewhereSession | None:
        shown = next((s for s in self._manager.sessions() if s.kernel_id == credential.session), None)
        return shown or self._elsewhere.get(credential.session)

    def _run(self, doing: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ask(session: SessionKernel | ElsewhereSession, verb: str, args: dict[str, Any]) -> Any:
    """The answer, None when the keeper gives none now."""
    try:
        return await session.ask(verb, args)
    except ClientError as error:
        log.debug("%s of session %s was not answered: %s", verb, session.name, error)
        return None

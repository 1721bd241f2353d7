"""Kernel clients that other extensions of this server make: each speaks as the user whose request made it.

An extension that executes cells in the server takes the kernel's manager out of the mapping and asks it for a client,
or for the kernel's address and key. A session gives neither: it gives a connection of its own to each extension and
user, with a key that names him. What is sent with it is arbitrated and recorded as what he sends himself. Such a grant
is held by a link of this process and ends with it, whatever ends this process.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import KernelConnectionInfo
from traitlets.log import get_logger

from jupyter_cmdop.client.blocking import Connection
from jupyter_cmdop.client.errors import BadAnswer, ClientError, Refused
from jupyter_cmdop.core.refusal import Refusal

from .errors import http_error
from .identity import Person

ASK_SECONDS = 2.0
"""Whoever asks for a client waits, and with him the server: a keeper answers in milliseconds."""
_NO_EXTENSIONS = frozenset(
    {"jupyter_cmdop", "jupyter_server", "jupyter_client", "jupyter_core", "tornado", "__main__"}
)


@dataclass(frozen=True, slots=True)
class Held:
    """A grant for one extension and user, and the link that holds it."""

    person: Person
    extension: str
    link: Connection
    grant: str
    connection_file: str
    info: Mapping[str, Any]
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        self.ended.set()
        self.link.close()

    @property
    def key(self) -> bytes:
        return bytes(self.info["key"])


class ConnectionEnded(ConnectionError):
    """What waits for a reply that cannot come any more."""


class InsideClient(AsyncKernelClient):
    """A stock client that knows when its grant ends: what waits for a reply then fails, and does not hang."""

    grant_ended: asyncio.Event | None = None

    async def _async_is_alive(self) -> bool:
        return self.grant_ended is None or not self.grant_ended.is_set()

    is_alive = _async_is_alive

    async def _async_execute_interactive(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        execution = asyncio.ensure_future(super()._async_execute_interactive(*args, **kwargs))
        if self.grant_ended is None:
            return await execution
        end = asyncio.ensure_future(self.grant_ended.wait())
        try:
            await asyncio.wait((execution, end), return_when=asyncio.FIRST_COMPLETED)
            if execution.done():
                return execution.result()
            raise ConnectionEnded("the session has ended, or this extension's grant was revoked")
        finally:
            execution.cancel()
            end.cancel()
            await asyncio.gather(execution, end, return_exceptions=True)

    # The names that callers use are bound to the base class's methods there.
    execute_interactive = _async_execute_interactive


class InsideClients:
    """What the extensions of this server have of one session.

    Args:
        session: its name, for the log.
        link: path of its keeper's socket.
        person: who asks now.
    """

    def __init__(self, session: Callable[[], str], link: str, person: Callable[[], Person]) -> None:
        self._session = session
        self._link = link
        self._person = person
        self._held: dict[tuple[str, str], Held] = {}

    def __iter__(self) -> Any:
        return iter(self._held.values())

    def held(self) -> Held:
        """The grant of whoever asks now, for the extension that asks for him.

        Raises:
            HTTPError: the keeper gives none.
        """
        person, extension = self._person(), calling_extension()
        known = self._held.get((person.actor.id, extension))
        if known is not None and known.link.failure is None:
            return known
        try:
            made = self._ask(person, extension)
        except (ClientError, OSError) as error:
            get_logger().warning("%s gets no client of session %s: %s", extension, self._session(), error)
            raise http_error(
                error if isinstance(error, ClientError) else BadAnswer(f"no connection file: {error}")
            ) from error
        self._held[(person.actor.id, extension)] = made
        get_logger().info(
            "%s gets a client of session %s that speaks as %s", extension, self._session(), person.actor.id
        )
        return made

    def _ask(self, person: Person, extension: str) -> Held:
        actor = person.actor
        link = Connection.connect(
            self._link, client=f"jupyter server: {extension}", timeout_seconds=ASK_SECONDS
        )
        try:
            answer = link.request(
                "invite",
                {
                    "actor": actor.id,
                    "kind": actor.kind,
                    "name": actor.display_name,
                    "role": "observer" if person.role == "observer" else "peer",
                    "held": True,
                },
                timeout_seconds=ASK_SECONDS,
            )
            if not answer.get("held"):
                link.request("revoke", {"grant": answer["grant"]}, timeout_seconds=ASK_SECONDS)
                raise Refused(Refusal("unsupported", f"the keeper of {self._session()} is too old for this"))
            path = str(answer["connection_file"])
            info = json.loads(Path(path).read_text(encoding="utf-8"))
        except BaseException:
            link.close()
            raise
        info["key"] = info["key"].encode()
        return Held(person, extension, link, str(answer["grant"]), path, info)

    def holder_of(self, key: bytes) -> Held | None:
        """Whose connection this is, known by its key."""
        return next((held for held in self._held.values() if held.key == key), None)

    def connection_info(self) -> dict[str, Any]:
        """What a kernel manager's method of this name answers."""
        info = self.held().info
        wanted = (
            "transport",
            "ip",
            "shell_port",
            "iopub_port",
            "stdin_port",
            "hb_port",
            "control_port",
            "signature_scheme",
            "key",
        )
        return {name: info[name] for name in wanted}

    def client(self, **kwargs: Any) -> InsideClient:
        """A client with a header session of its own, so that two of them never take each other's replies."""
        held = self.held()
        kwargs.pop("session", None)
        made = InsideClient(connection_file=held.connection_file, **kwargs)
        made.grant_ended = held.ended
        made.load_connection_info(cast("KernelConnectionInfo", self.connection_info()))
        return made

    def close(self) -> None:
        """End every grant; what still waits for a reply by one fails."""
        for held in self._held.values():
            held.end()
        self._held.clear()

    def revoked(self, grant: str) -> None:
        """Somebody has revoked a grant that is one of these, perhaps."""
        for who, held in list(self._held.items()):
            if held.grant == grant:
                held.end()
                del self._held[who]


def calling_extension() -> str:
    """The package that asks: the first one on the stack that is neither Jupyter's own nor Python's."""
    frame = inspect.currentframe()
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package and package not in _NO_EXTENSIONS and package not in sys.stdlib_module_names:
            return package
        frame = frame.f_back
    return "an extension"


__all__ = ["Held", "InsideClients", "calling_extension"]

"""A session behind a Jupyter server: the verbs of `Session`, and a link that is opened again when it was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from . import calls, shapes
from .blocking import Connection
from .calls import View
from .errors import ClientError, KeeperGone, LinkTimeout, ServerProblem, UnknownSession
from .identity import OWNER, Identity
from .registry import Registry
from .remote import Server
from .remote_link import OPEN_SECONDS, RemoteLink
from .session import Session

RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0)
"""Pauses before each attempt to connect again; a server that is started anew is back within them."""


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


class RemoteSession(Session):
    """One session, reached through a server.

    Attributes:
        tell: gets a line for a person when the connection is lost, and when it is there again.
    """

    def __init__(
        self, connection: Connection, server: Server, *, identity: Identity, client: str, persistent: bool
    ) -> None:
        super().__init__(connection, Registry.of_user(), link="", identity=identity, client=client)
        self._server = server
        self._persistent = persistent
        self.tell: Callable[[str], None] = lambda line: None

    @classmethod
    def reach(
        cls,
        server: Server,
        name: str,
        *,
        identity: Identity = OWNER,
        client: str = "jupyter_cmdop",
        persistent: bool = False,
    ) -> Self:
        """Reach the live session called `name`.

        Args:
            identity: an actor whom the owner names; the credential is the server's.

        Raises:
            UnknownSession, KeeperGone, Refused, LinkTimeout, ServerProblem: as their names say.
        """
        connection = _connect(server, name, identity=identity, client=client, persistent=persistent)
        return cls(connection, server, identity=identity, client=client, persistent=persistent)

    @property
    def server(self) -> Server:
        return self._server

    @property
    def has_ended(self) -> bool:
        """Whether nobody can attach any more, and its journal answers."""
        return self._connection.welcome.attachment is None

    def _dial(self, *, persistent: bool) -> Connection:
        return _connect(
            self._server, self.id, identity=self._identity, client=self._client, persistent=persistent
        )

    def rename(self, name: str) -> shapes.Renamed:
        return self._do(calls.rename(name))  # the server keeps the name from others meanwhile

    def follow(self, view: View = "outputs", *, after: str | None = None) -> Iterator[shapes.OutputItem]:
        while True:
            try:
                for item in super().follow(view, after=after):
                    after = f"{item.incarnation or 0}:{item.seq}"
                    yield item
            except KeeperGone as gone:
                self.reconnect(gone)
            else:
                return

    def log(
        self,
        *,
        after: int | None = None,
        actor: str | None = None,
        operation: str | None = None,
        types: Sequence[str] | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[dict[str, Any]]:
        while True:
            entries = super().log(
                after=after, actor=actor, operation=operation, types=types, limit=limit, follow=follow
            )
            try:
                for entry in entries:
                    after = int(entry["seq"])
                    limit = None if limit is None else limit - 1
                    yield entry
            except KeeperGone as gone:
                if limit == 0:
                    return
                self.reconnect(gone)
            else:
                return

    def reconnect(self, gone: ClientError, *, pause: Callable[[float], bool] = _sleep) -> None:
        """Open another link in place of the one that ended with `gone`.

        Args:
            pause: waits so long; False gives up.

        Raises:
            ClientError: `gone`, when the session has ended or nobody wants to wait any longer; else why not.
        """
        self._connection.close()
        self.tell(f"note: {gone.message}; connecting again")
        problem: ClientError = gone
        for seconds in RETRY_SECONDS:
            if not pause(seconds):
                raise gone
            try:
                self._connection = self._dial(persistent=self._persistent)
            except UnknownSession:
                raise gone from None
            except (KeeperGone, LinkTimeout) as error:
                problem = error
            except ServerProblem as error:
                if not error.may_pass:
                    raise
                problem = error
            else:
                self.tell(f"note: {self.name} does not go on" if self.has_ended else "note: connected again")
                return
        message = f"{problem.message}; tried {len(RETRY_SECONDS)} times in {sum(RETRY_SECONDS):.0f} s"
        raise ServerProblem(message, next=problem.next) from gone


def _connect(server: Server, name: str, *, identity: Identity, client: str, persistent: bool) -> Connection:
    carrier = RemoteLink.open(server, name)
    return Connection.over(
        carrier.socket,
        identity=identity,
        client=client,
        persistent=persistent,
        deadline=time.monotonic() + OPEN_SECONDS,
        carrier=carrier,
    )

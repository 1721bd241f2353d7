"""A link to a keeper for asyncio: one reader task, any number of requests under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

from .blocking import CONNECT_SECONDS, REQUEST_SECONDS
from .errors import ClientError, LinkTimeout
from .identity import OWNER, Identity
from .protocol import Inbox, Item, LinkProtocol, Welcome
from .sockets import open_link

_READ_BYTES = 256 * 1024
PAUSE_BYTES = 1024 * 1024
"""Unread items of all streams beyond which nothing more is read, as long as no plain request waits for its answer."""


class AsyncConnection:
    """One link. Its reader task belongs to it and ends in `close`.

    Attributes:
        welcome: what the keeper said at the start.
    """

    welcome: Welcome

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: LinkProtocol
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = protocol
        self._news = asyncio.Condition()
        self._streams: dict[int, Inbox] = {}
        self._plain_requests = 0
        self._resume = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        link: str,
        *,
        identity: Identity = OWNER,
        client: str = "jupyter_cmdop",
        persistent: bool = False,
        timeout_seconds: float = CONNECT_SECONDS,
    ) -> Self:
        """Open the link and exchange hellos.

        Raises:
            KeeperGone, LinkTimeout, Refused, PlaceError, BadAnswer: as their names say; nothing stays open.
        """
        # Connecting to a Unix socket waits only for a full backlog; then it may wait, but not in the loop.
        link_socket = await asyncio.to_thread(open_link, link, timeout_seconds)
        reader, writer = await asyncio.open_unix_connection(sock=link_socket)
        connection = cls(reader, writer, LinkProtocol())
        try:
            connection._writer.write(
                connection._protocol.hello(client=client, identity=identity, persistent=persistent)
            )
            connection._task = asyncio.create_task(connection._read(), name="cmdop link reader")
            async with asyncio.timeout(timeout_seconds):
                await connection._until(lambda: connection._protocol.welcome is not None)
        except TimeoutError as error:
            await connection.close()
            raise LinkTimeout("the keeper accepted the link and does not answer") from error
        except BaseException:
            await connection.close()
            raise
        welcome = connection._protocol.welcome
        if welcome is None:
            await connection.close()
            raise connection._protocol.failure or AssertionError("neither a welcome nor a failure")
        connection.welcome = welcome
        return connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def failure(self) -> ClientError | None:
        """Why the link has ended, None while it is open."""
        return self._protocol.failure

    async def request(
        self, verb: str, args: Mapping[str, Any], *, timeout_seconds: float | None = REQUEST_SECONDS
    ) -> Mapping[str, Any]:
        """Ask and wait for the end; items on the way are dropped.

        Raises:
            Refused, RequestFailed, KeeperGone, LinkTimeout, BadAnswer: as their names say.
        """
        number, data = self._protocol.request(verb, args)
        inbox = self._protocol.inbox(number)
        self._plain_requests += 1
        self._resume.set()
        try:
            async with asyncio.timeout(timeout_seconds):
                self._writer.write(data)
                await self._drain()
                while not inbox.is_ended:
                    await self._until(lambda: inbox.is_ended or bool(inbox.items))
                    while inbox.take() is not None:
                        pass
            return inbox.outcome()
        except TimeoutError as error:
            raise LinkTimeout(
                f"the keeper did not answer {verb} within {timeout_seconds:.0f} s", asked=True
            ) from error
        finally:
            self._plain_requests -= 1
            self._forget(number)

    async def stream(self, verb: str, args: Mapping[str, Any]) -> AsyncStream:
        """Ask, and read the answers as they come."""
        number, data = self._protocol.request(verb, args)
        inbox = self._streams[number] = self._protocol.inbox(number)
        self._writer.write(data)
        await self._drain()
        return AsyncStream(self, number, inbox)

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        """What the keeper tells a persistent client, until the link ends."""
        while True:
            await self._until(lambda: bool(self._protocol.events) or self.failure is not None)
            while self._protocol.events:
                yield self._protocol.events.popleft()
            if self.failure is not None:
                return

    async def beat(self) -> None:
        """Give a sign of life. A beat that finds the link ended does nothing."""
        if self._protocol.failure is None:
            self._writer.write(self._protocol.beat())
            await self._drain()

    async def close(self) -> None:
        # Whoever closes may be cancelled while he waits: what must be done is done before the first wait.
        self._writer.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end("this side closed the link")
        try:
            await self._writer.wait_closed()
        except OSError:
            pass  # it is closed, which is all that was wanted

    async def _read(self) -> None:
        while self._protocol.failure is None:
            await self._room()
            try:
                data = await self._reader.read(_READ_BYTES)
            except OSError as error:
                await self._end(f"the link broke ({error.strerror})")
                return
            if not data:
                await self._end("")
                return
            self._protocol.feed(data)
            answer = self._protocol.data_to_send()
            if answer:
                self._writer.write(answer)
            await self._notify()

    async def _room(self) -> None:
        """Leave data in the socket while streams have enough unread and nobody waits for anything else."""
        while (
            self._plain_requests == 0
            and sum(inbox.unread_bytes for inbox in self._streams.values()) > PAUSE_BYTES
        ):
            self._resume.clear()
            await self._resume.wait()

    async def _end(self, reason: str) -> None:
        self._protocol.closed(reason)
        await self._notify()

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def _until(self, predicate: Any) -> None:
        async with self._news:
            await self._news.wait_for(lambda: predicate() or self._protocol.failure is not None)

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except OSError:
            pass  # the reader sees the same end, after what the keeper had still said

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)
        self._resume.set()
        data = self._protocol.forget(number)
        if data and not self._writer.is_closing():
            self._writer.write(data)

    def _taken(self) -> None:
        self._resume.set()


class AsyncStream:
    """The answers to one request: items as they come, and one end. Leaving it cancels what has not ended."""

    def __init__(self, connection: AsyncConnection, number: int, inbox: Inbox) -> None:
        self._connection = connection
        self._number = number
        self._inbox = inbox

    async def __aiter__(self) -> AsyncIterator[Item]:
        while True:
            item = self._inbox.take()
            if item is not None:
                self._connection._taken()  # noqa: SLF001 (one module, one object)
                yield item
            elif self._inbox.is_ended:
                self._inbox.outcome()
                return
            else:
                await self._connection._until(  # noqa: SLF001
                    lambda: bool(self._inbox.items) or self._inbox.is_ended
                )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def outcome(self) -> Mapping[str, Any]:
        """Wait for the end and return the result.

        Raises:
            ClientError: it was refused, failed, or the link ended first.
        """
        await self._connection._until(lambda: self._inbox.is_ended)  # noqa: SLF001
        return self._inbox.outcome()

    def close(self) -> None:
        self._connection._forget(self._number)  # noqa: SLF001

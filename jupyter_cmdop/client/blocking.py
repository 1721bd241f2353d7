"""A link to a keeper over a blocking call interface: one thread asks, another may send beats."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from .errors import ClientError, LinkTimeout
from .identity import OWNER, Identity
from .protocol import Item, LinkProtocol, Welcome
from .sockets import open_link

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 60.0
"""A verb that only changes state answers in milliseconds; restart and close take the time of a kernel's end."""
_READ_BYTES = 256 * 1024

_Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Carrier(Protocol):
    """What carries a link that does not end at a keeper's own socket."""

    def reason(self) -> str:
        """Why nothing comes any more."""

    def close(self) -> None:
        """Return when nothing of it is left."""


class Connection:
    """One link. Use it from one thread; `beat` alone may be called from another.

    Attributes:
        welcome: what the keeper said at the start.
    """

    welcome: Welcome

    def __init__(
        self, link_socket: socket.socket, protocol: LinkProtocol, carrier: Carrier | None = None
    ) -> None:
        self._socket = link_socket
        self._protocol = protocol
        self._carrier = carrier
        self._lock = threading.Lock()
        self._outbox = bytearray()

    @classmethod
    def connect(
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
        deadline = time.monotonic() + timeout_seconds
        opened = open_link(link, timeout_seconds)
        return cls.over(opened, identity=identity, client=client, persistent=persistent, deadline=deadline)

    @classmethod
    def over(
        cls,
        link_socket: socket.socket,
        *,
        identity: Identity,
        client: str,
        persistent: bool,
        deadline: float,
        carrier: Carrier | None = None,
    ) -> Self:
        """Exchange hellos on a socket that is open, and not blocking; it belongs to the connection from now on.

        Raises:
            KeeperGone, LinkTimeout, Refused, BadAnswer: as their names say; nothing stays open.
        """
        connection = cls(link_socket, LinkProtocol(), carrier)
        try:
            connection._greet(
                connection._protocol.hello(client=client, identity=identity, persistent=persistent), deadline
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def _greet(self, hello: bytes, deadline: float) -> None:
        self._send(hello)
        while self._protocol.welcome is None:
            if self._protocol.failure is not None:
                raise self._protocol.failure
            if time.monotonic() >= deadline:
                raise LinkTimeout("the keeper accepted the link and does not answer")
            self.pump(deadline - time.monotonic())
        self.welcome = self._protocol.welcome

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def failure(self) -> ClientError | None:
        """Why the link has ended, None while it is open."""
        return self._protocol.failure

    def request(
        self, verb: str, args: Mapping[str, Any], *, timeout_seconds: float | None = REQUEST_SECONDS
    ) -> Mapping[str, Any]:
        """Ask and wait for the end; items on the way are dropped.

        Raises:
            Refused, RequestFailed, KeeperGone, LinkTimeout, BadAnswer: as their names say.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self.start(verb, args) as stream:
            while not stream.is_ended:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise LinkTimeout(
                        f"the keeper did not answer {verb} within {timeout_seconds:.0f} s", asked=True
                    )
                self.pump(left)
                while stream.take() is not None:
                    pass
            return stream.outcome()

    def start(self, verb: str, args: Mapping[str, Any]) -> Stream:
        """Ask without waiting; several may be under way."""
        number, data = self._protocol.request(verb, args)
        self._send(data)
        return Stream(self, self._protocol, number)

    def beat(self) -> None:
        """Give a sign of life. A beat that finds the link ended does nothing."""
        if self._protocol.failure is None:
            self._send(self._protocol.beat())

    def events(self) -> list[Mapping[str, Any]]:
        """What the keeper has told a persistent client since the last call."""
        taken = list(self._protocol.events)
        self._protocol.events.clear()
        return taken

    def pump(self, timeout_seconds: float | None = None, also: Iterable[int] = ()) -> list[int]:
        """Wait until something arrives, or one of the descriptors `also` is readable, and take it in.

        Returns at once when the link has ended: look at `failure`.

        Returns:
            Those of `also` that are readable.
        """
        if self._protocol.failure is not None:
            return []
        with _Selector() as selector:
            interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)
            selector.register(self._socket, interest)
            for descriptor in also:
                selector.register(descriptor, selectors.EVENT_READ)
            ready = selector.select(timeout_seconds)
        others = []
        for key, mask in ready:
            if key.fileobj is not self._socket:
                others.append(key.fd)
            elif mask & selectors.EVENT_READ:
                self._receive()
        self._send(self._protocol.data_to_send())
        return others

    def close(self) -> None:
        self._protocol.closed("this side closed the link")
        self._socket.close()
        if self._carrier is not None:
            self._carrier.close()

    def _receive(self) -> None:
        with self._lock:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._protocol.closed(f"the link broke ({error.strerror})")
                return
            if data:
                self._protocol.feed(data)
            else:
                self._protocol.closed("" if self._carrier is None else self._carrier.reason())

    def _send(self, data: bytes) -> None:
        """Send what the socket takes now; `pump` sends the rest while it waits for the answer."""
        with self._lock:
            self._outbox += data
            while self._outbox:
                try:
                    sent = self._socket.send(self._outbox)
                except BlockingIOError:
                    return
                except OSError:
                    # What the keeper said before it closed (a refusal, say) is still to be read: `_receive` ends it.
                    self._outbox.clear()
                    return
                del self._outbox[:sent]


class Stream:
    """The answers to one request: items as they come, and one end.

    Iterating waits. `take` and `is_ended` do not, for a caller who waits for several things with `Connection.pump`.
    Leaving it as a context manager cancels what has not ended.
    """

    def __init__(self, connection: Connection, protocol: LinkProtocol, number: int) -> None:
        self._connection = connection
        self._protocol = protocol
        self._number = number
        self._inbox = protocol.inbox(number)

    def __iter__(self) -> Iterator[Item]:
        while True:
            item = self.take()
            if item is not None:
                yield item
            elif self.is_ended:
                self.outcome()
                return
            else:
                self._connection.pump()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self) -> Item | None:
        return self._inbox.take()

    @property
    def is_ended(self) -> bool:
        """Whether the end has arrived; items may still be untaken."""
        return self._inbox.is_ended

    def outcome(self) -> Mapping[str, Any]:
        """The result.

        Raises:
            ClientError: it was refused, failed, or the link ended first.
        """
        return self._inbox.outcome()

    def cancel(self) -> None:
        """Ask the keeper to end it; what it ends with still comes."""
        self._connection._send(self._protocol.cancel(self._number))  # noqa: SLF001 (one module, one object)

    def close(self) -> None:
        data = self._protocol.forget(self._number)
        if data:
            self._connection._send(data)  # noqa: SLF001

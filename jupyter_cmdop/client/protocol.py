"""The client's half of the link, without I/O: bytes in, replies out, and what is still awaited.

A request has an id. It gets any number of items and exactly one end: a result, a refusal or an error. Several requests
may be under way on one link, so the answers of each wait in an inbox of their own until somebody asks. Two shells use
this: `blocking` (a socket) and `aio` (asyncio). When the link closes, every request without an end has the end
`KeeperGone` at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.link import (
    OLDEST_PROTOCOL,
    PROTOCOL,
    FrameDecoder,
    encode_frame,
    encode_spilling,
    unspill,
)

from .errors import BadAnswer, ClientError, FellBehind, KeeperGone, Refused, RequestFailed, refusal_from
from .identity import Identity

BACKLOG_BYTES = 64 * 1024 * 1024
"""Unread answers of one request; a reader that is further behind is cut off and may resume from its cursor."""
EVENTS_KEPT = 1000
"""Unread events of a persistent link; the oldest go first, because each says what is, not what changed."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The keeper's hello."""

    session: Mapping[str, Any]
    attachment: str | None
    actor: Mapping[str, Any]
    rights: tuple[str, ...]
    level: str | None
    version: str
    protocol: int


@dataclass(frozen=True, slots=True)
class Item:
    """One intermediate answer, with the opaque bytes that came with it."""

    data: Mapping[str, Any]
    payload: bytes = b""


@dataclass(slots=True)
class Inbox:
    """What has arrived for one request and has not been taken."""

    verb: str
    items: deque[tuple[Item, int]] = field(default_factory=deque)
    unread_bytes: int = 0
    result: Mapping[str, Any] | None = None
    error: ClientError | None = None
    is_over: bool = False

    def take(self) -> Item | None:
        """The oldest untaken item, or None when there is none now."""
        if not self.items:
            return None
        item, size = self.items.popleft()
        self.unread_bytes -= size
        return item

    @property
    def is_ended(self) -> bool:
        return self.result is not None or self.error is not None

    def outcome(self) -> Mapping[str, Any]:
        """The result.

        Raises:
            ClientError: the request ended otherwise.
        """
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise AssertionError(f"{self.verb} has not ended")
        return self.result


class LinkProtocol:
    """State of one link from the client's side.

    Call `hello()` first and send what it returns; feed what arrives; after `closed()` nothing more can be asked.
    """

    def __init__(self, *, backlog_bytes: int = BACKLOG_BYTES) -> None:
        self._decoder = FrameDecoder()
        self._backlog_bytes = backlog_bytes
        self._next_id = 1
        self._inboxes: dict[int, Inbox] = {}
        self._to_send: list[bytes] = []
        self.welcome: Welcome | None = None
        self.failure: ClientError | None = None
        self._farewell = ""
        self.events: deque[Mapping[str, Any]] = deque(maxlen=EVENTS_KEPT)

    # --- what the client says

    def hello(self, *, client: str, identity: Identity, persistent: bool) -> bytes:
        return encode_frame(
            {
                "hello": {
                    "protocol": PROTOCOL,
                    "oldest": OLDEST_PROTOCOL,
                    "client": client,
                    **identity.hello_fields(),
                    "persistent": persistent,
                }
            }
        )

    def request(self, verb: str, args: Mapping[str, Any], payload: bytes = b"") -> tuple[int, bytes]:
        """Open a request: its id, and the bytes to send.

        Args:
            payload: opaque bytes beside the arguments, for a verb that takes some.

        Raises:
            RequestFailed: what is asked cannot be written as a frame.
            ClientError: the link has ended; why is what is raised.
        """
        if self.failure is not None:
            raise self.failure
        number = self._next_id
        try:
            header = {"id": number, "verb": verb, "args": dict(args)}
            data = encode_frame(header, payload) if payload else encode_spilling(header, "args")
        except WireError as error:
            raise RequestFailed("unsendable", f"this cannot be sent: {error}") from error
        self._next_id += 1
        self._inboxes[number] = Inbox(verb)
        return number, data

    def cancel(self, number: int) -> bytes:
        return encode_frame({"cancel": number})

    def beat(self) -> bytes:
        return encode_frame({"beat": 1})

    def forget(self, number: int) -> bytes:
        """Give up on a request; the bytes to send, empty when it has ended anyway."""
        inbox = self._inboxes.pop(number, None)
        if inbox is None or inbox.is_ended or self.failure is not None:
            return b""
        return self.cancel(number)

    # --- what the keeper says

    def inbox(self, number: int) -> Inbox:
        return self._inboxes[number]

    @property
    def open_requests(self) -> int:
        return sum(not inbox.is_ended for inbox in self._inboxes.values())

    def data_to_send(self) -> bytes:
        """Bytes that answering the keeper requires (cancellations of readers that fell behind)."""
        data, self._to_send = b"".join(self._to_send), []
        return data

    def feed(self, data: bytes) -> None:
        """Take what arrived. A keeper that breaks the protocol ends the link: see `failure`."""
        if self.failure is not None:
            return
        try:
            for header, payload in self._decoder.feed(data):
                whole = unspill(header, payload)
                self._receive(whole, payload if whole is header else b"")
        except WireError as error:
            self._end(BadAnswer(f"the link carried something else than the link protocol: {error}"))

    def closed(self, reason: str = "") -> None:
        """The transport has ended, or an error made it useless."""
        if self._farewell:
            reason = f"the keeper closed the link: {self._farewell}"
        self._end(KeeperGone(reason or "the keeper closed the link"))

    def _end(self, error: ClientError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for inbox in self._inboxes.values():
            if not inbox.is_ended:
                inbox.error = _while_asking(error)

    def _receive(self, header: Mapping[str, Any], payload: bytes) -> None:
        match header:
            case {"id": int(number), **rest}:
                self._answer(number, rest, payload)
            case {"hello": dict(hello)}:
                self.welcome = _welcome(hello)
            case {"refusal": dict(refusal)}:
                self._end(Refused(refusal_from(refusal)))
            case {"error": dict(error)}:
                self._end(_failed(error))
            case {"event": dict(event)}:
                self.events.append(event)
                if event.get("kind") == "closed":
                    self._farewell = str(event.get("reason") or "")
            case _:
                pass  # a newer keeper may say more; what we do not know, we did not ask for

    def _answer(self, number: int, rest: Mapping[str, Any], payload: bytes) -> None:
        inbox = self._inboxes.get(number)
        if inbox is None or inbox.is_ended:
            return  # forgotten meanwhile
        match rest:
            case {"item": dict(item)}:
                self._store(number, inbox, Item(item, payload))
            case {"result": dict(result)}:
                inbox.result = result
            case {"refusal": dict(refusal)}:
                inbox.error = Refused(refusal_from(refusal))
            case {"error": dict(error)}:
                inbox.error = _failed(error)
            case _:
                inbox.error = BadAnswer(f"the keeper answered {inbox.verb} with {sorted(rest)}")

    def _store(self, number: int, inbox: Inbox, item: Item) -> None:
        size = len(item.payload) + _rough_size(item.data)
        # The first does not count: one that is longer than all that may wait is read like any other.
        if inbox.items and inbox.unread_bytes - inbox.items[0][1] + size > self._backlog_bytes:
            inbox.error = FellBehind(
                f"{inbox.verb} was read more slowly than it came ({self._backlog_bytes >> 20} MiB behind)",
                next=("read again with the cursor of the last item",),
            )
            self._to_send.append(self.cancel(number))
            return
        inbox.items.append((item, size))
        inbox.unread_bytes += size


def _welcome(hello: Mapping[str, Any]) -> Welcome:
    session, actor, rights = hello.get("session"), hello.get("actor"), hello.get("rights")
    protocol, attachment, level = hello.get("protocol"), hello.get("attachment"), hello.get("level")
    return Welcome(
        session=session if isinstance(session, dict) else {},
        attachment=attachment if isinstance(attachment, str) else None,
        actor=actor if isinstance(actor, dict) else {},
        rights=tuple(str(right) for right in rights) if isinstance(rights, list) else (),
        level=level if isinstance(level, str) else None,
        version=str(hello.get("version", "")),
        protocol=protocol if isinstance(protocol, int) else PROTOCOL,
    )


def _while_asking(error: ClientError) -> ClientError:
    """The same end as seen by a request that was sent: what became of it is not known."""
    return KeeperGone(error.message, asked=True, next=error.next) if isinstance(error, KeeperGone) else error


def _failed(error: Mapping[str, Any]) -> RequestFailed:
    return RequestFailed(str(error.get("code", "bad_request")), str(error.get("message", "no message")))


def _rough_size(value: object) -> int:
    """Memory in bytes that an answer holds, roughly: its texts, and a little for each value."""
    size, todo = 0, [value]
    while todo:
        part = todo.pop()
        size += 64
        if isinstance(part, str | bytes):
            size += len(part)
        elif isinstance(part, dict):
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
    return size

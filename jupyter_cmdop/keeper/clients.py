"""A kernel client as the keeper sees it, whichever way it comes, and a message that is shown to all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from websockets.frames import Frame, Opcode

from ..core.actor import Actor
from ..wire.errors import WireError
from ..wire.kernel import parse_parent
from ..wire.websocket import encode_legacy, encode_v1


class Client(Protocol):
    """Where a client (or all clients of one grant) is reached.

    Attributes:
        attachment: the id under which the core knows it.
        grant_id: the grant it came with, if it came with one.
        is_open: whether anything can still reach it.
    """

    @property
    def actor(self) -> Actor: ...
    @property
    def attachment(self) -> str: ...
    @property
    def grant_id(self) -> str | None: ...
    @property
    def is_open(self) -> bool: ...

    def reply(
        self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes], seq: int = 0
    ) -> bool: ...
    def publish(self, published: Published) -> None: ...


class Published:
    """One message on iopub; each encoding of it is made once, for all who see it.

    Attributes:
        topic: its ZMQ topic.
        parts: header, parent, metadata, content, buffers.
        seq: of its journal entry; 0 for what has none.
    """

    __slots__ = ("_asked_by", "_binary", "_text", "_v1", "incarnation", "parts", "seq", "topic")

    def __init__(
        self, topic: bytes, parts: list[bytes], *, incarnation: int = 0, seq: int = 0, v1: bytes | None = None
    ) -> None:
        self.topic = topic
        self.parts = parts
        self.incarnation = incarnation
        self.seq = seq
        self._v1 = v1
        self._asked_by: str | None = None
        self._binary: bytes | None = None
        self._text: bytes | None = None

    @property
    def cursor(self) -> str:
        return f"{self.incarnation}:{self.seq}"

    @property
    def asked_by(self) -> str:
        """The header session of the request that it answers."""
        if self._asked_by is None:
            try:
                self._asked_by = parse_parent(self.parts[1]).session
            except WireError:
                self._asked_by = ""
        return self._asked_by

    @property
    def v1(self) -> bytes:
        if self._v1 is None:
            header, parent, metadata, content, *buffers = self.parts
            self._v1 = encode_v1("iopub", header, parent, metadata, content, buffers)
        return self._v1

    @property
    def frame(self) -> bytes:
        """A whole websocket frame of the v1 subprotocol; a server's frames are not masked, so it suits everybody."""
        if self._binary is None:
            self._binary = websocket_frame(self.v1)
        return self._binary

    @property
    def legacy_frame(self) -> bytes:
        """A whole websocket frame of the legacy format."""
        if self._text is None:
            header, parent, metadata, content, *buffers = self.parts
            self._text = websocket_frame(encode_legacy("iopub", header, parent, metadata, content, buffers))
        return self._text


def websocket_frame(data: str | bytes) -> bytes:
    """One unmasked frame that holds the whole message."""
    if isinstance(data, str):
        return Frame(Opcode.TEXT, data.encode()).serialize(mask=False)
    return Frame(Opcode.BINARY, data).serialize(mask=False)

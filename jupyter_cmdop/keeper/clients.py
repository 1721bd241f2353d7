"""A kernel client as the keeper sees it, whichever way it comes, and a message that is shown to all of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol

from websockets.frames import Frame, Opcode

from ..core.actor import Actor
from ..wire.errors import WireError
from ..wire.kernel import parse_parent, sign
from ..wire.websocket import encode_legacy, encode_v1

LONG_BYTES = 2 * 1024 * 1024  # of a message whose signatures and frames a thread makes
_LONG_FRAME = struct.Struct("!BBQ")  # RFC 6455 §5.2: one unmasked frame whose length has eight bytes


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
    def foresee(self, published: Published) -> None:
        """Say what `publish` will need of a long message, so that a thread can make it."""
        ...

    def publish(self, published: Published) -> None: ...


class Published:
    """One message on iopub; each encoding of it is made once, for all who see it.

    Attributes:
        topic: its ZMQ topic.
        parts: header, parent, metadata, content, buffers.
        seq: of its journal entry; 0 for what has none.
    """

    __slots__ = (
        "_asked_by",
        "_binary",
        "_signatures",
        "_text",
        "_v1",
        "_wanted",
        "incarnation",
        "parts",
        "seq",
        "topic",
    )

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
        self._signatures: dict[bytes, bytes] = {}
        self._wanted: list[Callable[[], object]] = []

    def want(self, make: Callable[[], object]) -> None:
        """Have `make` called by `make_ready`."""
        self._wanted.append(make)

    def make_ready(self) -> None:
        """Make what was wanted: a thread's part of a long message, before it is shown."""
        for make in self._wanted:
            try:
                make()
            except WireError:
                continue  # whoever shows it meets the same, and can say so to its client
        self._wanted.clear()

    def signed(self, key: bytes) -> bytes:
        """Its signature under a key; a long message is signed once for each."""
        found = self._signatures.get(key)
        if found is None:
            header, parent, metadata, content = self.parts[:4]
            found = sign(key, header, parent, metadata, content)
            if len(content) > LONG_BYTES:
                self._signatures[key] = found
        return found

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
    opcode = Opcode.TEXT if isinstance(data, str) else Opcode.BINARY
    raw = data.encode() if isinstance(data, str) else data
    if len(raw) <= LONG_BYTES:
        return Frame(opcode, raw).serialize(mask=False)
    # The library copies three times, and holds up every thread meanwhile; a join of this size does not.
    return b"".join((_LONG_FRAME.pack(0x80 | opcode, 127, len(raw)), raw))

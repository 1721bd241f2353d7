"""The two formats of the kernel websocket: the subprotocol v1, and the default one (here: legacy).

Sources: "WebSocket kernel wire protocols" in the documentation of jupyter_server, and its
`services/kernels/connection/{base,channels}.py`; JSON as in `jupyter_client.jsonutil`.

    v1      n:u64, n offsets:u64 (little-endian); channel, header, parent, metadata, content, buffer...
            n offsets bound n - 1 parts: the last one is the end of the frame
    legacy  a text frame with one JSON object; with buffers a binary one:
            n:u32, n offsets:u32 (big-endian); the JSON object, buffer...
            n offsets begin n parts: the last one runs to the end of the frame

A frame has one reading only: an offset that goes back, leaves a gap or leaves the frame is an error. Counts and offsets
are compared with the bytes that are there before anything is made from them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Literal, NamedTuple

import msgspec

from .errors import WireError
from .kernel import LIMITS, MAX_DEPTH, Limits, decode_as, encode_json, parse_header, strict_object

V1_SUBPROTOCOL = "v1.kernel.websocket.jupyter.org"

Channel = Literal["shell", "control", "stdin", "iopub"]

_CHANNELS: dict[bytes, Channel] = {
    b"shell": "shell",
    b"control": "control",
    b"stdin": "stdin",
    b"iopub": "iopub",
}
_CHANNEL_BYTES: dict[str, bytes] = {name: raw for raw, name in _CHANNELS.items()}
CHANNELS: tuple[Channel, ...] = tuple(_CHANNELS.values())

# Channel, header, parent, metadata and content; and the offset of the end.
_V1_OFFSETS = 6
_MAX_U32 = 2**32 - 1
# What a text frame may say of buffers: clients write an empty list or nothing.
_NO_BUFFERS = (b"[]", b"null")


class WebsocketMessage(NamedTuple):
    """One message of either format: JSON parts as raw bytes, nothing parsed."""

    channel: Channel
    header: bytes
    parent: bytes
    metadata: bytes
    content: bytes
    buffers: list[bytes]


def _channel_bytes(channel: str) -> bytes:
    try:
        return _CHANNEL_BYTES[channel]
    except KeyError:
        raise WireError(f"no channel {channel[:80]!r}") from None


def _cut(data: bytes, bounds: Sequence[int], *, table: int, word: int) -> list[bytes]:
    """Cut `data` at `bounds`: the table's end first, never back, the end of the frame last.

    Args:
        data: the frame.
        bounds: one more than there are parts.
        table: where the table of offsets ends.
        word: the size of an offset, to name the one that is wrong.
    """
    start = bounds[0]
    if start != table:
        raise WireError(f"the first part begins at {start}, but the offsets end at {table}", word)
    parts: list[bytes] = []
    for index, stop in enumerate(bounds[1:], 2):
        if not start <= stop <= len(data):
            raise WireError(f"offset {stop} is not between {start} and the end, {len(data)}", word * index)
        parts.append(data[start:stop])
        start = stop
    if start != len(data):
        raise WireError(f"{len(data) - start} bytes behind the last part", start)
    return parts


def _check_total(size: int, limits: Limits) -> None:
    if size > limits.message_bytes:
        raise WireError(f"message of {size} bytes; at most {limits.message_bytes} are allowed")


# v1


def encode_v1(
    channel: str,
    header: bytes,
    parent: bytes,
    metadata: bytes,
    content: bytes,
    buffers: Sequence[bytes] = (),
) -> bytes:
    """Encode a frame of the subprotocol v1; the parts are not looked at.

    Raises:
        WireError: no such channel, or more buffers than a message may have.
    """
    if len(buffers) > LIMITS.buffers:
        LIMITS.check(header=0, parent=0, buffers=len(buffers))
    parts = (_channel_bytes(channel), header, parent, metadata, content, *buffers)
    count = len(parts) + 1
    offsets = accumulate(map(len, parts), initial=8 * (count + 1))
    return b"".join((struct.pack(f"<{count + 1}Q", count, *offsets), *parts))


def decode_v1(data: bytes | bytearray | memoryview, *, limits: Limits = LIMITS) -> WebsocketMessage:
    """Decode a frame of the subprotocol v1; `encode_v1` of the result is the same frame.

    Raises:
        WireError: the frame is not one, names no channel of ours, or is over a limit.
    """
    _check_total(len(data), limits)
    data = bytes(data)
    if len(data) < 8:
        raise WireError(f"frame of {len(data)} bytes has no count", 0)
    count = int.from_bytes(data[:8], "little")
    table = 8 * (count + 1)
    if not _V1_OFFSETS <= count <= _V1_OFFSETS + limits.buffers:
        raise WireError(f"{count} offsets; {_V1_OFFSETS} to {_V1_OFFSETS + limits.buffers} are allowed", 0)
    if table > len(data):
        raise WireError(f"{count} offsets do not fit in {len(data)} bytes", 0)
    parts = _cut(data, struct.unpack_from(f"<{count}Q", data, 8), table=table, word=8)
    channel, header, parent, metadata, content = parts[:5]
    if channel not in _CHANNELS:
        raise WireError(f"no channel {channel[:80]!r}", table)
    limits.check(header=len(header), parent=len(parent), buffers=len(parts) - 5)
    return WebsocketMessage(_CHANNELS[channel], header, parent, metadata, content, parts[5:])


# Legacy


class _LegacyObject(msgspec.Struct, frozen=True):
    header: msgspec.Raw
    parent_header: msgspec.Raw = msgspec.Raw(b"null")
    metadata: msgspec.Raw = msgspec.Raw(b"null")
    content: msgspec.Raw = msgspec.Raw(b"null")
    channel: str | None = None
    buffers: msgspec.Raw = msgspec.Raw(b"null")


_LEGACY = msgspec.json.Decoder(_LegacyObject)
# The parts lie one level deeper in the frame than in a message.
_LEGACY_DEPTH = MAX_DEPTH + 1


def encode_legacy(
    channel: str,
    header: bytes,
    parent: bytes,
    metadata: bytes,
    content: bytes,
    buffers: Sequence[bytes] = (),
) -> str | bytes:
    """Encode a frame of the default subprotocol: text without buffers, binary with buffers.

    Keys, their order and the spaces are those of jupyter_server. The parts are placed in the frame as they are, so each
    must be one whole object: content that ends early could otherwise write metadata of its own.

    Raises:
        WireError: no such channel, a part that is not a JSON object, or a frame over 4 GiB.
    """
    if len(buffers) > LIMITS.buffers:
        LIMITS.check(header=0, parent=0, buffers=len(buffers))
    name = _channel_bytes(channel)
    ids = parse_header(header)
    pieces = (
        (b'{"header": ', strict_object(header, what="header")),
        (b', "msg_id": ', encode_json(ids.msg_id)),
        (b', "msg_type": ', encode_json(ids.msg_type)),
        (b', "parent_header": ', strict_object(parent, what="parent header")),
        (b', "metadata": ', strict_object(metadata, what="metadata")),
        (b', "content": ', strict_object(content, what="content")),
        (b"" if buffers else b', "buffers": []', b', "channel": "%b"}' % name),
    )
    frame = b"".join(chain.from_iterable(pieces))
    if not buffers:
        return frame.decode()
    parts = (frame, *buffers)
    table = 4 * (len(parts) + 1)
    size = table + sum(map(len, parts))
    if size > _MAX_U32:
        raise WireError(f"frame of {size} bytes; offsets of this format end at 4 GiB")
    offsets = accumulate(map(len, parts[:-1]), initial=table)
    return b"".join((struct.pack(f">{len(parts) + 1}I", len(parts), *offsets), *parts))


def decode_legacy(data: str | bytes | bytearray | memoryview, *, limits: Limits = LIMITS) -> WebsocketMessage:
    """Decode a frame of the default subprotocol; without a channel it is for the shell, as in jupyter_server.

    Raises:
        WireError: the frame is not one, names no channel of ours, or is over a limit.
    """
    _check_total(len(data), limits)
    if isinstance(data, str):
        try:
            text = data.encode()
        except UnicodeEncodeError as error:
            raise WireError("text with half a surrogate pair", error.start) from None
        frame = decode_as(_LEGACY, text, what="frame", depth=_LEGACY_DEPTH)
        if bytes(frame.buffers) not in _NO_BUFFERS:
            raise WireError("buffers in a text frame")
        return _from_object(frame, [], limits)
    parts = _cut_legacy(bytes(data), limits)
    frame = decode_as(_LEGACY, parts[0], what="frame", depth=_LEGACY_DEPTH)
    return _from_object(frame, parts[1:], limits)


def _cut_legacy(data: bytes, limits: Limits) -> list[bytes]:
    if len(data) < 4:
        raise WireError(f"frame of {len(data)} bytes has no count", 0)
    count = int.from_bytes(data[:4], "big")
    table = 4 * (count + 1)
    if not 1 <= count <= 1 + limits.buffers:
        raise WireError(f"{count} parts; 1 to {1 + limits.buffers} are allowed", 0)
    if table > len(data):
        raise WireError(f"{count} offsets do not fit in {len(data)} bytes", 0)
    bounds = (*struct.unpack_from(f">{count}I", data, 4), len(data))
    return _cut(data, bounds, table=table, word=4)


def _part(raw: msgspec.Raw, what: str) -> bytes:
    part = bytes(raw)
    if part == b"null":
        return b"{}"
    if not part.startswith(b"{"):
        raise WireError(f"{what} is not an object")
    return part


def _from_object(frame: _LegacyObject, buffers: list[bytes], limits: Limits) -> WebsocketMessage:
    channel = _CHANNELS[_channel_bytes("shell" if frame.channel is None else frame.channel)]
    header = bytes(frame.header)
    if not header.startswith(b"{"):
        raise WireError("header is not an object")
    parent = _part(frame.parent_header, "parent header")
    limits.check(header=len(header), parent=len(parent), buffers=len(buffers))
    metadata, content = _part(frame.metadata, "metadata"), _part(frame.content, "content")
    return WebsocketMessage(channel, header, parent, metadata, content, buffers)

"""Frames of the keeper's Unix socket: a small JSON header and an opaque payload, each preceded by its length.

    header length:u32  payload length:u64 (big-endian); header, payload

The lengths are checked as soon as they have arrived, so a peer that announces a gigabyte and sends nothing costs
nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import WireError
from .kernel import decode_as, decode_json, encode_json

# What we speak, and the oldest that we still understand.
PROTOCOL = 1
OLDEST_PROTOCOL = 1

MAX_HEADER = 4 * 2**20
MAX_PAYLOAD = 2**30

_LENGTHS = struct.Struct(">IQ")
_SPILLED = "spilled"  # names the key whose value is the payload, as JSON
_HEADER = msgspec.json.Decoder(dict[str, Any])


def encode_frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Encode one frame.

    Raises:
        WireError: the header cannot be written as JSON, or header or payload are over their limit.
    """
    raw = encode_json(dict(header))
    _check_lengths(len(raw), len(payload), max_header=MAX_HEADER, max_payload=MAX_PAYLOAD)
    return b"".join((_LENGTHS.pack(len(raw), len(payload)), raw, payload))


def encode_spilling(header: Mapping[str, Any], key: str) -> bytes:
    """Encode one frame whose `key` travels in the payload when the header would be over its limit.

    Raises:
        WireError: not JSON, or over the limit of a payload as well.
    """
    raw = encode_json(dict(header))
    if len(raw) <= MAX_HEADER:
        return b"".join((_LENGTHS.pack(len(raw), 0), raw))
    if key not in header:
        raise WireError(f"link header of {len(raw)} bytes; at most {MAX_HEADER} are allowed")
    rest = {name: value for name, value in header.items() if name != key}
    value = encode_json(header[key])
    return spilled_head(rest, key, len(value)) + value


def spilled_head(header: Mapping[str, Any], key: str, length: int) -> bytes:
    """Encode what stands before the value of `key`, which the caller has as JSON of this length.

    Raises:
        WireError: not JSON, or over a limit.
    """
    raw = encode_json({**header, _SPILLED: key})
    _check_lengths(len(raw), length, max_header=MAX_HEADER, max_payload=MAX_PAYLOAD)
    return _LENGTHS.pack(len(raw), length) + raw


def unspill(header: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """The header as it was given to `encode_spilling`.

    Raises:
        WireError: the payload is not JSON.
    """
    key = header.get(_SPILLED)
    return {**header, key: decode_json(payload)} if isinstance(key, str) else header


def _check_lengths(
    header: int, payload: int, *, max_header: int, max_payload: int, offset: int | None = None
) -> None:
    if header > max_header:
        raise WireError(f"link header of {header} bytes; at most {max_header} are allowed", offset)
    if payload > max_payload:
        raise WireError(f"link payload of {payload} bytes; at most {max_payload} are allowed", offset)


class FrameDecoder:
    """Turn the bytes of one link, in whatever pieces they arrive, into frames.

    It keeps what has arrived of one frame and no more. After an error the place of the next frame is unknown: the
    decoder repeats the error, and the link must be closed. `WireError.offset` counts from the first byte of the link.
    """

    __slots__ = ("_broken", "_buffer", "_max_header", "_max_payload", "_needed", "_passed")

    def __init__(self, *, max_header: int = MAX_HEADER, max_payload: int = MAX_PAYLOAD) -> None:
        self._max_header = max_header
        self._max_payload = max_payload
        self._buffer = bytearray()
        self._needed = _LENGTHS.size  # bytes without which looking again is of no use
        self._passed = 0  # bytes of the frames that were handed out
        self._broken: WireError | None = None

    @property
    def buffered(self) -> int:
        """How many bytes of an unfinished frame have arrived: not 0 at the end of a link that was cut."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[dict[str, Any], bytes]]:
        """Take what has arrived and return the frames that it completes.

        Raises:
            WireError: a length over its limit, or a header that is not a JSON object; frames that arrived in the same
                piece are lost with it.
        """
        if self._broken is not None:
            raise WireError(self._broken.reason, self._broken.offset)
        self._buffer += data
        if len(self._buffer) < self._needed:
            return []
        try:
            return self._take()
        except WireError as error:
            self._broken = WireError(error.reason, error.offset)
            self._buffer = bytearray()
            raise

    def _take(self) -> list[tuple[dict[str, Any], bytes]]:
        frames: list[tuple[dict[str, Any], bytes]] = []
        start = 0
        with memoryview(self._buffer) as view:
            while self._completes(view, start):
                header, payload = _LENGTHS.unpack_from(view, start)
                at = start + _LENGTHS.size
                start = at + header + payload
                decoded = decode_as(_HEADER, bytes(view[at : at + header]), what="link header")
                frames.append((decoded, bytes(view[at + header : start])))
        del self._buffer[:start]
        self._passed += start
        return frames

    def _completes(self, view: memoryview, start: int) -> bool:
        """Say whether a whole frame begins at `start`, and note how much is needed for one."""
        self._needed = _LENGTHS.size
        arrived = len(view) - start
        if arrived < self._needed:
            return False
        header, payload = _LENGTHS.unpack_from(view, start)
        _check_lengths(
            header,
            payload,
            max_header=self._max_header,
            max_payload=self._max_payload,
            offset=self._passed + start,
        )
        self._needed += header + payload
        return arrived >= self._needed


class FrameWatch:
    """Knows where frames end in bytes that somebody passes on; it keeps nothing of them but the lengths."""

    __slots__ = ("_left", "_lengths")

    def __init__(self) -> None:
        self._lengths = b""
        self._left = 0

    @property
    def is_between(self) -> bool:
        """Whether what has passed ends where a frame ends, so that another may follow."""
        return not self._left and not self._lengths

    def pass_by(self, data: bytes) -> int | None:
        """Where in `data` its last frame ends; None when none ends there."""
        at, end = 0, None
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(_LENGTHS.size - len(self._lengths), len(data) - at)
                self._lengths += data[at : at + step]
                if len(self._lengths) == _LENGTHS.size:
                    self._left, self._lengths = sum(_LENGTHS.unpack(self._lengths)), b""
            at += step
            if self.is_between:
                end = at
        return end

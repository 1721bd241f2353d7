"""Jupyter messages as ZMQ frames: split, sign, verify, join, read the few fields we need, and stamp them.

The format is "The Wire Protocol" of the jupyter_client documentation ("Messaging in Jupyter"):

    [identity, ..., b"<IDS|MSG>", HMAC, header, parent_header, metadata, content, buffer, ...]

The signature covers the four JSON parts and not the buffers. A message stays raw bytes: the header and the parent are
read into a few typed fields, the content only where the rules ask for it, and dates and numbers never.

JSON is read as strictly as msgspec does, except for what kernels and clients do send and stock Jupyter accepts: NaN and
the infinities become null, half a surrogate pair and bytes that are not UTF-8 become U+FFFD. Nothing nests deeper than
`MAX_DEPTH`, because a kernel drops without an answer what its own parser finds too deep.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import hmac
import json
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from .errors import WireError

T = TypeVar("T")

DELIMITER = b"<IDS|MSG>"

# How deep JSON may nest: far more than any message needs, far less than the recursion limit of any parser behind us.
MAX_DEPTH = 100
# Reading what only stock Jupyter accepts is slow (100 ns a byte at worst): it is for odd messages, not for floods. What
# a client sends must not hold up the keeper; what a kernel shows must not get lost.
REPAIR_BYTES = 2**19
REPAIR_OUTPUT_BYTES = 4 * 2**20
# What is looked at together; a piece between two quotes costs some forty bytes.
_DEPTH_BYTES = 64 * 1024
# Above this, feeding the parts one by one to the digest costs less than copying them together.
_JOIN_BYTES = 64 * 1024


# Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one message may have; checked before anything is allocated for it."""

    message_bytes: int = 512 * 2**20
    header_bytes: int = 64 * 1024
    # A parent is a header that we stamped: a header at its limit must still fit when it comes back.
    parent_bytes: int = 128 * 1024
    identities: int = 16
    buffers: int = 1024

    def check(self, *, header: int, parent: int, buffers: int) -> None:
        """Check the sizes of a header and a parent, and a number of buffers.

        Raises:
            WireError: one of them is over its limit.
        """
        if header > self.header_bytes:
            raise WireError(f"header of {header} bytes; at most {self.header_bytes} are allowed")
        if parent > self.parent_bytes:
            raise WireError(f"parent header of {parent} bytes; at most {self.parent_bytes} are allowed")
        if buffers > self.buffers:
            raise WireError(f"{buffers} buffers; at most {self.buffers} are allowed")


LIMITS = Limits()


# JSON

# Opening brackets count up, closing ones down; everything else is deleted.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))

_ENCODER = msgspec.json.Encoder()
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_OBJECT = msgspec.json.Decoder(dict[str, Any])
# The values of an object, checked but not built.
_ENTRIES = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _check_depth(raw: bytes, *, what: str, depth: int = MAX_DEPTH) -> None:
    if raw.count(b"[") + raw.count(b"{") <= depth:
        return
    # Without escaped backslashes and then without escaped quotes, every second piece between quotes is a string.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    level = first = 0
    for at in range(0, len(plain), _DEPTH_BYTES):
        pieces = plain[at : at + _DEPTH_BYTES].split(b'"')
        steps = array("b", b"".join(pieces[first::2]).translate(_STEPS, _NO_BRACKETS))
        if max(accumulate(steps, initial=level)) > depth:
            raise WireError(f"{what} nests deeper than {depth}")
        level += sum(steps)
        first ^= (len(pieces) - 1) & 1


def _to_finite(number: str) -> float | None:
    value = float(number)
    return value if math.isfinite(value) else None


def _to_strict(raw: bytes, *, what: str, repair_bytes: int) -> bytes:
    """Convert JSON that only stock Jupyter accepts; see the module's docstring.

    `jupyter_client.session.json_unpacker` decodes with `errors="replace"` and then reads with `json.loads`.
    """
    if len(raw) > repair_bytes:
        raise WireError(f"{what} is not strict JSON, and too long to be repaired")
    try:
        text = raw.decode("utf-8", "replace")
        value = json.loads(text, parse_float=_to_finite, parse_constant=_to_finite)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{what} is not JSON: {error}", getattr(error, "pos", None)) from None
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _decode_strict(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    # msgspec does not look at the UTF-8 of the values that it skips.
    if not raw.isascii():
        raw.decode()
    return decoder.decode(raw)


def _decode_with_text(
    decoder: msgspec.json.Decoder[T],
    raw: bytes,
    *,
    what: str,
    depth: int = MAX_DEPTH,
    repair_bytes: int = REPAIR_BYTES,
) -> tuple[T, bytes]:
    """Decode, and return with the value the strict JSON that it was read from: mostly `raw` itself."""
    _check_depth(raw, what=what, depth=depth)
    try:
        try:
            return _decode_strict(decoder, raw), raw
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Also for a wrong type: a number out of range is reported as one.
            strict = _to_strict(raw, what=what, repair_bytes=repair_bytes)
            return _decode_strict(decoder, strict), strict
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{what}: {error}") from None


def decode_as(
    decoder: msgspec.json.Decoder[T],
    raw: bytes,
    *,
    what: str,
    depth: int = MAX_DEPTH,
    repair_bytes: int = REPAIR_BYTES,
) -> T:
    """Decode JSON into the type that the decoder was made for.

    Args:
        decoder: made once, by the module that owns the type.
        raw: the JSON.
        what: what the JSON is, for the message of the error.
        depth: how deep it may nest.
        repair_bytes: how long it may be when it is not strict JSON.

    Raises:
        WireError: not JSON, of another type, or too deep.
    """
    if raw.isascii() and raw.count(b"[") + raw.count(b"{") <= depth:
        try:
            return decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            pass  # the slow way says what is wrong, or accepts it
    return _decode_with_text(decoder, raw, what=what, depth=depth, repair_bytes=repair_bytes)[0]


def decode_json(raw: bytes, *, repair_bytes: int = REPAIR_BYTES) -> Any:
    """Decode any JSON; `repair_bytes` as for `decode_as`.

    Raises:
        WireError: not JSON, or deeper than `MAX_DEPTH`.
    """
    return decode_as(_ANY, raw, what="JSON", repair_bytes=repair_bytes)


def decode_entries(raw: bytes, *, repair_bytes: int = REPAIR_BYTES) -> dict[str, msgspec.Raw]:
    """Decode an object; its values are checked and not built, so that a long one can be passed on as it is.

    Raises:
        WireError: not a JSON object, or deeper than `MAX_DEPTH`.
    """
    return decode_as(_ENTRIES, raw, what="JSON", repair_bytes=repair_bytes)


def encode_json(value: Any) -> bytes:
    """Encode as compact JSON; NaN and the infinities become null.

    Raises:
        WireError: not to be written as JSON, half a surrogate pair, or deeper than `MAX_DEPTH`.
    """
    try:
        raw = _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise WireError(f"cannot be written as JSON: {error}") from None
    _check_depth(raw, what="JSON")
    return raw


def strict_object(raw: bytes, *, what: str) -> bytes:
    """Check that `raw` is one whole JSON object and return it, repaired when only stock Jupyter would accept it.

    What is returned can be placed inside other JSON: it is valid UTF-8 and cannot end early.

    Raises:
        WireError: not a JSON object, or too deep.
    """
    return _decode_with_text(_ENTRIES, raw, what=what, repair_bytes=REPAIR_OUTPUT_BYTES)[1]


# Frames


class Frame(Protocol):
    """What `zmq.Frame` has, without importing zmq."""

    @property
    def bytes(self) -> builtins.bytes: ...

    def __len__(self) -> int: ...


@dataclass(slots=True)
class Message:
    """One message as it travelled: raw bytes, nothing parsed, nothing verified."""

    identities: list[bytes]
    signature: bytes
    header: bytes
    parent: bytes
    metadata: bytes
    content: bytes
    buffers: list[bytes]

    @property
    def parts(self) -> list[bytes]:
        """What `join` takes: the four JSON parts, then the buffers."""
        return [self.header, self.parent, self.metadata, self.content, *self.buffers]


def _frame_bytes(frame: memoryview | Frame) -> bytes:
    return frame.tobytes() if isinstance(frame, memoryview) else frame.bytes


def split(frames: Sequence[bytes | memoryview | Frame], *, limits: Limits = LIMITS) -> Message:
    """Split the frames of one ZMQ message (a view must be one of bytes); `WireError.offset` is the index of a frame.

    Raises:
        WireError: no delimiter, too few frames, or something over its limit.
    """
    # Counted first, so that a message of a million empty frames costs nothing.
    if len(frames) > limits.identities + 6 + limits.buffers:
        raise WireError(f"{len(frames)} frames are more than a message may have")
    total = sum(map(len, frames))
    if total > limits.message_bytes:
        raise WireError(f"message of {total} bytes; at most {limits.message_bytes} are allowed")
    raw = [frame if isinstance(frame, bytes) else _frame_bytes(frame) for frame in frames]
    try:
        at = raw.index(DELIMITER, 0, limits.identities + 1)
    except ValueError:
        if len(raw) > limits.identities:
            raise WireError(f"no delimiter after at most {limits.identities} identities") from None
        raise WireError("no delimiter") from None
    if len(raw) - at < 6:
        raise WireError(f"{len(raw) - at - 1} frames after the delimiter; at least 5 are needed", at)
    limits.check(header=len(raw[at + 2]), parent=len(raw[at + 3]), buffers=len(raw) - at - 6)
    signature, header, parent, metadata, content = raw[at + 1 : at + 6]
    return Message(raw[:at], signature, header, parent, metadata, content, raw[at + 6 :])


@functools.lru_cache(maxsize=256)
def _keyed(key: bytes) -> hmac.HMAC:
    """To be copied: what the key brings is worked out once."""
    return hmac.new(key, digestmod="sha256")


def sign(key: bytes, header: bytes, parent: bytes, metadata: bytes, content: bytes) -> bytes:
    """Sign with HMAC-SHA256, as lower-case hex; b"" when the key is empty, as the specification says."""
    if not key:
        return b""
    digest = _keyed(key).copy()
    if len(content) + len(metadata) <= _JOIN_BYTES:
        digest.update(b"".join((header, parent, metadata, content)))
    else:
        digest.update(header)
        digest.update(parent)
        digest.update(metadata)
        digest.update(content)
    return digest.hexdigest().encode()


def verify(key: bytes, message: Message) -> bool:
    """Check the signature; with an empty key there is none, and everything passes. Buffers are never covered."""
    if not key:
        return True
    expected = sign(key, message.header, message.parent, message.metadata, message.content)
    return hmac.compare_digest(expected, message.signature)


def join(
    key: bytes,
    parts: Sequence[bytes],
    *,
    identities: Sequence[bytes] = (),
    signature: bytes | None = None,
) -> list[bytes]:
    """Build the frames of one ZMQ message, signed with `key`.

    Args:
        key: the key of the connection that the message leaves by.
        parts: header, parent, metadata, content and then any buffers: `Message.parts`.
        identities: the routing prefix.
        signature: one that was made already; nothing is signed then.

    Raises:
        WireError: fewer than four parts, or an identity that would be read as the delimiter.
    """
    if len(parts) < 4:
        raise WireError(f"{len(parts)} parts; a message has at least 4")
    if DELIMITER in identities:
        raise WireError("an identity is the delimiter")
    if signature is None:
        signature = sign(key, parts[0], parts[1], parts[2], parts[3])
    return [*identities, DELIMITER, signature, *parts]


# Header and parent

# Ids are kept in tables and shown to people.
_Id = Annotated[str, msgspec.Meta(max_length=256)]
_NeededId = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Header(msgspec.Struct, frozen=True, gc=False):
    """What we read of a header; what the client wrote, so `username` is a claim."""

    msg_id: _NeededId
    msg_type: _NeededId
    session: _Id = ""
    username: str = ""
    date: str | int | float | None = None
    version: str = ""
    subshell_id: _Id | None = None


class ParentHeader(msgspec.Struct, frozen=True, gc=False):
    """What we read of a parent header; empty where the kernel had no request to name."""

    msg_id: str = ""
    msg_type: str = ""
    session: str = ""
    cmdop_operation: str | None = None


_HEADER = msgspec.json.Decoder(Header)
_PARENT = msgspec.json.Decoder(ParentHeader)
_NO_PARENT = ParentHeader()


def parse_header(raw: bytes) -> Header:
    """Read a header.

    Raises:
        WireError: not an object, a field of another type, no msg_id or msg_type, an id over 256 characters, too long
            or too deep.
    """
    if len(raw) > LIMITS.header_bytes:
        LIMITS.check(header=len(raw), parent=0, buffers=0)
    return decode_as(_HEADER, raw, what="header")


def parse_parent(raw: bytes) -> ParentHeader:
    """Read a parent header.

    Raises:
        WireError: not an object, a field of another type, too long or too deep.
    """
    if raw == b"{}":
        return _NO_PARENT
    if len(raw) > LIMITS.parent_bytes:
        LIMITS.check(header=0, parent=len(raw), buffers=0)
    return decode_as(_PARENT, raw, what="parent header")


def stamp_header(raw: bytes, *, username: str, actor: str, operation: str | None, generation: int) -> bytes:
    """Write who is behind a request into its header, over whatever the client claimed.

    `username` is overwritten; every client key beginning with "cmdop_" goes; ours are strings. The other keys stay. A
    list or an object among them becomes its JSON text: ipykernel hashes the whole parent header, and one such value
    breaks every `print` under it, also those of somebody else's thread.

    Raises:
        WireError: the header is not a JSON object, or too long or too deep.
    """
    if len(raw) > LIMITS.header_bytes:
        LIMITS.check(header=len(raw), parent=0, buffers=0)
    header: dict[str, Any] = {}
    for key, value in decode_as(_OBJECT, raw, what="header").items():
        if key[:6].lower() != "cmdop_":
            header[key] = encode_json(value).decode() if isinstance(value, dict | list) else value
    header["username"] = username
    header["cmdop_actor"] = actor
    if operation is not None:
        header["cmdop_operation"] = operation
    header["cmdop_generation"] = str(generation)
    return encode_json(header)


# Metadata


class ClientStamp(msgspec.Struct, frozen=True, gc=False):
    """What a client may say in `metadata.cmdop` of a request; never who it is."""

    request_id: _NeededId | None = None
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None


class _Stamped(msgspec.Struct, frozen=True):
    cmdop: ClientStamp | None = None


_STAMPED = msgspec.json.Decoder(_Stamped)
_NO_STAMP = ClientStamp()


def stamp_metadata(raw: bytes, stamp: bytes) -> bytes:
    """Put our `stamp` under the key "cmdop" of metadata, so that no other "cmdop" in there can win.

    Where the bytes can hold no such key ours is spliced in at the end. A backslash may spell the word and a word in
    other capitals may win in a parser that ignores them; then such keys are taken out.

    Args:
        raw: the metadata as it came.
        stamp: a JSON object, written by us; it is not checked.

    Raises:
        WireError: `raw` is not a JSON object.
    """
    if raw == b"{}":
        return b'{"cmdop":' + stamp + b"}"
    entries, raw = _decode_with_text(_ENTRIES, raw, what="metadata")
    if b"\\" in raw or b"cmdop" in raw.lower():
        kept = {key: value for key, value in entries.items() if key.lower() != "cmdop"}
        kept["cmdop"] = msgspec.Raw(stamp)
        return _ENCODER.encode(kept)
    comma = b"," if entries else b""
    return raw.rstrip()[:-1] + comma + b'"cmdop":' + stamp + b"}"


def client_stamp(metadata: bytes) -> ClientStamp:
    """Read what a request says in `metadata.cmdop`; nothing said is all None.

    Raises:
        WireError: not an object, a field of another type, an empty request id or one over 256 characters.
    """
    if metadata == b"{}":
        return _NO_STAMP
    return decode_as(_STAMPED, metadata, what="metadata").cmdop or _NO_STAMP


# Content


class ExecuteRequest(msgspec.Struct, frozen=True, gc=False):
    """What the rules ask of an execute_request."""

    code: str = ""
    silent: bool = False
    store_history: bool = True
    allow_stdin: bool = True
    stop_on_error: bool = True
    user_expressions: dict[str, str] | None = None  # ipykernel gives no reply at all when this is no object


_EXECUTE = msgspec.json.Decoder(ExecuteRequest)
_DIGEST_DOMAIN = b"cmdop.content.v1\0"


def parse_execute(content: bytes) -> ExecuteRequest:
    """Read the content of an execute_request.

    Raises:
        WireError: not an object, a field of another type, or too deep.
    """
    return decode_as(_EXECUTE, content, what="execute_request")


def without_stop_on_error(content: bytes) -> bytes:
    """Return the same execute_request with `stop_on_error` false.

    The kernel would abort what anybody has queued behind an error; our queue aborts what its author queued.

    Raises:
        WireError: not an object, or too deep.
    """
    entries = decode_as(_ENTRIES, content, what="execute_request")
    entries["stop_on_error"] = msgspec.Raw(b"false")
    return _ENCODER.encode(entries)


def content_digest(message_type: str, content: bytes, buffers: Iterable[bytes] = ()) -> str:
    """Return the SHA-256, as hex, that says whether two requests ask for the same.

    Each part is preceded by its length, so that no byte can move from one part to the next unnoticed.
    """
    digest = hashlib.sha256(_DIGEST_DOMAIN)
    for part in (message_type.encode("utf-8", "surrogatepass"), content, *buffers):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()

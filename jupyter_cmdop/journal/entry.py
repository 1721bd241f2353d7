"""One entry of a journal and the chain: the canonical envelope, its hash, and the salted commitment to a body.

An envelope is JSON with sorted keys and no spaces, whose values are integers and strings only; nanoseconds are decimal
strings, since they pass 2^53. So it reads the same in every language (RFC 8785 gives the same bytes). It names the hash
of the entry before (`prev`) and commits to the body by `bh` = SHA-256(salt + body). A body and its salt can be dropped
later and the chain still verifies; without the salt nobody can try candidates for a dropped body.
What must stay secret has no commitment at all (`bh` is "-") and no size.

Nothing here does I/O or reads a clock; the salt is an argument.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

VERSION: Final = 1
DOMAIN: Final = b"cmdop.entry.v1\0"  # a hash made for this purpose can serve no other
GENESIS: Final = bytes(32)  # `prev` of the first entry
SALT_BYTES: Final = 16
MAX_INTEGER: Final = 2**53 - 1
WITHHELD: Final = "-"  # in place of a commitment

Basis = Literal["intended", "attempted", "observed", "inferred", "reported", "verified"]
Form = Literal["json", "v1", "none"]
Envelope = dict[str, int | str]


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What happened, before it has a place in the chain.

    (A msgspec.Struct, not a dataclass: one is made for every output, 0.1 us instead of 2.2; `msgspec.structs.replace`.)

    Attributes:
        form: of the body: a JSON object, a kernel message as a kernel websocket v1 frame, or nothing.
        withheld: the body is a secret; it is neither stored nor committed to, nor is its size.
        cause: the operation or entry that led to this one.
        basis: how it is known.
        via: the operation through which an actor came, when he acts from inside a session.
        time_ns: wall clock. mono_ns: monotonic clock of the same moment.
    """

    type: str
    actor: str | None = None
    on_behalf_of: str | None = None
    operation: str | None = None
    generation: int = 0
    incarnation: int = 0
    attachment: str | None = None
    grant: str | None = None
    request_id: str | None = None
    cause: str | None = None
    basis: Basis = "observed"
    via: str | None = None
    body: bytes = b""
    form: Form = "json"
    withheld: bool = False
    time_ns: int
    mono_ns: int


class Sealed(NamedTuple):
    """An entry in its place in the chain; `salt` is empty when it is withheld."""

    seq: int
    entry: Entry
    envelope: bytes
    hash: bytes
    salt: bytes


class _Envelope(msgspec.Struct, omit_defaults=True, gc=False):
    """The envelope's keys in their sorted order; a key at its default here is absent there."""

    actor: str | None = None
    attachment: str | None = None
    basis: str = ""
    bh: str = ""
    cause: str | None = None
    form: str = ""
    generation: int = -1
    grant: str | None = None
    incarnation: int = -1
    log: str = ""
    mono_ns: str = ""
    on_behalf_of: str | None = None
    operation: str | None = None
    prev: str = ""
    request_id: str | None = None
    seq: int = -1
    size: int = -1
    time_ns: str = ""
    type: str = ""
    v: int = 0
    via: str | None = None


_REQUIRED: Final = frozenset(
    {
        "basis",
        "bh",
        "form",
        "generation",
        "incarnation",
        "log",
        "mono_ns",
        "prev",
        "seq",
        "time_ns",
        "type",
        "v",
    }
)
_COPY_BYTES: Final = 16 * 1024  # up to here one copy is cheaper than a second call of the hash
_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(dict[str, int | str]).decode
_sha256: Final = hashlib.sha256


def canonical(envelope: Mapping[str, int | str]) -> bytes:
    """The one encoding of an envelope.

    Raises:
        TypeError: a value is neither an integer nor a string.
        OverflowError: an integer that JavaScript, and so RFC 8785, would round.
    """
    for key, value in envelope.items():
        if type(value) is int:  # a bool is an int to isinstance
            if abs(value) > MAX_INTEGER:
                raise OverflowError(f"{key} is over 2^53")
        elif type(value) is not str:
            raise TypeError(f"{key} is a {type(value).__name__}; an envelope holds integers and strings only")
    return _encode_sorted(dict(envelope))


def decode_envelope(raw: bytes) -> Envelope:
    """Read an envelope.

    Raises:
        ValueError: it is not a JSON object of integers and strings. Whether it is canonical is not checked here.
    """
    return _decode(raw)


class _Admission(msgspec.Struct, gc=False):
    digest: str = ""


_decode_admission: Final = msgspec.json.Decoder(_Admission).decode


def admission_digest(body: bytes) -> str:
    """The digest in the JSON body of an `admitted` entry; empty when it has none.

    Raises:
        ValueError: the body is not a JSON object, or the digest not a string.
    """
    return _decode_admission(body).digest


def commit_to(salt: bytes, body: bytes) -> str:
    """The salted commitment to a body, hex. A large body is hashed without holding up other threads."""
    digest = _sha256(salt + body) if len(body) <= _COPY_BYTES else _hash_parts(salt, body)
    return digest.hexdigest()


def seal(
    log_id: str, seq: int, prev: bytes, entry: Entry, salt: bytes, commitment: str | None = None
) -> Sealed:
    """Give an entry its place: after the entry whose hash is `prev`, under a salt of `SALT_BYTES` random bytes.

    Args:
        commitment: of the body under this salt, when it has been worked out before.
    """
    if entry.withheld:
        commitment, size, salt = WITHHELD, -1, b""
    else:
        size = len(entry.body)
        if commitment is None:
            commitment = commit_to(salt, entry.body)
    envelope = _encode(
        _Envelope(
            entry.actor,
            entry.attachment,
            entry.basis,
            commitment,
            entry.cause,
            entry.form,
            entry.generation,
            entry.grant,
            entry.incarnation,
            log_id,
            str(entry.mono_ns),
            entry.on_behalf_of,
            entry.operation,
            prev.hex(),
            entry.request_id,
            seq,
            size,
            str(entry.time_ns),
            entry.type,
            VERSION,
            entry.via,
        )
    )
    return Sealed(seq, entry, envelope, _sha256(DOMAIN + envelope).digest(), salt)


def _hash_parts(salt: bytes, body: bytes) -> hashlib._Hash:
    digest = _sha256(salt)
    digest.update(body)
    return digest


def check(
    log_id: str, seq: int, prev: bytes, envelope: bytes, digest: bytes, salt: bytes | None, body: bytes | None
) -> str | None:
    """Check one entry against its place in the chain.

    Args:
        log_id: of the journal that claims it.
        seq: its place.
        prev: hash of the entry before.
        envelope: as stored.
        digest: its hash as stored.
        salt: None or empty when dropped or withheld.
        body: None when dropped or withheld.

    Returns:
        None when it is good, else what is wrong. A body that was dropped is not wrong.
    """
    try:
        fields = check_envelope(log_id, seq, prev, envelope, digest)
        check_body(fields, salt, None if body is None else (body,))
    except ValueError as error:
        return str(error)
    return None


def check_envelope(log_id: str, seq: int, prev: bytes, envelope: bytes, digest: bytes) -> Envelope:
    """Check everything but the body.

    Returns:
        The envelope's fields.

    Raises:
        ValueError: says what is wrong.
    """
    if _sha256(DOMAIN + envelope).digest() != digest:
        raise ValueError("the stored hash is not that of the envelope")
    try:
        fields = _decode(envelope)
        is_canonical = canonical(fields) == envelope
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the envelope cannot be decoded: {error}") from error
    if not is_canonical:
        raise ValueError("the envelope is not in canonical form")
    if fields.get("v") != VERSION:
        raise ValueError(f"the envelope's version is {fields.get('v')!r}, this program knows {VERSION}")
    if missing := _REQUIRED - fields.keys():
        raise ValueError(f"the envelope lacks {', '.join(sorted(missing))}")
    if fields["log"] != log_id:
        raise ValueError(f"it belongs to the journal {fields['log']}")
    if fields["seq"] != seq:
        raise ValueError(f"it was written as entry {fields['seq']}")
    if fields["prev"] != prev.hex():
        raise ValueError("it does not follow the entry before it")
    return fields


def check_body(envelope: Mapping[str, int | str], salt: bytes | None, body: Iterable[bytes] | None) -> None:
    """Check a body, given in parts, against the commitment to it.

    Raises:
        ValueError: says what is wrong.
    """
    if envelope["bh"] == WITHHELD:
        if salt or body is not None:
            raise ValueError("it is withheld, and yet something is stored for it")
        return
    if body is None:
        return
    if not salt:
        raise ValueError("the salt of its body is missing")
    digest, size = _sha256(salt), 0
    for part in body:
        digest.update(part)
        size += len(part)
    if size != envelope.get("size") or digest.hexdigest() != envelope["bh"]:
        raise ValueError("its body is not the one that was recorded")

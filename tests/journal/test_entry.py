"""The envelope and the chain: one encoding, one hash, and every difference is named."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_cmdop.journal import entry as module
from jupyter_cmdop.journal.entry import (
    DOMAIN,
    GENESIS,
    SALT_BYTES,
    Entry,
    admission_digest,
    canonical,
    check,
    decode_envelope,
    seal,
)
from tests.journal.making import LOG, entry

QUICK = settings(max_examples=60, deadline=None, database=None)
SALT = bytes(range(SALT_BYTES))
PREV = hashlib.sha256(b"before").digest()

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
OPTIONAL = st.none() | TEXT
ENTRIES = st.builds(
    Entry,
    type=TEXT.filter(bool),
    actor=OPTIONAL,
    on_behalf_of=OPTIONAL,
    operation=OPTIONAL,
    generation=st.integers(0, 2**53 - 1),
    incarnation=st.integers(0, 2**53 - 1),
    attachment=OPTIONAL,
    grant=OPTIONAL,
    request_id=OPTIONAL,
    cause=OPTIONAL,
    basis=st.sampled_from(["intended", "attempted", "observed", "inferred", "reported", "verified"]),
    via=OPTIONAL,
    body=st.binary(max_size=40),
    form=st.sampled_from(["json", "v1", "none"]),
    withheld=st.booleans(),
    time_ns=st.integers(0, 2**63 - 1),
    mono_ns=st.integers(0, 2**63 - 1),
)
ENVELOPES = st.dictionaries(TEXT, TEXT | st.integers(-(2**53) + 1, 2**53 - 1), max_size=6)


def test_the_format_does_not_change() -> None:
    """Journals outlive the program: these bytes are what version 1 means."""
    sealed = seal(
        LOG, 7, PREV, entry(actor="ada", operation="op-1", generation=3, body=b"2\n", form="v1"), SALT
    )
    assert sealed.envelope.decode() == (
        '{"actor":"ada","basis":"observed",'
        '"bh":"' + hashlib.sha256(SALT + b"2\n").hexdigest() + '",'
        '"form":"v1","generation":3,"incarnation":0,'
        '"log":"' + LOG + '","mono_ns":"5000000001","operation":"op-1",'
        '"prev":"' + PREV.hex() + '","seq":7,"size":2,'
        '"time_ns":"1764523434123456789","type":"output","v":1}'
    )
    assert sealed.hash == hashlib.sha256(b"cmdop.entry.v1\0" + sealed.envelope).digest()
    assert (sealed.seq, sealed.salt, GENESIS) == (7, SALT, bytes(32))


@QUICK
@given(ENTRIES)
def test_a_sealed_entry_checks_and_says_all_of_it(entry: Entry) -> None:
    sealed = seal(LOG, 1, GENESIS, entry, SALT)
    body = None if entry.withheld else entry.body
    assert check(LOG, 1, GENESIS, sealed.envelope, sealed.hash, sealed.salt, body) is None
    said = decode_envelope(sealed.envelope)
    for name in Entry.__struct_fields__:
        if name in {"time_ns", "mono_ns"}:
            assert said[name] == str(getattr(entry, name))
        elif name not in {"body", "withheld"}:
            assert said.get(name) == getattr(entry, name)
    if entry.withheld:
        assert said["bh"] == "-"
        assert "size" not in said
        assert sealed.salt == b""
    else:
        assert said["size"] == len(entry.body)


@QUICK
@given(ENVELOPES)
def test_canonical_is_sorted_compact_and_round_trips(envelope: dict[str, Any]) -> None:
    """The same as RFC 8785 gives for integers below 2^53 and strings; and as Python's own encoder."""
    raw = canonical(envelope)
    assert decode_envelope(raw) == envelope
    assert raw == json.dumps(envelope, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert list(decode_envelope(raw)) == sorted(envelope)


def test_the_fast_encoder_is_the_canonical_one() -> None:
    assert list(module._Envelope.__struct_fields__) == sorted(module._Envelope.__struct_fields__)
    sealed = seal(LOG, 1, GENESIS, entry(actor='é"\\\x00\x7f\u2028😀'), SALT)
    assert canonical(decode_envelope(sealed.envelope)) == sealed.envelope


@pytest.mark.parametrize("value", [2**53, -(2**53)])
def test_canonical_takes_no_integer_that_another_language_rounds(value: int) -> None:
    with pytest.raises(OverflowError, match="size is over"):
        canonical({"size": value})


@pytest.mark.parametrize("value", [1.0, True, None, [], {}, b"x"])
def test_canonical_takes_integers_and_strings_only(value: Any) -> None:
    with pytest.raises(TypeError, match="size is a"):
        canonical({"size": value})


def test_half_a_surrogate_pair_is_refused_loudly() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        seal(LOG, 1, GENESIS, entry(actor="\ud800"), SALT)


def test_long_bodies_have_the_same_commitment() -> None:
    body = b"y" * 100_000
    sealed = seal(LOG, 1, GENESIS, entry(body=body), SALT)
    assert decode_envelope(sealed.envelope)["bh"] == hashlib.sha256(SALT + body).hexdigest()


def forged(**changes: Any) -> tuple[bytes, bytes]:
    """An envelope that was changed and hashed again."""
    fields = decode_envelope(seal(LOG, 1, GENESIS, entry(body=b"body"), SALT).envelope) | changes
    raw = canonical({key: value for key, value in fields.items() if value is not None})
    return raw, hashlib.sha256(DOMAIN + raw).digest()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"v": 2}, "version is 2"),
        ({"log": "another"}, "belongs to the journal another"),
        ({"seq": 2}, "written as entry 2"),
        ({"prev": PREV.hex()}, "does not follow"),
        ({"bh": "0" * 64}, "not the one that was recorded"),
        ({"size": 5}, "not the one that was recorded"),
        ({"basis": None}, "lacks basis"),
        ({"bh": "-"}, "withheld"),
    ],
)
def test_a_forged_envelope_is_named(changes: dict[str, Any], problem: str) -> None:
    raw, digest = forged(**changes)
    assert problem in str(check(LOG, 1, GENESIS, raw, digest, SALT, b"body"))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1,"a":1}',
        b'{"a":1.0}',
        b'{"a":"\\u0061"}',
        b'{"a":1}\n',
        b'{"a":true}',
        b'{"a":null}',
        b"[]",
        b"",
        b"\xff",
        b'{"a":1e400}',
        b'{"a":' + b"9" * 400 + b"}",
        b"[" * 5000,
    ],
)
def test_no_other_spelling_of_an_envelope_is_accepted(raw: bytes) -> None:
    digest = hashlib.sha256(DOMAIN + raw).digest()
    problem = check(LOG, 1, GENESIS, raw, digest, SALT, b"")
    assert problem is not None
    assert "canonical" in problem or "decoded" in problem


def test_a_dropped_body_verifies_and_a_missing_salt_does_not() -> None:
    sealed = seal(LOG, 1, GENESIS, entry(body=b"body"), SALT)
    assert check(LOG, 1, GENESIS, sealed.envelope, sealed.hash, None, None) is None
    assert "salt" in str(check(LOG, 1, GENESIS, sealed.envelope, sealed.hash, None, b"body"))


def test_the_digest_of_an_admission() -> None:
    assert admission_digest(b'{"digest":"ab","code":1}') == "ab"
    assert admission_digest(b"{}") == ""
    for body in (b"", b"[]", b'{"digest":1}'):
        with pytest.raises(ValueError, match=r".+"):
            admission_digest(body)


def test_an_entry_is_frozen_and_can_be_made_from_another() -> None:
    first = entry(actor="ada")
    with pytest.raises(AttributeError):
        first.actor = "bob"  # type: ignore[misc]
    assert msgspec.structs.replace(first, time_ns=1).actor == "ada"

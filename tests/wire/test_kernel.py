"""Kernel messages as ZMQ frames: exchanged with jupyter_client's own Session, stamped, and refused when malformed."""

from __future__ import annotations

import json
import math
import sys
import timeit
from collections.abc import Sequence
from functools import cache

import msgspec
import pytest
import zmq
from hypothesis import example, given
from hypothesis import strategies as st
from jupyter_client.session import Session as HeaderSession
from jupyter_client.session import json_unpacker

from jupyter_cmdop.wire import kernel
from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.kernel import (
    DELIMITER,
    LIMITS,
    MAX_DEPTH,
    ClientStamp,
    ExecuteRequest,
    Limits,
    ParentHeader,
    client_stamp,
    content_digest,
    decode_json,
    encode_json,
    join,
    parse_execute,
    parse_header,
    parse_parent,
    sign,
    split,
    stamp_header,
    stamp_metadata,
    strict_object,
    verify,
    without_stop_on_error,
)
from tests.wire.strategies import FEW, MANY, allocates_at_most, buffers, identities, json_objects, json_values

KEY = b"0e5b3a9c-a key"

# A few keys, shorter and longer than the block of the hash, so that each has one Session of jupyter_client.
keys = st.sampled_from([b"k", KEY, bytes(range(64)), bytes(range(256))])
raw_parts = st.tuples(*[st.binary(max_size=30)] * 4)


@cache
def header_session(key=KEY):
    return HeaderSession(key=key, digest_history_size=0)


def frames_of(*, identities=(), header=b"{}", parent=b"{}", metadata=b"{}", content=b"{}", buffers=()):
    return [*identities, DELIMITER, b"", header, parent, metadata, content, *buffers]


# Frames, against jupyter_client


@FEW
@given(keys, identities, json_objects(), json_objects(), buffers)
def test_messages_of_jupyter_client_are_split_and_verified(key, identities, content, metadata, buffers):
    theirs = header_session(key)
    sent = theirs.msg(
        "execute_request", content=content, metadata=metadata, parent=theirs.msg("input_request")
    )
    message = split([*theirs.serialize(sent, ident=identities), *buffers])
    assert verify(key, message)
    assert not verify(key + b"!", message)
    assert (message.identities, message.buffers) == (identities, buffers)
    header = parse_header(message.header)
    assert (header.msg_id, header.msg_type) == (sent["msg_id"], "execute_request")
    assert (header.session, header.username) == (theirs.session, theirs.username)
    assert header.date == json.loads(message.header)["date"]
    assert parse_parent(message.parent).msg_id == sent["parent_header"]["msg_id"]
    assert (decode_json(message.metadata), decode_json(message.content)) == (metadata, content)


@FEW
@given(keys, identities, json_objects(), json_objects(), buffers)
def test_our_messages_are_accepted_by_jupyter_client(key, identities, content, metadata, buffers):
    header = {"msg_id": "m1", "msg_type": "stream", "version": "5.4"}
    parts = [encode_json(header), b"{}", encode_json(metadata), encode_json(content), *buffers]
    theirs = header_session(key)
    prefix, rest = theirs.feed_identities(join(key, parts, identities=identities))
    received = theirs.deserialize(rest)
    assert prefix == identities
    assert {name: received["header"][name] for name in header} == header
    assert (received["parent_header"], received["metadata"]) == ({}, metadata)
    assert (received["content"], received["buffers"]) == (content, buffers)


@FEW
@given(st.just(b"") | keys, raw_parts)
def test_signatures_are_those_of_jupyter_client(key, parts):
    assert sign(key, *parts) == header_session(key).sign(list(parts))


def test_signatures_of_long_messages_are_those_of_jupyter_client():
    parts = [b"{}", b"{}", b"{}", b"x" * 200_000]
    assert sign(KEY, *parts) == header_session().sign(parts)


def test_an_empty_key_signs_nothing_and_accepts_everything_as_in_jupyter_client():
    frames = join(b"", [b'{"msg_id":"1","msg_type":"x"}', b"{}", b"{}", b"{}"])
    assert frames[1] == b""
    frames[1] = b"whatever"
    assert verify(b"", split(frames))
    assert header_session(b"").deserialize(frames[1:])["msg_id"] == "1"


@MANY
@given(raw_parts, st.integers(0, 3), st.data())
def test_a_flipped_bit_in_any_json_part_is_noticed(parts, place, data):
    frames = join(KEY, parts)
    if not frames[2 + place]:
        return
    damaged = bytearray(frames[2 + place])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    frames[2 + place] = bytes(damaged)
    assert not verify(KEY, split(frames))


@MANY
@given(st.binary(max_size=70))
def test_no_other_signature_is_accepted(signature):
    frames = join(KEY, [b"{}"] * 4)
    assert verify(KEY, split(frames))
    frames[1] = signature
    assert not verify(KEY, split(frames))


def test_buffers_are_outside_the_signature():
    frames = join(KEY, [b"{}"] * 4 + [b"buffer"])
    frames[-1] = b"another"
    assert verify(KEY, split(frames))


@MANY
@given(identities, raw_parts, buffers)
def test_split_undoes_join(identities, parts, buffers):
    frames = join(KEY, [*parts, *buffers], identities=identities)
    message = split(frames)
    assert message.parts == [*parts, *buffers]
    assert join(KEY, message.parts, identities=message.identities) == frames
    assert join(b"", message.parts, identities=message.identities, signature=message.signature) == frames


def test_frames_of_zmq_and_views_are_taken_as_bytes():
    raw = join(KEY, [b"{}", b"{}", b"{}", b'{"a":1}', b"buffer"], identities=[b"peer"])
    for make in (zmq.Frame, memoryview, bytes):
        message = split([make(frame) for frame in raw])
        assert join(KEY, message.parts, identities=message.identities) == raw
        assert all(type(part) is bytes for part in message.parts)


# Frames that are no message


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], "delimiter"),
        ([b"{}"] * 6, "delimiter"),
        ([b"x"] * 40, "16 identities"),
        ([DELIMITER], "at least 5"),
        ([DELIMITER, b"", b"{}", b"{}", b"{}"], "at least 5"),
        (frames_of(identities=[b"x"] * 17), "16 identities"),
        (frames_of(buffers=[b""] * 1025), "buffers"),
        (frames_of(header=b"x" * (64 * 1024 + 1)), "header"),
        (frames_of(parent=b"x" * (128 * 1024 + 1)), "parent"),
    ],
)
def test_what_is_no_message_is_refused(frames, reason):
    with pytest.raises(WireError, match=reason):
        split(frames)


def test_what_is_exactly_at_the_limit_is_a_message():
    frames = frames_of(
        identities=[b"x"] * 16, header=b"x" * 65536, parent=b"x" * 131072, buffers=[b""] * LIMITS.buffers
    )
    assert len(split(frames).buffers) == LIMITS.buffers
    assert split(frames, limits=Limits(message_bytes=sum(map(len, frames))))
    with pytest.raises(WireError, match="at most"):
        split(frames, limits=Limits(message_bytes=sum(map(len, frames)) - 1))


class EndlessFrames(Sequence):
    """A message that claims more frames than can be looked at."""

    def __len__(self):
        return 2**40

    def __getitem__(self, index):
        raise AssertionError("no frame may be touched before the number of frames is checked")


class HugeFrame:
    """A frame of the transport that must not be copied before its length is checked."""

    def __len__(self):
        return 2**40

    @property
    def bytes(self):
        raise AssertionError("copied before its length was checked")


def test_numbers_and_lengths_are_checked_before_anything_is_copied():
    with allocates_at_most(16_384):
        with pytest.raises(WireError, match="frames"):
            split(EndlessFrames())
        with pytest.raises(WireError, match="bytes"):
            split(frames_of(buffers=[HugeFrame()]))


@MANY
@given(st.lists(st.just(DELIMITER) | st.binary(max_size=20), max_size=12))
def test_arbitrary_frames_raise_nothing_but_wire_error(frames):
    try:
        message = split(frames)
    except WireError:
        return
    assert not verify(KEY, message)
    for read in (parse_header, parse_parent, client_stamp, parse_execute):
        try:
            read(message.header)
        except WireError:
            pass


def test_what_could_not_be_split_again_is_not_joined():
    with pytest.raises(WireError):
        join(KEY, [b"{}"] * 3)
    with pytest.raises(WireError):
        join(KEY, [b"{}"] * 4, identities=[b"peer", DELIMITER])


# JSON


def nested(depth, inner=b""):
    return b"[" * depth + inner + b"]" * depth


@FEW
@given(json_values(st.text(max_size=12)))
def test_json_round_trip(value):
    assert decode_json(encode_json(value)) == value
    assert json.loads(encode_json(value)) == value


def depth_of(value):
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


tricky = st.text(st.sampled_from('[]{}\\"a,:\n'), max_size=6)


@MANY
@given(json_values(tricky))
def test_depth_is_counted_outside_strings_only(value):
    raw = json.dumps(value).encode()
    depth = depth_of(value)
    any_json = msgspec.json.Decoder()
    assert kernel.decode_as(any_json, raw, what="JSON", depth=depth) == value
    if depth:
        with pytest.raises(WireError, match="deeper"):
            kernel.decode_as(any_json, raw, what="JSON", depth=depth - 1)


def test_depth_has_a_limit_in_both_directions():
    value = decode_json(nested(MAX_DEPTH))
    assert encode_json(value) == nested(MAX_DEPTH)
    with pytest.raises(WireError, match="deeper"):
        decode_json(nested(MAX_DEPTH + 1))
    with pytest.raises(WireError, match="deeper"):
        encode_json([value])


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    "read",
    [
        decode_json,
        parse_header,
        parse_parent,
        client_stamp,
        parse_execute,
        without_stop_on_error,
        lambda raw: stamp_metadata(raw, b"{}"),
        lambda raw: strict_object(raw, what="part"),
        lambda raw: stamp_header(raw, username="", actor="", operation=None, generation=0),
    ],
)
def test_bottomless_json_is_refused_by_every_reader(read, depth, closed):
    opening = b'{"msg_id":"1","msg_type":"x","x":' + b"[" * depth
    for raw in (
        opening + (b"]" * depth + b"}") * closed,
        (b'{"x":' * depth) + (b"0" + b"}" * depth) * closed,
    ):
        with pytest.raises(WireError):
            read(raw)


def test_a_nearly_exhausted_stack_is_no_crash():
    def at_depth(frames):
        if frames:
            return at_depth(frames - 1)
        try:
            return decode_json(nested(MAX_DEPTH))
        except WireError as error:
            return error

    used = 0
    frame = sys._getframe()
    while frame:
        used += 1
        frame = frame.f_back
    assert isinstance(at_depth(sys.getrecursionlimit() - used - 60), WireError)


class NotJson:
    pass


def test_what_is_not_json_is_not_written():
    circle: list[object] = []
    circle.append(circle)
    for value in (NotJson(), "\ud800", {"\ud800": 1}, {(1, 2): 3}, circle):
        with pytest.raises(WireError):
            encode_json(value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"nul",
        b"{",
        b"[1,]",
        b'{"a":1,}',
        b"01",
        b"{} {}",
        b"'a'",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"1" * 5000,
    ]
    + [text.encode("utf-16-le") for text in ("{}", '{"a":1}')],
)
def test_what_is_not_json_is_not_read(raw):
    with pytest.raises(WireError):
        decode_json(raw)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"[NaN, Infinity, -Infinity, 1e999, -1e999, 1e5]", [None, None, None, None, None, 1e5]),
        (b'"\\ud83d"', "\ufffd"),
        (b'"a\\udc00b"', "a\ufffdb"),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\ud83d\\ud83d\\ude00"', "\ufffd\U0001f600"),
        (b'{"a\xff": "\xc3"}', {"a\ufffd": "\ufffd"}),
    ],
)
def test_what_only_stock_jupyter_accepts_is_repaired(raw, value):
    assert decode_json(raw) == value
    assert decode_json(encode_json(value)) == value


def test_a_long_message_is_not_repaired():
    with pytest.raises(WireError, match="too long"):
        decode_json(b'"' + b"x" * kernel.REPAIR_BYTES + b"\\ud800" + b'"')


fragments = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"a"',
        '"',
        "\\",
        "1",
        "-",
        "1e5",
        "null",
        " ",
        "\\ud800",
        "\\u0041",
        "é",
        "NaN",
    ]
)


def repaired(value):
    """What we make of a value that jupyter_client reads: no infinities, no NaN, no halves of surrogate pairs."""
    match value:
        case dict():
            return {repaired(key): repaired(item) for key, item in value.items()}
        case list():
            return [repaired(item) for item in value]
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float():
            return value if math.isfinite(value) else None
    return value


@MANY
@given(st.lists(fragments, max_size=10).map("".join) | st.text(max_size=20))
@example("1e999")
def test_json_is_accepted_when_jupyter_client_accepts_it(text):
    raw = text.encode()
    try:
        expected = json_unpacker(raw)
    except ValueError:
        with pytest.raises(WireError):
            decode_json(raw)
        return
    assert decode_json(raw) == repaired(expected)


# Header and parent


def test_a_header_is_read_without_interpreting_it():
    raw = encode_json(
        {
            "msg_id": "m1",
            "msg_type": "execute_request",
            "session": "s",
            "username": "alice",
            "date": "not a date",
            "version": "five",
            "subshell_id": "sub",
            "other": {"nested": [1, 2.5, None]},
        }
    )
    header = parse_header(raw)
    assert (header.date, header.version, header.subshell_id) == ("not a date", "five", "sub")
    assert parse_header(b'{"msg_id":"1","msg_type":"x"}') == kernel.Header(msg_id="1", msg_type="x")


@pytest.mark.parametrize(
    "change",
    [
        {"msg_id": ""},
        {"msg_type": ""},
        {"msg_id": "x" * 257},
        {"msg_type": "x" * 257},
        {"session": "x" * 257},
        {"subshell_id": "x" * 257},
        {"msg_id": 1},
        {"msg_type": None},
        {"session": []},
        {"username": {}},
        {"date": [0]},
        {"version": 5.4},
        {"subshell_id": 1},
        {"filler": "x" * 65536},
    ],
)
def test_a_header_with_a_wrong_field_is_refused(change):
    good = {"msg_id": "x" * 256, "msg_type": "x" * 256, "session": "x" * 256}
    parse_header(encode_json(good))
    with pytest.raises(WireError):
        parse_header(encode_json(good | change))


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"1", b'"x"', b"{}", b'{"msg_id":"1"}', b'{"msg_type":"1"}']
)
def test_a_header_that_is_no_header_is_refused(raw):
    with pytest.raises(WireError):
        parse_header(raw)


def test_a_parent_says_who_caused_a_message_or_nothing():
    assert parse_parent(b"{}") == parse_parent(b" { } ") == ParentHeader()
    stamped = stamp_header(
        b'{"msg_id":"m1","msg_type":"execute_request","session":"s"}',
        username="alice",
        actor="alice",
        operation="o1",
        generation=4,
    )
    assert parse_parent(stamped) == ParentHeader(
        msg_id="m1", msg_type="execute_request", session="s", cmdop_operation="o1"
    )
    for raw in (b"[]", b"null", b'{"msg_id":1}', b'{"cmdop_operation":7}', b'{"a":"' + b"x" * 131072 + b'"}'):
        with pytest.raises(WireError):
            parse_parent(raw)


def test_a_header_at_its_limit_still_fits_when_the_kernel_sends_it_back():
    head = b'{"msg_id":"1","msg_type":"x","a":"'
    raw = head + b"x" * (LIMITS.header_bytes - len(head) - 2) + b'"}'
    stamped = stamp_header(raw, username="u" * 128, actor="a" * 128, operation="o" * 64, generation=2**63)
    assert parse_parent(split(frames_of(parent=stamped)).parent).cmdop_operation == "o" * 64


claims = st.sampled_from(
    ["username", "cmdop_actor", "cmdop_operation", "cmdop_generation", "cmdop_x", "CMDOP_actor"]
)


@MANY
@given(
    st.dictionaries(claims | st.text(max_size=8), json_values(st.text(max_size=8)), max_size=6), st.booleans()
)
def test_nothing_that_a_client_claims_in_a_header_survives(header, named):
    raw = json.dumps(header).encode()
    stamped = stamp_header(
        raw, username="Alice", actor="alice", operation="o1" if named else None, generation=12
    )
    pairs = json.loads(stamped, object_pairs_hook=list)
    read = json.loads(stamped)
    assert len(pairs) == len(read)
    ours = {"cmdop_actor": "alice", "cmdop_generation": "12"} | ({"cmdop_operation": "o1"} if named else {})
    assert {key: read[key] for key in read if key.lower().startswith("cmdop_")} == ours
    assert read["username"] == "Alice"
    kept = {key: value for key, value in header.items() if key != "username" and key[:6].lower() != "cmdop_"}
    for key, value in kept.items():
        assert (json.loads(read[key]) if isinstance(value, dict | list) else read[key]) == value
    assert len(read) == len(kept) + len(ours) + 1


@pytest.mark.parametrize(
    "raw",
    [
        b'{"\\u0063mdop_actor":"mallory","msg_id":"1","username":"x"}',
        b'{"cmdop_actor":"mallory","cmdop_actor":"mallory","msg_id":"1","\\u0075sername":"mallory"}',
        b'{"username":"mallory","msg_id":"1","username":"mallory","cmdop_operation":{"a":"mallory"}}',
    ],
)
def test_claims_in_other_spellings_do_not_survive(raw):
    stamped = stamp_header(raw, username="alice", actor="alice", operation=None, generation=0)
    assert b"mallory" not in stamped
    assert json.loads(stamped) == {
        "msg_id": "1",
        "username": "alice",
        "cmdop_actor": "alice",
        "cmdop_generation": "0",
    }


def test_no_value_of_a_stamped_header_is_a_container():
    """The kernel hashes parent headers: one list in there and no print works under that parent, in any thread."""
    stamped = stamp_header(
        b'{"msg_id":"1","a":{"b":[1]},"c":[]}', username="", actor="", operation="", generation=0
    )
    assert {type(value) for value in json.loads(stamped).values()} == {str}


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b'{"x":"' + b"x" * 65536 + b'"}'])
def test_a_header_that_is_no_object_is_not_stamped(raw):
    with pytest.raises(WireError):
        stamp_header(raw, username="", actor="", operation=None, generation=0)


def test_a_stamp_that_cannot_be_written_is_a_wire_error():
    with pytest.raises(WireError):
        stamp_header(b"{}", username="\ud800", actor="", operation=None, generation=0)


# Metadata

STAMP = b'{"v":1,"actor":{"id":"alice","kind":"human"}}'


def only_our_stamp(stamped):
    """Whatever a parser does with keys that come twice, or that differ in case, there is one and it is ours."""
    for errors in ("strict", "replace", "ignore"):
        pairs = json.loads(stamped.decode("utf-8", errors), object_pairs_hook=list)
        found = [value for key, value in pairs if key.casefold() == "cmdop"]
        assert found == [json.loads(STAMP, object_pairs_hook=list)]
        assert pairs[-1][0] == "cmdop"
    assert msgspec.json.decode(stamped)["cmdop"] == json.loads(STAMP)
    return {key: value for key, value in json.loads(stamped).items() if key != "cmdop"}


@pytest.mark.parametrize(
    ("raw", "rest"),
    [
        (b"{}", {}),
        (b" { } \n", {}),
        (b'{"a":1}', {"a": 1}),
        (b'{"a": {"b": []} }\t', {"a": {"b": []}}),
        (b'{"cmdop":{"actor":"mallory"}}', {}),
        (b'{"cmdop":1,"a":2,"cmdop":3}', {"a": 2}),
        (b'{"a":2,"\\u0063mdop":{"actor":"mallory"}}', {"a": 2}),
        (b'{"\\u0063\\u006d\\u0064\\u006F\\u0070":1}', {}),
        (b'{"cmdop\\u0020":1}', {"cmdop ": 1}),
        (b'{"CMDOP":1,"CmdOp":2,"\\u0043mdop":3}', {}),
        (b'{"a":{"cmdop":"nested is theirs"}}', {"a": {"cmdop": "nested is theirs"}}),
        (b'{"a":"cmdop","b":"\\\\u0063mdop"}', {"a": "cmdop", "b": "\\u0063mdop"}),
        (b'{"cm\xffdop":{"actor":"mallory"}}', {"cm\ufffddop": {"actor": "mallory"}}),
        (b'{"cm\xff\\u0064op":1, "x": NaN}', {"cm\ufffddop": 1, "x": None}),
        (b'{"a":"\xff"}', {"a": "\ufffd"}),
        (b'{"a":NaN}', {"a": None}),
        ('{"é":"ü"}'.encode(), {"é": "ü"}),
    ],
)
def test_no_other_stamp_wins(raw, rest):
    stamped = stamp_metadata(raw, STAMP)
    if b"\xff" not in raw:
        assert only_our_stamp(stamped) == rest
    else:
        assert json.loads(stamped) == rest | {"cmdop": json.loads(STAMP)}
        assert b"\xff" not in stamped


@st.composite
def forged_keys(draw):
    """The word in some mixture of letters, capitals and escapes."""
    letters = []
    for letter in "cmdop":
        letters.append(draw(st.sampled_from([letter, letter, letter.upper(), f"\\u{ord(letter):04x}"])))
    return '"' + "".join(letters) + '"'


@MANY
@given(
    st.lists(
        st.tuples(forged_keys() | st.text(max_size=6).map(json.dumps), json_values(st.text(max_size=6))),
        max_size=5,
    )
)
def test_no_other_stamp_wins_in_any_spelling(entries):
    raw = "{" + ", ".join(f"{key} : {json.dumps(value)}" for key, value in entries) + "}"
    rest = only_our_stamp(stamp_metadata(raw.encode(), STAMP))
    assert rest == {key: value for key, value in json.loads(raw).items() if key.lower() != "cmdop"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{",
        b"}",
        b"{}}",
        b'{"a":1}x}',
        b'{"a":1} {"b":2}',
        b'{"a":}',
        b'{"a":1,}',
        b'["x"}',
        '{"a":1}'.encode("utf-16-be"),
        b'{"a":' + nested(MAX_DEPTH) + b"}",
    ],
)
def test_metadata_that_is_no_object_is_not_stamped(raw):
    with pytest.raises(WireError):
        stamp_metadata(raw, STAMP)


@MANY
@given(st.binary(max_size=30) | st.binary(max_size=20).map(lambda raw: b"{" + raw + b"}"))
@example(b"{\xff}")
def test_any_bytes_are_stamped_as_an_object_or_refused(raw):
    try:
        stamped = stamp_metadata(raw, STAMP)
    except WireError:
        return
    only_our_stamp(stamped)


def test_stamping_empty_metadata_takes_less_than_a_microsecond():
    """It is done for each message that leaves; the best of several runs, so that a busy machine does not matter."""
    number = 2_000
    best = min(timeit.repeat(lambda: stamp_metadata(b"{}", STAMP), number=number, repeat=7)) / number
    assert best < 1e-6


@pytest.mark.parametrize(
    ("metadata", "stamp"),
    [
        (b"{}", ClientStamp()),
        (b'{"a":1}', ClientStamp()),
        (b'{"cmdop":null}', ClientStamp()),
        (b'{"cmdop":{}}', ClientStamp()),
        (b'{"cmdop":{"request_id":null,"generation":null}}', ClientStamp()),
        (b'{"cmdop":{"request_id":"r1","generation":7,"actor":"claimed"}}', ClientStamp("r1", 7)),
        (b'{"\\u0063mdop":{"request_id":"r1"}}', ClientStamp("r1")),
        (encode_json({"cmdop": {"request_id": "x" * 256}}), ClientStamp("x" * 256)),
    ],
)
def test_what_a_client_says_of_its_request(metadata, stamp):
    assert client_stamp(metadata) == stamp


@pytest.mark.parametrize(
    "said",
    [
        [],
        1,
        "x",
        {"request_id": 1},
        {"request_id": ""},
        {"request_id": "x" * 257},
        {"request_id": ["x"]},
        {"generation": "7"},
        {"generation": 7.5},
        {"generation": True},
        {"generation": -1},
        {"generation": 2**63},
    ],
)
def test_what_a_client_may_not_say_of_its_request(said):
    with pytest.raises(WireError):
        client_stamp(encode_json({"cmdop": said}))


def test_the_stamp_of_a_client_needs_metadata_that_is_an_object():
    for metadata in (b"", b"[]", b"null"):
        with pytest.raises(WireError):
            client_stamp(metadata)


# Content


def test_the_defaults_of_an_execute_request_are_those_of_the_specification():
    assert parse_execute(b"{}") == ExecuteRequest(
        code="", silent=False, store_history=True, allow_stdin=True, stop_on_error=True
    )
    content = {"code": "1", "silent": True, "store_history": False, "user_expressions": {"a": "b"}}
    assert parse_execute(encode_json(content)) == ExecuteRequest(
        code="1", silent=True, store_history=False, user_expressions={"a": "b"}
    )


@pytest.mark.parametrize("wrong", [5, "x", [1], True])
def test_user_expressions_that_are_no_object_are_refused(wrong):
    """ipykernel runs the code of such a request and then never replies."""
    with pytest.raises(WireError):
        parse_execute(encode_json({"code": "1", "user_expressions": wrong}))


def test_half_a_surrogate_pair_in_code_can_be_recorded():
    assert parse_execute(b'{"code":"print(\'\\ud83d\')"}').code.encode() == "print('\ufffd')".encode()


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"null", b'{"code":1}', b'{"silent":1}', b'{"stop_on_error":"no"}', b'{"allow_stdin":null}'],
)
def test_content_that_is_no_execute_request_is_refused(raw):
    with pytest.raises(WireError):
        parse_execute(raw)


@FEW
@given(
    json_objects(),
    st.sampled_from(["", '"stop_on_error": true', '"stop\\u005fon_error": true, "stop_on_error": 1']),
)
def test_only_stop_on_error_is_changed(content, said):
    body = json.dumps(content)[1:-1]
    raw = "{" + ", ".join(filter(None, [body, said])) + "}"
    changed = without_stop_on_error(raw.encode())
    assert json.loads(changed) == json.loads(raw) | {"stop_on_error": False}
    pairs = json.loads(changed, object_pairs_hook=list)
    assert [key for key, _ in pairs].count("stop_on_error") == 1


def test_the_bytes_of_the_other_values_stay_as_they_are():
    raw = b'{"code":"\\u0041 \xc3\xa9","user_expressions": {"x" : 1.0e0}}'
    assert without_stop_on_error(raw) == (
        b'{"code":"\\u0041 \xc3\xa9","user_expressions":{"x" : 1.0e0},"stop_on_error":false}'
    )


def test_the_digest_of_content_is_fixed_by_the_journal():
    """Digests are stored, and compared after an upgrade: this value may never change."""
    assert content_digest("execute_request", b'{"code":"1"}', [b"buffer"]) == (
        "32554ffd752ebf1609da21f76614b481f55bc58f7560151979b4cda72be9ccbe"
    )


@MANY
@given(
    st.text(max_size=6), st.binary(max_size=6), buffers, st.text(max_size=6), st.binary(max_size=6), buffers
)
def test_digests_are_equal_only_for_the_same_request(type1, content1, buffers1, type2, content2, buffers2):
    same = (type1, content1, buffers1) == (type2, content2, buffers2)
    assert (content_digest(type1, content1, buffers1) == content_digest(type2, content2, buffers2)) == same


def test_no_byte_moves_between_the_parts_of_a_digest():
    variants = [
        ("ab", b"c", []),
        ("a", b"bc", []),
        ("a", b"b", [b"c"]),
        ("a", b"b", [b"", b"c"]),
        ("a", b"b", [b"c", b""]),
        ("a", b"", [b"b", b"c"]),
    ]
    assert len({content_digest(*variant) for variant in variants}) == len(variants)
    assert content_digest("\ud800", b"", []) != content_digest("?", b"", [])

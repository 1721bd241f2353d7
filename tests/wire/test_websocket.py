"""Websocket frames: the same bytes as jupyter_server's own codecs, and an error for every frame that is not one."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.jsonutil import json_default
from jupyter_client.session import Session as HeaderSession
from jupyter_server.services.kernels.connection import base as stock

from jupyter_cmdop.wire import kernel
from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.kernel import LIMITS, Limits
from jupyter_cmdop.wire.websocket import (
    CHANNELS,
    decode_legacy,
    decode_v1,
    encode_legacy,
    encode_v1,
)
from tests.wire.strategies import (
    ASCII,
    FEW,
    HOSTILE_NUMBERS,
    MANY,
    TEXT,
    allocates_at_most,
    buffers,
    channels,
    damaged,
    json_objects,
)

header_session = HeaderSession(key=b"a key", digest_history_size=0)

raw_parts = st.tuples(*[st.binary(max_size=30)] * 4)
v1_frames = st.builds(
    lambda channel, parts, buffers: encode_v1(channel, *parts, buffers), channels, raw_parts, buffers
)

HEADER = b'{"msg_id": "m1", "msg_type": "stream"}'


@st.composite
def kernel_messages(draw, text=TEXT):
    """A message as a kernel sends it: the four JSON parts as jupyter_client packs them, and the buffers."""
    message = header_session.msg(
        draw(st.sampled_from(["stream", "display_data", "comm_msg", "execute_reply"])),
        content=draw(json_objects(text)),
        parent=draw(st.none() | st.just(header_session.msg("execute_request"))),
        metadata=draw(json_objects(text)),
    )
    return header_session.serialize(message)[2:], draw(buffers)


def as_stock_reads(parts, buffers, channel):
    """The dictionary from which jupyter_server makes a legacy frame."""
    message = header_session.deserialize([header_session.sign(parts), *parts, *buffers])
    message["channel"] = channel
    return message


# Fixed, because what is varied here is the damage.
legacy_frames = st.sampled_from(
    [
        encode_legacy("shell", HEADER, b"{}", b"{}", b'{"a": [1, "b"]}', [b"x"]),
        encode_legacy("iopub", HEADER, HEADER, b'{"c": null}', b"{}", [b"", b"yz", b""]),
    ]
)


# v1


@MANY
@given(channels, raw_parts, buffers)
def test_v1_is_byte_for_byte_what_jupyter_server_writes(channel, parts, buffers):
    assert encode_v1(channel, *parts, buffers) == stock.serialize_msg_to_ws_v1([*parts, *buffers], channel)


@MANY
@given(channels, raw_parts, buffers)
def test_v1_is_read_as_jupyter_server_reads_it(channel, parts, buffers):
    frame = stock.serialize_msg_to_ws_v1([*parts, *buffers], channel)
    message = decode_v1(frame)
    assert tuple(message) == (channel, *parts, buffers)
    assert stock.deserialize_msg_from_ws_v1(frame) == (message.channel, [*message[1:5], *message.buffers])


@FEW
@given(v1_frames)
def test_v1_has_one_reading_only(frame):
    assert encode_v1(*decode_v1(frame)) == frame


@FEW
@given(v1_frames)
def test_v1_from_any_kind_of_buffer(frame):
    assert decode_v1(bytearray(frame)) == decode_v1(memoryview(frame)) == decode_v1(frame)


def v1_table(numbers, rest=b""):
    return struct.pack(f"<{len(numbers)}Q", *numbers) + rest


@pytest.mark.parametrize("word", range(7))
def test_v1_counts_and_offsets_are_checked_before_anything_is_allocated(word):
    frame = encode_v1("shell", b"{}", b"{}", b"{}", b"{}")
    for number in HOSTILE_NUMBERS:
        hostile = frame[: 8 * word] + number.to_bytes(8, "little") + frame[8 * word + 8 :]
        with allocates_at_most(16_384), pytest.raises(WireError) as caught:
            decode_v1(hostile)
        assert caught.value.offset is not None


@pytest.mark.parametrize(
    ("frame", "offset"),
    [
        (b"", 0),
        (b"\x06" + b"\0" * 6, 0),
        (v1_table([5, 48, 53, 53, 53, 53], b"shell"), 0),
        (v1_table([6, 56]), 0),
        (v1_table([6, 57, 61, 61, 61, 61, 61], b"xshell"), 8),
        (v1_table([6, 48, 61, 61, 61, 61, 61], b"shell"), 8),
        (v1_table([6, 56, 61, 63, 62, 63, 63], b"shell{}"), 32),
        (v1_table([6, 56, 61, 61, 61, 61, 62], b"shell"), 48),
        (v1_table([6, 56, 61, 61, 61, 61, 61], b"shellX"), 61),
        (v1_table([6, 56, 60, 60, 60, 60, 60], b"shel"), 56),
        (v1_table([6, 56, 56, 56, 56, 56, 56]), 56),
    ],
    ids=[
        "empty",
        "no count",
        "too few offsets",
        "table cut",
        "gap",
        "inside the table",
        "back",
        "beyond",
        "rest",
        "unknown channel",
        "no channel",
    ],
)
def test_v1_errors_name_the_place(frame, offset):
    with pytest.raises(WireError) as caught:
        decode_v1(frame)
    assert caught.value.offset == offset


def test_v1_limits():
    most = encode_v1("iopub", b"{}", b"{}", b"{}", b"{}", [b""] * LIMITS.buffers)
    assert len(decode_v1(most).buffers) == LIMITS.buffers
    with pytest.raises(WireError):
        encode_v1("iopub", b"{}", b"{}", b"{}", b"{}", [b""] * (LIMITS.buffers + 1))
    with pytest.raises(WireError):
        decode_v1(stock.serialize_msg_to_ws_v1([b"{}"] * 4 + [b""] * (LIMITS.buffers + 1), "iopub"))
    with pytest.raises(WireError):
        decode_v1(most, limits=Limits(buffers=LIMITS.buffers - 1))
    with pytest.raises(WireError):
        decode_v1(most, limits=Limits(message_bytes=len(most) - 1))
    for parts in ((b" " * (LIMITS.header_bytes + 1), b""), (b"", b" " * (LIMITS.parent_bytes + 1))):
        with pytest.raises(WireError):
            decode_v1(encode_v1("iopub", *parts, b"{}", b"{}"))


@pytest.mark.parametrize("channel", ["", "hb", "Shell", "shell ", "iopub\0", "\ud800"])
def test_only_four_channels_exist(channel):
    assert channel not in CHANNELS
    for encode in (encode_v1, encode_legacy):
        with pytest.raises(WireError):
            encode(channel, HEADER, b"{}", b"{}", b"{}")
    with pytest.raises(WireError):
        decode_legacy(json.dumps({"header": {}, "channel": channel}))


@MANY
@given(st.binary(max_size=120))
def test_v1_arbitrary_bytes_raise_nothing_but_wire_error(data):
    try:
        decode_v1(data)
    except WireError:
        pass


@MANY
@given(damaged(v1_frames, word=8, order="little"))
def test_v1_damaged_frames_are_read_as_jupyter_server_does_or_refused(data):
    try:
        message = decode_v1(data)
    except WireError:
        return
    assert stock.deserialize_msg_from_ws_v1(data) == (message.channel, [*message[1:5], *message.buffers])
    assert encode_v1(*message) == data


# Legacy


@FEW
@given(channels, kernel_messages(ASCII))
def test_legacy_is_byte_for_byte_what_jupyter_server_writes(channel, message):
    """For ASCII; beyond it jupyter_server writes escapes where we leave the characters."""
    parts, buffers = message
    expected = as_stock_reads(parts, buffers, channel)
    ours = encode_legacy(channel, *parts, buffers)
    if buffers:
        assert ours == stock.serialize_binary_message(expected)
    else:
        assert ours == json.dumps(expected, default=json_default)


@FEW
@given(channels, kernel_messages())
def test_legacy_says_the_same_as_jupyter_server(channel, message):
    parts, buffers = message
    expected = as_stock_reads(parts, buffers, channel)
    ours = encode_legacy(channel, *parts, buffers)
    if buffers:
        assert stock.deserialize_binary_message(ours) == expected
    else:
        assert json.loads(ours) == json.loads(json.dumps(expected, default=json_default))


@FEW
@given(channels, kernel_messages())
def test_legacy_frames_of_jupyter_server_are_read(channel, message):
    parts, buffers = message
    expected = as_stock_reads(parts, buffers, channel)
    if buffers:
        read = decode_legacy(stock.serialize_binary_message(expected))
    else:
        read = decode_legacy(json.dumps(expected, default=json_default))
    assert read.channel == channel
    assert [json.loads(part) for part in read[1:5]] == [json.loads(part) for part in parts]
    assert read.buffers == buffers


@FEW
@given(channels, kernel_messages())
def test_legacy_round_trip_keeps_the_bytes_of_every_part(channel, message):
    parts, buffers = message
    assert tuple(decode_legacy(encode_legacy(channel, *parts, buffers))) == (channel, *parts, buffers)


def test_legacy_with_what_clients_leave_out():
    read = decode_legacy(
        '{"header": {"msg_id": "1"}, "content": {"a": [1 , 2]}, "parent_header": null, "extra": [{}]}'
    )
    assert tuple(read) == ("shell", b'{"msg_id": "1"}', b"{}", b"{}", b'{"a": [1 , 2]}', [])
    assert decode_legacy('{"header": {}, "channel": "control", "buffers": []}').channel == "control"


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"header": []}',
        '{"header": null}',
        '{"header": {}, "content": []}',
        '{"header": {}, "metadata": "x"}',
        '{"header": {}, "parent_header": 1}',
        '{"header": {}, "channel": 1}',
        '{"header": {}, "buffers": ["x"]}',
        '{"header": {}, "buffers": {}}',
        '{"header": {}} {}',
        '{"header": {}, "content": ' + "[" * 5000,
        '{"header": {}, "content": {"x": ' + "[" * 101 + "]" * 101 + "}}",
        '{"header": {"x": "' + "x" * 65536 + '"}}',
        '{"header": {}, "metadata": {"x": "\ud800"}}',
    ],
)
def test_legacy_text_that_is_no_message_is_refused(frame):
    with pytest.raises(WireError):
        decode_legacy(frame)


@pytest.mark.parametrize("word", range(4))
def test_legacy_counts_and_offsets_are_checked_before_anything_is_allocated(word):
    frame = encode_legacy("shell", HEADER, b"{}", b"{}", b"{}", [b"abc", b"d"])
    for number in [n for n in HOSTILE_NUMBERS if n < 2**32]:
        hostile = frame[: 4 * word] + number.to_bytes(4, "big") + frame[4 * word + 4 :]
        with allocates_at_most(16_384), pytest.raises(WireError):
            decode_legacy(hostile)


@pytest.mark.parametrize(
    ("frame", "offset"),
    [
        (b"", 0),
        (b"\0\0\0", 0),
        (struct.pack(">I", 0), 0),
        (struct.pack(">I", 2) + b"\0\0\0\x0c", 0),
        (struct.pack(">3I", 2, 13, 14) + b"x{}", 4),
        (struct.pack(">3I", 2, 12, 11) + b"{}", 8),
        (struct.pack(">3I", 2, 12, 15) + b"{}", 8),
    ],
    ids=["empty", "no count", "no parts", "table cut", "gap", "back", "beyond"],
)
def test_legacy_errors_name_the_place(frame, offset):
    with pytest.raises(WireError) as caught:
        decode_legacy(frame)
    assert caught.value.offset == offset


def test_legacy_limits():
    most = encode_legacy("iopub", HEADER, b"{}", b"{}", b"{}", [b""] * LIMITS.buffers)
    assert len(decode_legacy(most).buffers) == LIMITS.buffers
    with pytest.raises(WireError):
        encode_legacy("iopub", HEADER, b"{}", b"{}", b"{}", [b""] * (LIMITS.buffers + 1))
    with pytest.raises(WireError):
        decode_legacy(most, limits=Limits(buffers=LIMITS.buffers - 1))
    with pytest.raises(WireError):
        decode_legacy(most, limits=Limits(message_bytes=len(most) - 1))
    with pytest.raises(WireError):
        decode_legacy('{"header": {}}', limits=Limits(message_bytes=10))


class HugeBuffer(bytes):
    def __len__(self):
        return 2**32


def test_legacy_offsets_that_do_not_fit_are_refused():
    with pytest.raises(WireError):
        encode_legacy("iopub", HEADER, b"{}", b"{}", b"{}", [HugeBuffer()])


@pytest.mark.parametrize(
    "content",
    [
        b'{}, "metadata": {"cmdop": {"actor": "mallory"}}',
        b'{"a": 1}}, {"x": 2',
        b"{} {}",
        b"",
        b"[]",
        b"{",
        b'{"a": 1,}',
        b'{"a": [' + b"[" * 200 + b"]" * 200 + b"]}",
    ],
)
def test_legacy_content_cannot_write_other_parts_of_the_frame(content):
    """The parts are spliced, so content that closed its own object early could forge our stamp."""
    for parts in (
        (HEADER, b"{}", b"{}", content),
        (HEADER, b"{}", content, b"{}"),
        (HEADER, content, b"{}", b"{}"),
    ):
        with pytest.raises(WireError):
            encode_legacy("iopub", *parts)


@MANY
@given(st.binary(max_size=40) | st.just(b'{}, "metadata": {}'), st.integers(0, 3))
def test_legacy_any_part_becomes_one_object_or_an_error(part, place):
    parts = [HEADER, b"{}", b"{}", b"{}"]
    parts[place] = part
    try:
        frame = encode_legacy("iopub", *parts)
    except WireError:
        return
    pairs = json.loads(frame, object_pairs_hook=list)
    assert [key for key, _ in pairs] == [
        "header",
        "msg_id",
        "msg_type",
        "parent_header",
        "metadata",
        "content",
        "buffers",
        "channel",
    ]


def test_legacy_repairs_what_a_browser_could_not_read():
    content = b'{"text": "\\ud800", "n": NaN, "raw": "\xff"}'
    frame = encode_legacy("iopub", HEADER, b"{}", b"{}", content)
    assert json.loads(frame)["content"] == {"text": "\ufffd", "n": None, "raw": "\ufffd"}


def test_depth_is_counted_in_the_part_and_not_in_the_frame():
    deepest = b'{"x":' + b"[" * (kernel.MAX_DEPTH - 1) + b"]" * (kernel.MAX_DEPTH - 1) + b"}"
    frame = encode_legacy("iopub", HEADER, b"{}", b"{}", deepest)
    assert decode_legacy(frame).content == deepest


@MANY
@given(st.text(max_size=60) | st.binary(max_size=60))
def test_legacy_arbitrary_frames_raise_nothing_but_wire_error(data):
    try:
        decode_legacy(data)
    except WireError:
        pass


@MANY
@given(damaged(legacy_frames, word=4, order="big"))
def test_legacy_damaged_frames_raise_nothing_but_wire_error(data):
    try:
        message = decode_legacy(data)
    except WireError:
        return
    for part in message[1:5]:
        assert isinstance(json.loads(part), dict)

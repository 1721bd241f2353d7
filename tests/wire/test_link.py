"""Link frames: the same frames in whatever pieces they arrive, and nothing allocated for what has not arrived."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.link import (
    MAX_HEADER,
    MAX_PAYLOAD,
    OLDEST_PROTOCOL,
    PROTOCOL,
    FrameDecoder,
    FrameWatch,
    encode_frame,
)
from tests.wire.strategies import FEW, MANY, allocates_at_most, damaged, json_objects

frames = st.lists(st.tuples(json_objects(), st.binary(max_size=40)), max_size=4)


def encode_all(messages):
    return b"".join(encode_frame(header, payload) for header, payload in messages)


def lengths(header, payload):
    return struct.pack(">IQ", header, payload)


def test_the_layout_is_two_lengths_then_header_then_payload():
    assert (
        encode_frame({"id": 7}, b"abc") == bytes([0, 0, 0, 8]) + bytes([0] * 7 + [3]) + b'{"id":7}' + b"abc"
    )


def test_the_oldest_protocol_is_not_newer_than_ours():
    assert 1 <= OLDEST_PROTOCOL <= PROTOCOL


def test_any_mapping_is_a_header():
    assert FrameDecoder().feed(encode_frame(MappingProxyType({"beat": 1}))) == [({"beat": 1}, b"")]


@FEW
@given(frames)
def test_frames_in_one_piece(messages):
    decoder = FrameDecoder()
    assert decoder.feed(encode_all(messages)) == messages
    assert decoder.buffered == 0


@FEW
@given(frames)
def test_frames_byte_by_byte(messages):
    decoder = FrameDecoder()
    data = encode_all(messages)
    arrived = [frame for at in range(len(data)) for frame in decoder.feed(data[at : at + 1])]
    assert arrived == messages
    assert decoder.buffered == 0


@MANY
@given(frames, st.data())
def test_frames_in_random_pieces(messages, data):
    raw = encode_all(messages)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=8))
    make = data.draw(st.sampled_from([bytes, bytearray, memoryview]))
    decoder = FrameDecoder()
    arrived = []
    for start, stop in pairwise([0, *sorted(cuts), len(raw)]):
        arrived += decoder.feed(make(raw[start:stop]))
    assert arrived == messages


def test_each_frame_is_handed_out_with_its_last_byte():
    data = encode_all([({"a": 1}, b"x"), ({"b": 2}, b"")])
    first = len(encode_frame({"a": 1}, b"x"))
    decoder = FrameDecoder()
    assert decoder.feed(data[: first - 1]) == []
    assert decoder.buffered == first - 1
    assert decoder.feed(data[first - 1 :]) == [({"a": 1}, b"x"), ({"b": 2}, b"")]


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (MAX_HEADER + 1, 0),
        (2**32 - 1, 0),
        (2, MAX_PAYLOAD + 1),
        (2, 2**40),
        (2, 2**63),
        (2, 2**64 - 1),
        (2**32 - 1, 2**64 - 1),
    ],
)
def test_lengths_over_the_limit_are_refused_before_anything_is_allocated(header, payload):
    decoder = FrameDecoder()
    with allocates_at_most(16_384), pytest.raises(WireError):
        decoder.feed(lengths(header, payload))


def test_an_announced_payload_costs_only_what_has_arrived():
    with allocates_at_most(65_536):
        decoder = FrameDecoder()
        assert decoder.feed(lengths(2, MAX_PAYLOAD) + b"{}") == []
        for _ in range(64):
            assert decoder.feed(b"x" * 256) == []
        assert decoder.buffered == 12 + 2 + 64 * 256


def test_frames_that_were_handed_out_are_not_kept():
    frame = encode_frame({"id": 1}, b"x" * 1000)
    decoder = FrameDecoder()
    with allocates_at_most(65_536):
        for _ in range(500):
            decoder.feed(frame)


def test_limits_are_parameters_and_the_limit_itself_is_allowed():
    header = json.dumps({"k": "x" * 20}).encode()
    assert FrameDecoder(max_header=len(header), max_payload=4).feed(
        lengths(len(header), 4) + header + b"abcd"
    )
    for decoder in (FrameDecoder(max_header=len(header) - 1), FrameDecoder(max_payload=3)):
        with pytest.raises(WireError):
            decoder.feed(lengths(len(header), 4))


@pytest.mark.parametrize(
    "header", [b"", b"[]", b"null", b"7", b'"x"', b"{", b'{"a":}', b"{}{}", b"\xff", b'{"a":' + b"[" * 5000]
)
def test_a_header_that_is_no_object_is_refused(header):
    with pytest.raises(WireError):
        FrameDecoder().feed(lengths(len(header), 0) + header)


def test_the_offset_counts_from_the_first_byte_of_the_link():
    decoder = FrameDecoder()
    good = encode_frame({"id": 1}, b"xyz")
    decoder.feed(good * 3)
    with pytest.raises(WireError) as caught:
        decoder.feed(lengths(MAX_HEADER + 1, 0))
    assert caught.value.offset == 3 * len(good)


def test_after_an_error_the_decoder_repeats_it_and_keeps_nothing():
    decoder = FrameDecoder()
    with pytest.raises(WireError) as first:
        decoder.feed(lengths(MAX_HEADER + 1, 0) + b"x" * 100)
    assert decoder.buffered == 0
    for data in (b"", encode_frame({"id": 1})):
        with pytest.raises(WireError) as again:
            decoder.feed(data)
        assert str(again.value) == str(first.value)
    assert decoder.buffered == 0


def test_what_cannot_be_sent_is_refused():
    deep: object = None
    for _ in range(200):
        deep = [deep]
    for header in ({"x": object()}, {"x": "\ud800"}, {"x": deep}, {"x": "x" * MAX_HEADER}):
        with pytest.raises(WireError):
            encode_frame(header)


class HugePayload(bytes):
    def __len__(self):
        return MAX_PAYLOAD + 1


def test_a_payload_over_the_limit_is_not_sent():
    with pytest.raises(WireError):
        encode_frame({}, HugePayload())


@MANY
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_arbitrary_bytes_raise_nothing_but_wire_error(pieces):
    decoder = FrameDecoder()
    try:
        for piece in pieces:
            decoder.feed(piece)
    except WireError:
        assert decoder.buffered == 0


@MANY
@given(damaged(frames.map(encode_all), word=4, order="big"))
def test_damaged_frames_raise_nothing_but_wire_error(data):
    decoder = FrameDecoder()
    try:
        for header, payload in decoder.feed(data):
            assert isinstance(header, dict)
            assert isinstance(payload, bytes)
    except WireError:
        pass


@given(frames, st.data())
def test_a_watcher_knows_where_frames_end(messages, data):
    """In whatever pieces they pass: the last end in each piece, and whether another frame may follow."""
    whole = encode_all(messages)
    ends, at = set(), 0
    for header, payload in messages:
        at += len(encode_frame(header, payload))
        ends.add(at)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    watch = FrameWatch()
    for start, stop in pairwise([0, *cuts, len(whole)]):
        found = watch.pass_by(whole[start:stop])
        inside = [end for end in ends if start < end <= stop]
        assert found == (max(inside) - start if inside else None)
        assert watch.is_between == (stop in ends or stop == 0)

"""Without a kernel or a keeper: framed once for all, and what is kept until it has been read."""

from __future__ import annotations

import socket

from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from jupyter_cmdop.keeper.clients import Published, websocket_frame
from jupyter_cmdop.keeper.loop import Loop
from jupyter_cmdop.keeper.websocket_connection import Leaving, WebsocketConnection
from jupyter_cmdop.keeper.websocket_unproven import KEPT_BYTES, KEPT_MESSAGES, Unproven

PARTS = [
    b'{"msg_id":"m","msg_type":"stream","session":"k"}',
    b'{"session":"c"}',
    b"{}",
    b'{"text":"x"}',
    b"\0\xff",
]


def parsed(data: bytes) -> Frame:
    """The one frame in `data`, as the websocket library reads it."""
    reader = StreamReader()
    reader.feed_data(data)
    parsing = Frame.parse(reader.read_exact, mask=False, max_size=None)
    try:
        next(parsing)
    except StopIteration as stop:
        assert len(reader.buffer) == 0
        return stop.value
    raise AssertionError("no whole frame")


class Counting(list[bytes]):
    """Parts that count how often they are read through."""

    def __init__(self, parts: list[bytes]) -> None:
        super().__init__(parts)
        self.readings = 0

    def __iter__(self):
        self.readings += 1
        return super().__iter__()


def test_a_message_is_framed_once_for_all_viewers() -> None:
    """64 viewers get the same bytes, made once for each format."""
    parts = Counting(PARTS)
    published = Published(b"stream", parts, seq=7)
    assert len({id(published.frame) for _ in range(64)}) == 1
    assert parts.readings == 1
    assert len({id(published.legacy_frame) for _ in range(64)}) == 1
    assert parts.readings == 2
    channel, read = deserialize_msg_from_ws_v1(bytes(parsed(published.frame).data))
    assert (channel, read) == ("iopub", PARTS)
    assert parsed(published.legacy_frame).opcode is Opcode.BINARY
    assert parsed(Published(b"stream", PARTS[:4]).legacy_frame).opcode is Opcode.TEXT
    assert published.asked_by == "c"
    assert Published(b"x", [b"{}", b"nonsense", b"{}", b"{}"]).asked_by == ""


def test_frames_of_all_sizes() -> None:
    for size in (0, 125, 126, 65535, 65536, 3_000_000):
        assert parsed(websocket_frame(b"x" * size)) == Frame(Opcode.BINARY, b"x" * size)


def test_unproven_messages_are_kept_until_they_are_proven() -> None:
    unproven = Unproven()
    for n in range(3):
        unproven.add("shell", [b"%d" % n])
    assert unproven.written == 3
    unproven.prove(1)
    unproven.write_again()
    assert unproven.written == 1, "a mark of the new connection must not prove what was not written to it"
    unproven.add("shell", [b"3"])
    assert [parts[0] for _, parts in unproven.to_write()] == [b"1", b"2"], (
        "the last went to the new connection itself"
    )
    assert unproven.written == 4
    unproven.prove(4)
    unproven.write_again()
    assert list(unproven.to_write()) == []


def test_a_prompt_is_counted_and_not_kept() -> None:
    unproven = Unproven()
    unproven.note_prompt()
    unproven.write_again()
    assert unproven.has_lost_prompt
    assert list(unproven.to_write()) == []
    unproven.note_prompt()
    assert not unproven.has_lost_prompt
    unproven.prove(unproven.written)
    unproven.write_again()
    assert not unproven.has_lost_prompt


def test_unproven_messages_are_bounded() -> None:
    unproven = Unproven()
    for _ in range(KEPT_MESSAGES + 10):
        unproven.add("shell", [b"x"])
    unproven.write_again()
    assert len(list(unproven.to_write())) == KEPT_MESSAGES
    unproven.add("shell", [b"x" * (KEPT_BYTES + 1)])
    unproven.write_again()
    assert list(unproven.to_write()) == []


def test_a_connection_that_is_over_leaves_in_time() -> None:
    """Its client never closes: the socket is closed when the time for the last bytes is over."""
    loop, leaving = Loop(), Leaving()
    near, far = socket.socketpair()
    said: list[tuple[int | None, str]] = []
    connection = WebsocketConnection(
        loop,
        far,
        headers=[
            ("Host", "x"),
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ],
        leaving=leaving,
        received=lambda data: None,
        ponged=lambda payload: None,
        closed=lambda code, reason: said.append((code, reason)),
        drained=lambda: None,
        stirred=lambda: None,
    )
    connection.start()
    connection.finish(1008, "é" * 200)
    connection.finish(1008, "again")
    assert said == [(None, "é" * 200)]
    assert len(leaving) == 1
    near.settimeout(5)
    head, _, frame = near.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert bytes(parsed(frame).data)[2:].decode() == "é" * 61, "a reason is cut between characters"
    near.sendall(b"x" * 1000)
    loop.turn()
    assert far.fileno() >= 0
    leaving.run_timers(float("inf"))
    assert far.fileno() < 0
    assert len(leaving) == 0
    near.close()
    loop.close()

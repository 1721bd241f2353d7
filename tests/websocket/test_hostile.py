"""What is not as it should be: handshakes, frames, messages. One connection ends with a reason; no other notices."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from jupyter_cmdop.client.session import Session
from tests.support import LIMIT_SECONDS, Closing, wait_for_entry
from tests.websocket.front import Front, ServerLink, adopt_args, descriptors_of, keeper_pid
from tests.websocket.viewer import V1, Viewer, is_idle_of, is_reply_to, reply_in, text_in

View = Callable[..., Viewer]


def frame(opcode: int, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(Opcode(opcode), data, fin).serialize(mask=True)


def v1(*parts: bytes, count: int | None = None) -> bytes:
    """A v1 message made by hand."""
    offsets = [8 * (len(parts) + 2)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return struct.pack(
        f"<{len(offsets) + 1}Q", len(offsets) if count is None else count, *offsets
    ) + b"".join(parts)


HEADER = b'{"msg_id":"m","msg_type":"execute_request","session":"s"}'
DEEP = b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"

UNREADABLE = {
    "nothing": b"",
    "noise": bytes(range(256)),
    "a count of 2**64": b"\xff" * 8,
    "offsets beyond the end": struct.pack("<7Q", 6, 56, 61, 2**40, 2**40, 2**40, 2**40),
    "no such channel": v1(b"shall", HEADER, b"{}", b"{}", b"{}"),
    "a client that publishes": v1(b"iopub", HEADER, b"{}", b"{}", b"{}"),
    "no header": v1(b"shell", b"", b"{}", b"{}", b"{}"),
    "a header of numbers": v1(b"shell", b'{"msg_id":1,"msg_type":2}', b"{}", b"{}", b"{}"),
    "a header that is too deep": v1(b"shell", DEEP, b"{}", b"{}", b"{}"),
    "an endless name": v1(b"shell", b'{"msg_id":"%b","msg_type":"x"}' % (b"m" * 5000), b"{}", b"{}", b"{}"),
}

BROKEN_FRAMES = {
    "unmasked": (Frame(Opcode.BINARY, b"x").serialize(mask=False), 1002),
    "reserved bits": (b"\xf2\x80\0\0\0\0", 1002),
    "reserved opcode": (b"\x83\x80\0\0\0\0", 1002),
    "a continuation of nothing": (frame(0, b"x"), 1002),
    "a message within a message": (frame(2, b"x", fin=False) + frame(2, b"y"), 1002),
    "a fragmented ping": (b"\x09\x80\0\0\0\0", 1002),
    "a long ping": (b"\x89\xfe\x00\x80\0\0\0\0" + b"x" * 128, 1002),
    "a close code that is none": (frame(8, struct.pack(">H", 1005)), 1002),
    "a close frame of one byte": (frame(8, b"\x03"), 1002),
    "more than any message may have": (
        b"\x82\xff" + struct.pack(">Q", 600 * 2**20) + b"\0\0\0\0" + b"x" * 70_000,
        1009,
    ),
    "a length of 2**63": (b"\x82\xff" + b"\xff" * 8 + b"\0\0\0\0", 1009),
    "fragments that grow too large": (
        frame(2, b"x" * 1000, fin=False) + b"\x80\xff" + struct.pack(">Q", 512 * 2**20) + b"\0\0\0\0",
        1009,
    ),
}


@pytest.fixture
def bystander(view: View) -> Iterator[Viewer]:
    """Somebody else, who must not notice anything."""
    viewer = view("client-bystander", actor="dan")
    viewer.run("1 + 1")
    yield viewer
    assert reply_in(viewer.run("2 + 2"))["content"]["status"] == "ok"


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_message_ends_its_connection(
    view: View, shared: Session, bystander: Viewer, what: str
) -> None:
    """1008 with a reason; the attempt is recorded; what was sent behind it is not heard."""
    viewer = view(f"client-{what.replace(' ', '-')}", actor="mallory")
    seq = shared.status().journal.seq  # type: ignore[union-attr]
    _, valid = viewer.make_execute("print('must not run')")
    assert viewer.socket is not None
    assert isinstance(valid, bytes)
    viewer.socket.sendall(frame(2, UNREADABLE[what]) + frame(2, valid))
    code, reason = viewer.read_to_end()
    assert code == 1008
    assert "cannot be read" in reason
    wait_for_entry(shared, "refused", after=seq)
    bystander.catch_up()
    assert "must not run" not in text_in(bystander.received)


def test_text_where_binary_belongs_and_the_reverse(view: View, bystander: Viewer) -> None:
    viewer = view("client-text", actor="mallory")
    viewer.send_data("{}")
    assert viewer.read_to_end()[0] == 1008
    for data in (
        "[]",
        "nonsense",
        '{"header": 7}',
        '{"header": {}, "buffers": [1]}',
        b"\xff\xff\xff\xff",
        b"",
    ):
        legacy = view("client-legacy", actor="mallory", legacy=True)
        legacy.send_data(data)
        assert legacy.read_to_end()[0] == 1008, data
    legacy = view("client-legacy", actor="mallory", legacy=True)
    assert legacy.socket is not None
    legacy.socket.sendall(frame(1, b"\xff\xfe{}"))
    assert legacy.read_to_end()[0] == 1007


@pytest.mark.parametrize("what", BROKEN_FRAMES)
def test_a_broken_frame_ends_its_connection(view: View, bystander: Viewer, what: str) -> None:
    data, expected = BROKEN_FRAMES[what]
    viewer = view(f"client-{what.replace(' ', '-')}", actor="mallory")
    assert viewer.socket is not None
    viewer.socket.sendall(data)
    code, reason = viewer.read_to_end()
    assert code == expected
    assert reason
    viewer.connect()  # the next try is a connection as any other
    assert reply_in(viewer.run("3 + 3"))["content"]["status"] == "ok"


def test_the_reason_arrives_although_more_was_being_sent(view: View, bystander: Viewer) -> None:
    """A socket closed with unread bytes is reset, and a client that is still sending would see that and no code."""
    viewer = view("client-sending", actor="mallory")
    assert viewer.socket is not None
    viewer.socket.sendall(b"\x82\xff" + struct.pack(">Q", 2**40) + b"\0\0\0\0")
    for _ in range(64):
        viewer.socket.sendall(b"x" * 65536)
    assert viewer.read_to_end()[0] == 1009


def test_a_request_of_the_wrong_kind_is_refused_and_answered(view: View, bystander: Viewer) -> None:
    """Readable, but not what a kernel takes: an error reply, and the connection stays."""
    viewer = view("client-wrong", actor="mallory")
    for msg_type, content in (("execute_request", {"code": 7}), ("history_request", {"n": "many"})):
        reply = viewer.ask(msg_type, content)
        assert reply["content"]["status"] == "error"
    assert (
        viewer.ask("shutdown_request", {"restart": True}, channel="control")["content"]["status"] == "error"
    )
    assert viewer.is_open


def test_pings_that_are_not_read(view: View, shared: Session, bystander: Viewer) -> None:
    """Whoever pings and does not read what is answered is cut off before it fills the memory."""
    viewer = view("client-pings", actor="mallory", receive_buffer=4096)
    seq = shared.status().journal.seq  # type: ignore[union-attr]
    assert viewer.socket is not None
    pings = frame(9, b"x" * 125) * 500
    with contextlib.suppress(ConnectionError, TimeoutError):
        while True:
            viewer.socket.sendall(pings)
    wait_for_entry(shared, "detached", actor="mallory", after=seq)
    viewer.abandon()


def test_fragments_with_a_ping_in_between(view: View) -> None:
    viewer = view("client-fragments")
    msg_id, data = viewer.make_execute("print('in pieces')")
    assert isinstance(data, bytes)
    assert viewer.socket is not None
    pieces = [data[n : n + 7] for n in range(0, len(data), 7)]
    viewer.socket.sendall(frame(2, pieces[0], fin=False) + frame(0, b"", fin=False))
    for piece in pieces[1:-1]:
        viewer.socket.sendall(frame(9, b"still there?") + frame(0, piece, fin=False))
    viewer.socket.sendall(frame(0, pieces[-1]))
    assert text_in(viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))) == "in pieces\n"


def test_a_frame_glued_to_the_request_is_not_lost(view: View) -> None:
    """Clients that do not wait for the 101: whole frames, and one that is cut anywhere."""
    for cut in (None, 1, 5, 100):
        viewer = view("client-early", connect=False)
        msg_id, data = viewer.make_execute("print('early')")
        assert isinstance(data, bytes)
        whole = frame(2, data)
        viewer.connect(glued=whole if cut is None else whole[:cut])
        if cut is not None:
            assert viewer.socket is not None
            viewer.socket.sendall(whole[cut:])
        assert text_in(viewer.until(is_idle_of(msg_id), is_reply_to(msg_id))) == "early\n"
        viewer.leave()


def test_a_long_cookie_is_no_obstacle(front: Front) -> None:
    """A Jupyter server takes headers of 64 KiB, the websocket library lines of 8 KiB: only the handshake matters."""
    with socket.create_connection(front.address) as connection:
        connection.settimeout(LIMIT_SECONDS)
        headers = handshake_headers()
        headers.append(["Cookie", "a=" + "b" * 30_000])
        lines = [f"GET /api/kernels/x/channels?session_id=cookie&actor=carol&x={'y' * 9000} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 101 ")


# ---------------------------------------------------------------------- handing over


def handshake_headers(**changes: str | None) -> list[list[str]]:
    headers = {
        "Host": "localhost",
        "Connection": "keep-alive, Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": V1,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return [[name, value] for name, value in headers.items() if value is not None]


@pytest.fixture
def link(shared: Session, closing: Closing) -> ServerLink:
    made = closing(ServerLink(shared))
    assert isinstance(made, ServerLink)
    return made


def pair(closing: Closing) -> tuple[socket.socket, socket.socket]:
    """A TCP connection: (the client's end, the server's end)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = closing(socket.create_connection(server.getsockname()))
        far, _ = server.accept()
    near.settimeout(LIMIT_SECONDS)
    return near, closing(far)


def adopt(link: ServerLink, far: socket.socket, headers: list[list[str]], **args: Any) -> dict[str, Any]:
    return link.ask(
        "adopt", adopt_args("/x?actor=carol&session_id=by-hand", headers, **args), b"", (far.fileno(),)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"Upgrade": None},
        {"Connection": "close"},
        {"Sec_WebSocket_Version": "12"},
        {"Sec_WebSocket_Key": None},
        {"Sec_WebSocket_Key": "short"},
    ],
    ids=["no upgrade", "no connection", "version 12", "no key", "a bad key"],
)
def test_what_is_no_handshake_is_left_to_the_server(
    link: ServerLink, closing: Closing, changes: dict[str, str | None]
) -> None:
    """The keeper refuses and has written nothing: the server answers with plain HTTP on the same socket."""
    near, far = pair(closing)
    answer = adopt(link, far, handshake_headers(**changes))
    assert answer["refusal"]["code"] == "unsupported"
    far.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert near.recv(65536) == b"HTTP/1.1 400 Bad Request\r\n\r\n"


def test_a_refused_browser_gets_the_servers_answer(view: View) -> None:
    with pytest.raises(InvalidStatus, match="503"):
        view("client-nonsense", cursor="nonsense")


def test_a_client_that_left_before_it_was_handed_over(
    link: ServerLink, closing: Closing, bystander: Viewer
) -> None:
    """Its socket is dead when it comes: adopted and detached at once, or refused; the keeper goes on."""
    for end in ("reset", "close"):
        near, far = pair(closing)
        if end == "reset":
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        near.close()
        answer = adopt(link, far, handshake_headers())
        assert "result" in answer or "refusal" in answer
        bystander.catch_up()


def test_what_comes_with_an_adoption_is_its_own(link: ServerLink, shared: Session, closing: Closing) -> None:
    """Faulty requests take their descriptors with them: the next one must not get somebody else's socket."""
    keeper = keeper_pid(shared)
    before = descriptors_of(keeper)
    near, far = pair(closing)
    assert link.ask("adopt", {"path": "/"}, b"", (far.fileno(),))["error"]["code"] == "bad_request"
    with open(os.devnull, "rb") as file:
        assert link.ask("adopt", adopt_args("/x", handshake_headers()), b"", (file.fileno(),))["error"]
    assert link.ask("adopt", adopt_args("/x", handshake_headers()))["error"]["code"] == "bad_request"
    assert descriptors_of(keeper) == before
    other_near, other_far = pair(closing)
    attachment = adopt(link, other_far, handshake_headers())["result"]["attachment"]
    assert attachment.startswith("w")
    assert other_near.recv(65536).startswith(b"HTTP/1.1 101 ")
    far.close()
    assert near.recv(1) == b"", "nothing was written to the one that was refused"
    assert link.ask("drop", {"attachment": attachment})["result"]["closed"] == 1
    assert b"its credential has ended" in other_near.recv(65536)


@pytest.mark.parametrize(
    "hello", [{"actor": "bot"}, {"verified": {"id": "ann", "role": "peer"}}], ids=["bot", "ann"]
)
def test_only_the_owners_server_hands_over(shared: Session, closing: Closing, hello: dict[str, Any]) -> None:
    link = closing(ServerLink(shared, **hello))
    near, far = pair(closing)
    assert adopt(link, far, handshake_headers())["refusal"]["code"] == "forbidden"
    assert link.ask("drop", {"actor": "dan"})["refusal"]["code"] == "forbidden"
    assert link.ask("renew", {"attachment": "w1"})["result"] == {"renewed": False}
    far.sendall(b"untouched")
    assert near.recv(100) == b"untouched"


def test_a_flood_of_descriptors_ends_the_link(shared: Session, closing: Closing) -> None:
    link = closing(ServerLink(shared))
    before = descriptors_of(keeper_pid(shared))
    near, _ = pair(closing)
    asked = 0
    with contextlib.suppress(EOFError, ConnectionError):
        for asked in range(40):  # noqa: B007 - read below
            link.ask("status", {}, b"", (near.fileno(),))
    assert asked < 39
    shared.status()  # what ended that link has been done when this is answered
    assert descriptors_of(keeper_pid(shared)) <= before


def test_a_spliced_connection_works_alike(link: ServerLink, closing: Closing, view: View) -> None:
    """TLS ends in the server: it hands over one end of a socket pair and copies bytes."""
    far, near = socket.socketpair()
    closing(near)
    closing(far)
    near.settimeout(LIMIT_SECONDS)
    attachment = adopt(link, far, handshake_headers(), spliced=True)["result"]["attachment"]
    far.close()
    viewer = view("by-hand", connect=False)
    head = near.recv(65536)
    assert head.startswith(b"HTTP/1.1 101 ")
    _, data = viewer.make_execute("print('through a pair')")
    assert isinstance(data, bytes)
    near.sendall(frame(2, data))
    seen = b""
    while b"through a pair\\n" not in seen:
        more = near.recv(65536)
        assert more
        seen += more
    assert link.ask("drop", {"attachment": attachment, "reason": "logged out"})["result"]["closed"] == 1
    while b"logged out" not in seen:
        more = near.recv(65536)
        assert more
        seen += more

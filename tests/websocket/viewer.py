"""A kernel websocket client that does exactly what it is told: when it reads, what it answers, how it goes.

Messages are made and read with jupyter_client's and jupyter_server's own functions. It has no thread: what it has not
been told to read lies unread in its socket.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

from jupyter_client.jsonutil import json_default
from jupyter_client.session import Session as HeaderSession
from jupyter_server.services.kernels.connection.base import (
    deserialize_binary_message,
    deserialize_msg_from_ws_v1,
    serialize_binary_message,
    serialize_msg_to_ws_v1,
)
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from tests.support import LIMIT_SECONDS, TooLate

V1 = "v1.kernel.websocket.jupyter.org"
Message = dict[str, Any]
_CONTROL = (Opcode.PING, Opcode.PONG, Opcode.CLOSE)


class Closed(AssertionError):
    """The connection has ended while something was awaited."""


class Viewer:
    """One client: a header session of one actor, over as many connections as it takes.

    Attributes:
        received: every message in the order in which it was read, over all connections.
        marks: the payloads of the pings that were read on the connection in hand.
        close: code and reason with which the keeper closed it, if it did.
    """

    def __init__(
        self,
        address: tuple[str, int],
        session_id: str = "client-1",
        *,
        actor: str = "carol",
        legacy: bool = False,
        connect: bool = True,
        receive_buffer: int | None = None,
        names_session: bool = True,
        kernel_id: str = "x",
        path: str | None = None,
        authorization: str | None = None,
        **query: Any,
    ) -> None:
        self.address = address
        self.session_id = session_id
        self.authorization = authorization
        self.path = path or f"/api/kernels/{kernel_id}/channels"
        self.legacy = legacy
        self.query = {"actor": actor, **query}
        if names_session:
            self.query["session_id"] = session_id
        self.header_session = HeaderSession(session=session_id, username="stock", key=b"")
        self.received: list[Message] = []
        self.marks: list[bytes] = []
        self.answers_pings = True
        self.close_code: int | None = None
        self.close_reason = ""
        self._receive_buffer = receive_buffer
        self._unseen: list[Message] = []
        self._parts: list[bytes] = []
        self._is_text = False
        self._protocol: ClientProtocol | None = None
        self.socket: socket.socket | None = None
        self._older: list[socket.socket] = []
        if connect:
            self.connect()

    # ------------------------------------------------------------------ the connection

    def connect(self, *, glued: bytes = b"", address: tuple[str, int] | None = None, **query: Any) -> None:
        """Open a new connection, without a word to the old one.

        Args:
            glued: bytes that are sent in one piece with the request.
        """
        self.address = address or self.address
        asked = "&".join(f"{name}={value}" for name, value in {**self.query, **query}.items())
        host, port = self.address
        uri = parse_uri(f"ws://{host}:{port}{self.path}?{asked}")
        offered = None if self.legacy else [V1]
        self._protocol = ClientProtocol(uri, subprotocols=offered, max_size=None)  # type: ignore[arg-type]
        self._parts, self.marks, self.close_code, self.close_reason = [], [], None, ""
        if self.socket is not None:
            self._older.append(self.socket)
        self.socket = socket.socket()
        if self._receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        self.socket.settimeout(LIMIT_SECONDS)
        self.socket.connect(self.address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = self._protocol.connect()
        if self.authorization is not None:
            request.headers["Authorization"] = self.authorization
        self._protocol.send_request(request)
        self.socket.sendall(b"".join(self._protocol.data_to_send()) + glued)
        while self._protocol.state is State.CONNECTING:
            self.read()
            if self._protocol.handshake_exc is not None:
                self.abandon()
                raise self._protocol.handshake_exc
        if self._protocol.subprotocol != (None if self.legacy else V1):
            raise InvalidHandshake(f"the keeper chose {self._protocol.subprotocol}")

    @property
    def is_open(self) -> bool:
        return self._protocol is not None and self._protocol.state is State.OPEN

    def read(self, size: int = 262_144, limit_seconds: float = LIMIT_SECONDS) -> bool:
        """Read once and answer pings; False at the end of the stream."""
        assert self.socket is not None
        assert self._protocol is not None
        if not select.select([self.socket], [], [], max(0.0, limit_seconds))[0]:
            raise TooLate(f"nothing came within {limit_seconds} s; the last were {self.story()}")
        try:
            data = self.socket.recv(size)
        except ConnectionResetError:
            data = b""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._frame(event)
        self.flush()
        return bool(data)

    def flush(self) -> None:
        assert self.socket is not None
        assert self._protocol is not None
        for data in self._protocol.data_to_send():
            if data and (self.answers_pings or data[0] & 0x0F != Opcode.PONG):
                try:
                    self.socket.sendall(data)
                except (BrokenPipeError, ConnectionResetError):
                    return

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PING:
            self.marks.append(bytes(frame.data))
        elif frame.opcode is Opcode.CLOSE:
            assert self._protocol is not None
            assert self._protocol.close_rcvd is not None
            self.close_code = self._protocol.close_rcvd.code
            self.close_reason = self._protocol.close_rcvd.reason
        if frame.opcode in _CONTROL:
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._parts.append(bytes(frame.data))
        if frame.fin:
            data, self._parts = b"".join(self._parts), []
            message = self._decode(data)
            self.received.append(message)
            self._unseen.append(message)

    def _decode(self, data: bytes) -> Message:
        if self.legacy:
            return json.loads(data) if self._is_text else deserialize_binary_message(data)
        assert not self._is_text
        channel, parts = deserialize_msg_from_ws_v1(data)
        header, parent, metadata, content = (json.loads(part) for part in parts[:4])
        return {
            "channel": channel,
            "header": header,
            "msg_id": header["msg_id"],
            "msg_type": header["msg_type"],
            "parent_header": parent,
            "metadata": metadata,
            "content": content,
            "buffers": parts[4:],
        }

    # ------------------------------------------------------------------ how it goes

    def read_faster(self) -> None:
        """It was stalled; from now on it takes what a client usually takes."""
        assert self.socket is not None
        self._receive_buffer = None
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024 * 1024)

    def leave(self, code: int | None = 1001) -> None:
        """Close as a page does (None: without a code), and wait for the end."""
        assert self._protocol is not None
        self._protocol.send_close(code) if code is not None else self._protocol.send_close()
        self.flush()
        while self.read():
            pass
        self.abandon()

    def hang_up(self) -> None:
        """End the TCP connection without a closing frame."""
        self.abandon()

    def reset(self) -> None:
        """End it with a RST."""
        assert self.socket is not None
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abandon()

    def abandon(self) -> None:
        for old in [*self._older, *([] if self.socket is None else [self.socket])]:
            old.close()
        self._older, self.socket = [], None

    close = abandon

    def read_to_end(self, limit_seconds: float = LIMIT_SECONDS) -> tuple[int | None, str]:
        """Read until the keeper ends the connection; code and reason."""
        deadline = time.monotonic() + limit_seconds
        while self.read(limit_seconds=deadline - time.monotonic()):
            pass
        self.abandon()
        return self.close_code, self.close_reason

    # ------------------------------------------------------------------ talking

    def make(
        self,
        msg_type: str,
        content: dict[str, Any],
        *,
        channel: str = "shell",
        buffers: list[bytes] | None = None,
        metadata: dict[str, Any] | None = None,
        header: dict[str, Any] | None = None,
        parent: dict[str, Any] | None = None,
    ) -> tuple[str, str | bytes]:
        """A message as JupyterLab would send it: (id, what goes into the websocket message)."""
        message = self.header_session.msg(msg_type, content, metadata=metadata, parent=parent)
        msg_id = (
            uuid.uuid4().hex
        )  # as JupyterLab; jupyter_client counts, and two of one session would count alike
        message["header"].update({"msg_id": msg_id, **(header or {})})
        message["msg_id"] = msg_id = str(message["header"]["msg_id"])
        if not self.legacy:
            parts = [
                json.dumps(message[name], default=json_default).encode()
                for name in ("header", "parent_header", "metadata", "content")
            ]
            return msg_id, serialize_msg_to_ws_v1([*parts, *(buffers or [])], channel)
        message["channel"] = channel
        message["buffers"] = buffers or []
        if buffers:
            return msg_id, serialize_binary_message(message)
        return msg_id, json.dumps(message, default=json_default)

    def send(self, msg_type: str, content: dict[str, Any], **options: Any) -> str:
        msg_id, data = self.make(msg_type, content, **options)
        self.send_data(data)
        return msg_id

    def send_data(self, data: str | bytes) -> None:
        assert self._protocol is not None
        if isinstance(data, str):
            self._protocol.send_text(data.encode())
        else:
            self._protocol.send_binary(data)
        self._send_all()

    def _send_all(self) -> None:
        """Write without ever leaving unread what the keeper writes meanwhile."""
        assert self.socket is not None
        assert self._protocol is not None
        for data in self._protocol.data_to_send():
            rest = memoryview(data)
            while rest:
                readable, writable, _ = select.select([self.socket], [self.socket], [], LIMIT_SECONDS)
                if readable and not writable:
                    self.read()
                if writable:
                    rest = rest[self.socket.send(rest[: 256 * 1024]) :]

    def execute(self, code: str, *, metadata: dict[str, Any] | None = None, **changes: Any) -> str:
        msg_id, data = self.make_execute(code, metadata=metadata, **changes)
        self.send_data(data)
        return msg_id

    def make_execute(
        self,
        code: str,
        *,
        metadata: dict[str, Any] | None = None,
        header: dict[str, Any] | None = None,
        **changes: Any,
    ) -> tuple[str, str | bytes]:
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": True,
            **changes,
        }
        return self.make("execute_request", content, metadata=metadata, header=header)

    # ------------------------------------------------------------------ listening

    def next(self, limit_seconds: float = LIMIT_SECONDS) -> Message:
        deadline = time.monotonic() + limit_seconds
        while not self._unseen:
            if not self.read(limit_seconds=deadline - time.monotonic()):
                raise Closed(
                    f"closed with {self.close_code} {self.close_reason!r}; the last were {self.story()}"
                )
        return self._unseen.pop(0)

    def until(
        self, *wanted: Callable[[Message], object], limit_seconds: float = LIMIT_SECONDS
    ) -> list[Message]:
        """Everything up to the moment when each of `wanted` has held for some message."""
        deadline = time.monotonic() + limit_seconds
        seen: list[Message] = []
        left = list(wanted)
        while left:
            seen.append(self.next(deadline - time.monotonic()))
            left = [predicate for predicate in left if not predicate(seen[-1])]
        return seen

    def run(self, code: str, **changes: Any) -> list[Message]:
        """Execute, and read until its reply and its idle have come; what belongs to this cell."""
        msg_id = self.execute(code, **changes)
        seen = self.until(is_reply_to(msg_id), is_idle_of(msg_id))
        return [m for m in seen if m["parent_header"].get("msg_id") == msg_id]

    def ask(self, msg_type: str, content: dict[str, Any], **options: Any) -> Message:
        """The reply to a request."""
        msg_id = self.send(msg_type, content, **options)
        return self.until(is_reply_to(msg_id))[-1]

    def catch_up(self) -> None:
        """Read all that was shown before now: the answer to a question comes behind it.

        Not on a new connection: what comes from the journal may come later than an answer. Run a cell there.
        """
        msg_id = self.send("kernel_info_request", {})
        self.until(is_reply_to(msg_id), is_idle_of(msg_id))

    def until_confirmed(self) -> None:
        """Read on until a mark has come behind all that was read, and its pong has been sent."""
        while not self.marks or int(self.marks[-1].split(b".")[0]) < seq_of(recorded(self.received)[-1]):
            self.read()

    def story(self) -> list[str]:
        """The last messages, in a few words."""
        return [
            f"{m['channel']}:{m['msg_type']} {m['content'].get('evalue', '')}" for m in self.received[-12:]
        ]


# ---------------------------------------------------------------------- questions about messages


def is_reply_to(msg_id: str) -> Callable[[Message], object]:
    return lambda m: m["channel"] in ("shell", "control") and m["parent_header"].get("msg_id") == msg_id


def is_idle_of(msg_id: str) -> Callable[[Message], object]:
    return lambda m: (
        m["msg_type"] == "status"
        and m["content"]["execution_state"] == "idle"
        and m["parent_header"].get("msg_id") == msg_id
    )


def is_type(msg_type: str) -> Callable[[Message], object]:
    return lambda m: m["msg_type"] == msg_type


def says(text: str) -> Callable[[Message], object]:
    return lambda m: m["msg_type"] == "stream" and text in m["content"]["text"]


def reply_in(messages: list[Message]) -> Message:
    return next(m for m in messages if m["msg_type"] == "execute_reply")


def text_in(messages: list[Message]) -> str:
    return "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")


def seq_of(message: Message) -> int:
    return int(message["metadata"]["cmdop"]["seq"])


def recorded(messages: list[Message]) -> list[Message]:
    """Those that have a place in the journal: output of operations and the replies to them, as the kernel made them.

    What the keeper says in the kernel's place has another form of message id (ipykernel: session_pid_number).
    """
    return [
        m
        for m in messages
        if m["metadata"]["cmdop"]["operation"] is not None
        and m["channel"] in ("iopub", "shell")
        and m["msg_id"].count("_") == 2
    ]


# ---------------------------------------------------------------------- a client that comes back


def confirmed(viewer: Viewer, *, clean: bool) -> int:
    """The seq of the last mark whose pong the keeper surely has.

    Args:
        clean: the connection in hand ended so that everything that was written on it arrived.
    """
    marks = [int(mark.split(b".")[0]) for mark in viewer.marks]
    return marks[-1] if clean and marks else marks[-2] if len(marks) > 1 else 0


def check_connections(viewer: Viewer, parts: list[list[Message]], floors: list[int], lines: int) -> None:
    """Over all connections: no line missing, in order, and nothing repeated that was confirmed.

    Args:
        parts: what was read on each connection.
        floors: what was confirmed before each of them.
        lines: how many numbered lines there were; what else stands in a line is not looked at.
    """
    for part, floor in zip(parts, floors, strict=True):
        seqs = [seq_of(m) for m in recorded(part)]
        assert seqs == sorted(set(seqs)), "on one connection each message comes once, in order"
        if seqs:
            assert seqs[0] > floor, "something was repeated although its reading had been confirmed"
    places = {(m["msg_id"], seq_of(m)) for m in recorded(viewer.received)}
    assert len(places) == len({msg_id for msg_id, _ in places}), "what comes twice has one id and one place"
    everything = {m["msg_id"]: m for m in recorded(viewer.received)}
    text = text_in(sorted(everything.values(), key=seq_of))
    assert [line.split()[0] for line in text.splitlines()] == [str(n) for n in range(lines)]

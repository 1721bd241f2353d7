"""Doors to a kernel: the same calls over ZMQ or over a Jupyter websocket.

Every door does the same work for its client: build and sign or frame the request, read every message, parse header,
parent and content. So what differs is what lies between the client and the kernel. Sockets block, and there is no event
loop in the measured path.
"""

from __future__ import annotations

import gc
import hmac
import json
import math
import time
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import zmq

from bench.probes import LIMIT_SECONDS
from bench.websocket import WebSocket
from jupyter_cmdop.wire.websocket import decode_v1, encode_v1

DELIMITER = b"<IDS|MSG>"
V1 = "v1.kernel.websocket.jupyter.org"


@dataclass(slots=True)
class Message:
    """What arrived; its parts are parsed when they are asked for.

    Attributes:
        at: time.monotonic_ns when it had been read.
    """

    channel: str
    parts: list[bytes]
    at: int

    @property
    def kind(self) -> str:
        return str(json.loads(self.parts[0])["msg_type"])

    @property
    def parent_id(self) -> str | None:
        found = json.loads(self.parts[1]).get("msg_id")
        return None if found is None else str(found)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(json.loads(self.parts[2]))

    @property
    def content(self) -> dict[str, Any]:
        return dict(json.loads(self.parts[3]))

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def request_parts(session: str, code: str, *, silent: bool) -> tuple[str, list[bytes]]:
    """The message id and header, parent, metadata, content of an execute_request."""
    msg_id = uuid.uuid4().hex
    header = {
        "msg_id": msg_id,
        "msg_type": "execute_request",
        "username": "bench",
        "session": session,
        "date": datetime.now(UTC).isoformat(),
        "version": "5.4",
    }
    content = {
        "code": code,
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": True,
    }
    return msg_id, [json.dumps(header).encode(), b"{}", b"{}", json.dumps(content).encode()]


class Door(AbstractContextManager["Door"]):
    """A client's way to one kernel.

    Attributes:
        name: which column it is.
        pid: the process whose processor time and memory are the door's cost, where there is one.
    """

    name: str
    pid: int | None = None
    session: str

    @abstractmethod
    def request(self, code: str, *, silent: bool = False) -> str:
        """Send an execute_request; its message id."""

    @abstractmethod
    def recv(self, seconds: float) -> Message | None:
        """The next message of any channel; None when none comes in time."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def __exit__(self, *exc: object) -> None:
        self.close()

    def drain(self, quiet_seconds: float = 0.05) -> None:
        while self.recv(quiet_seconds) is not None:
            pass

    def ready(self) -> Self:
        """Return when the kernel answers and nothing more is on its way."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            if self.execute("pass", silent=True, seconds=2) is not None:
                self.drain()
                return self
        raise TimeoutError(f"{self.name}: the kernel does not answer")

    def execute(self, code: str, *, silent: bool = False, seconds: float = LIMIT_SECONDS) -> float | None:
        """Seconds until reply and idle have both come; None when they do not."""
        start = time.perf_counter()
        msg_id = self.request(code, silent=silent)
        deadline = time.monotonic() + seconds
        replied = idle = False
        while not (replied and idle):
            message = self.recv(max(0.001, deadline - time.monotonic()))
            if message is None:
                return None
            kind, parent, content = message.kind, message.parent_id, message.content
            if parent != msg_id:
                continue
            if kind == "execute_reply":
                if content["status"] != "ok":
                    raise RuntimeError(f"{self.name}: {content}")
                replied = True
            elif kind == "status" and content["execution_state"] == "idle":
                idle = True
        return time.perf_counter() - start

    def trip_us(self, *, silent: bool) -> float:
        took = self.execute("pass", silent=silent, seconds=10)
        return math.inf if took is None else took * 1e6


class ZmqDoor(Door):
    """By a connection file: straight to a kernel, or to a session's endpoint. Every signature is checked."""

    def __init__(self, name: str, connection_file: str | Path, *, pid: int | None = None) -> None:
        self.name, self.pid = name, pid
        info = json.loads(Path(connection_file).read_bytes())
        self._key = info["key"].encode()
        self.session = uuid.uuid4().hex
        between = "-" if info["transport"] == "ipc" else ":"
        self._shell: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._shell.setsockopt(zmq.IDENTITY, self.session.encode())
        self._iopub: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._poller = zmq.Poller()
        self._iopub.subscribe(b"")
        ways: list[tuple[zmq.Socket[bytes], str]] = [(self._shell, "shell_port"), (self._iopub, "iopub_port")]
        for socket, port in ways:
            for option in (zmq.LINGER, zmq.RCVHWM, zmq.SNDHWM):
                socket.setsockopt(option, 0)
            socket.connect(f"{info['transport']}://{info['ip']}{between}{info[port]}")
            self._poller.register(socket, zmq.POLLIN)
        self._pending: list[Message] = []

    def _sign(self, parts: list[bytes]) -> bytes:
        return hmac.digest(self._key, b"".join(parts), "sha256").hex().encode()

    def request(self, code: str, *, silent: bool = False) -> str:
        msg_id, parts = request_parts(self.session, code, silent=silent)
        self._shell.send_multipart([DELIMITER, self._sign(parts), *parts])
        return msg_id

    def _read(self, socket: zmq.Socket[bytes]) -> Message:
        frames = socket.recv_multipart()
        at = frames.index(DELIMITER)
        parts = frames[at + 2 :]
        if self._sign(parts[:4]) != frames[at + 1]:
            raise RuntimeError(f"{self.name}: a bad signature")
        return Message("iopub" if socket is self._iopub else "shell", parts, time.monotonic_ns())

    def recv(self, seconds: float) -> Message | None:
        if not self._pending:
            ready = self._poller.poll(round(seconds * 1000))
            self._pending = [self._read(socket) for socket, _ in ready][::-1]
        return self._pending.pop() if self._pending else None

    def close(self) -> None:
        self._shell.close()
        self._iopub.close()


class WebsocketDoor(Door):
    """`/api/kernels/<id>/channels` of a Jupyter server, in its binary protocol.

    Args:
        session: the header session of a client that comes back; a new client's otherwise.
        cursor: where to read on, for a session's websocket.
    """

    def __init__(
        self,
        name: str,
        url: str,
        token: str,
        *,
        pid: int | None = None,
        session: str | None = None,
        cursor: str | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.name, self.pid = name, pid
        self.session = session or uuid.uuid4().hex
        query = f"session_id={self.session}" + (f"&cursor={cursor}" if cursor else "")
        self.websocket = WebSocket(
            f"{url}?{query}",
            subprotocol=V1,
            headers={"Authorization": f"token {token}"},
            receive_buffer=receive_buffer,
        )

    def fileno(self) -> int:
        return self.websocket.fileno()

    def request(self, code: str, *, silent: bool = False) -> str:
        msg_id, (header, parent, metadata, content) = request_parts(self.session, code, silent=silent)
        self.websocket.send(encode_v1("shell", header, parent, metadata, content, []))
        return msg_id

    def recv(self, seconds: float) -> Message | None:
        raw = self.websocket.recv(seconds)
        if raw is None:
            return None
        at = time.monotonic_ns()
        channel, header, parent, metadata, content, buffers = decode_v1(raw)
        return Message(channel, [header, parent, metadata, content, *buffers], at)

    def close(self) -> None:
        self.websocket.close()


@dataclass(slots=True)
class Flood:
    """What arrived of a cell with much output.

    Attributes:
        got: lines, or messages where those are what is counted.
        saw_idle: whether the end of the cell was seen.
        messages_per_second, megabytes_per_second: from the request to the last message.
    """

    got: int
    lost: int
    saw_idle: bool
    messages: int
    messages_per_second: float
    megabytes_per_second: float


def flood(door: Door, code: str, want: int, *, seconds: float = 120, quiet_seconds: float = 3) -> Flood:
    """Execute and count, until the cell's idle, or until nothing has come for `quiet_seconds`."""
    gc.collect()
    got = size = messages = 0
    idle = False
    start = last = time.perf_counter()
    msg_id = door.request(code)
    deadline = time.monotonic() + seconds
    while not idle and time.monotonic() < deadline and (message := door.recv(quiet_seconds)) is not None:
        kind = message.kind
        if kind in ("stream", "display_data", "comm_msg"):
            last = time.perf_counter()
            size += message.size
            messages += 1
            if kind == "stream" and want > 1:
                # Lines, not messages: a kernel may join its writes. Another stream tells of losses.
                content = message.content
                got += content["text"].count("\n") if content["name"] == "stdout" else 0
            else:
                message.content  # noqa: B018 (parsed, as a client must)
                got += 1
        elif kind == "status":
            idle = message.content["execution_state"] == "idle" and message.parent_id == msg_id
    span = last - start
    door.drain(0.2)
    return Flood(
        got, want - got, idle, messages, messages / span if span else 0, size / span / 1e6 if span else 0
    )


def code_for(kind: str, word: str, *numbers: int) -> str:
    """The same work as a command of the null kernel or as Python."""
    if kind == "null" or word == "pass":
        return " ".join([word, *map(str, numbers)])
    if word == "flood":
        return f"for _i in range({numbers[0]}): print('x' * {numbers[1] - 1}, flush=True)"
    if word == "big":
        return f"import sys; _ = sys.stdout.write('x' * {numbers[0]}); sys.stdout.flush()"
    if word == "display":
        return f"from IPython.display import publish_display_data as _p; _p({{'text/plain': 'x' * {numbers[0]}}})"
    raise ValueError(word)


def stream_texts(door: Door, quiet_seconds: float) -> Iterator[tuple[Message, str]]:
    """Stream messages with their texts, until nothing comes any more."""
    while (message := door.recv(quiet_seconds)) is not None:
        if message.kind == "stream":
            yield message, message.content["text"]

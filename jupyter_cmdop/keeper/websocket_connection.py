"""One adopted websocket: its handshake, its frames in and out, bounded.

The protocol is that of the `websockets` library without its I/O; reading and writing are the loop's. What is shown to
everybody is framed once for all (`Published`), so those bytes are written beside the library's own, which only speaks
between whole frames.
"""

from __future__ import annotations

import collections
import logging
import socket
from collections.abc import Callable, Sequence

from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from ..wire.websocket import V1_SUBPROTOCOL
from .loop import Loop

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 512 * 1024 * 1024  # as for every other way in; a cell may be large
READ_BYTES = 256 * 1024
OUTBOX_BYTES = 8 * 1024 * 1024  # unread by the client; beyond, it catches up from the journal
HARD_BYTES = 1024 * 1024 * 1024  # of what cannot be left out; beyond, the connection is closed

# Close codes (RFC 6455 §7.4). JupyterLab comes back for all but 1000 and 1001.
SESSION_OVER = CloseCode.NORMAL_CLOSURE
COME_BACK = CloseCode.SERVICE_RESTART
NOT_ALLOWED = CloseCode.POLICY_VIOLATION


class WebsocketConnection:
    """The bytes of one websocket.

    Args:
        connection: the accepted socket, whose HTTP request has been read and not been answered.
        request: the handshake's path and headers.
        received: called with each whole message.
        ponged: called with the payload of each pong.
        closed: called once, with the close code that the client sent, if it sent one.
        drained: called when everything has been written.
    """

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        *,
        path: str,
        headers: Sequence[tuple[str, str]],
        received: Callable[[str | bytes], None],
        ponged: Callable[[bytes], None],
        closed: Callable[[int | None, str], None],
        drained: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._socket = connection
        self._received = received
        self._ponged = ponged
        self._closed = closed
        self._drained = drained
        self._out: collections.deque[memoryview] = collections.deque()
        self.unsent = 0
        self._writing = False
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._opcode = Opcode.BINARY
        self.is_open = True
        self._protocol = ServerProtocol(
            select_subprotocol=_v1_if_offered, max_size=MAX_MESSAGE_BYTES, logger=log
        )
        self._accept(path, headers)
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            # tornado turns Nagle's algorithm on again after each request; it would cost 40 ms a cell.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.add_reader(connection.fileno(), self._ready)
        self._write_protocol()

    @property
    def is_v1(self) -> bool:
        return self._protocol.subprotocol == V1_SUBPROTOCOL

    def _accept(self, path: str, headers: Sequence[tuple[str, str]]) -> None:
        """Feed the request to the library, so that its parser goes on to frames, and answer it.

        Raises:
            InvalidHandshake: it is no websocket handshake.
        """
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
        self._protocol.receive_data("\r\n".join(lines).encode("latin-1", "replace"))
        request = next((e for e in self._protocol.events_received() if isinstance(e, Request)), None)
        if request is None:
            raise InvalidHandshake("the request cannot be read")
        response = self._protocol.accept(request)
        if response.status_code != 101:
            raise InvalidHandshake(f"refused with {response.status_code}")
        self._protocol.send_response(response)

    # ------------------------------------------------------------------ out

    def send(self, frame: bytes) -> None:
        """Write a whole frame, or keep it until the client takes it."""
        if not self.is_open or self._protocol.state is not State.OPEN:
            return
        self._push(frame)

    def ping(self, payload: bytes) -> None:
        if self.is_open and self._protocol.state is State.OPEN:
            self._protocol.send_ping(payload)
            self._write_protocol()

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake; `abort` does not wait for it."""
        if self.is_open and self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason[:100])
            self._write_protocol()

    def abort(self, reason: str) -> None:
        self._end(None, reason)

    def _write_protocol(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._push(data)
            else:  # the library asks for the end of the stream
                self._end(self._protocol.close_code, "closed")
                return

    def _push(self, data: bytes) -> None:
        if not self._out:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._end(None, "it has gone")
                return
            if sent == len(data):
                return
            self._out.append(memoryview(data)[sent:])
            self.unsent += len(data) - sent
        else:
            self._out.append(memoryview(data))
            self.unsent += len(data)
        self._watch()
        if self.unsent > HARD_BYTES:
            self._end(None, "it does not read")

    def _watch(self) -> None:
        if bool(self._out) != self._writing and self.is_open:
            self._writing = bool(self._out)
            self._loop.watch_writes(self._socket.fileno(), self._ready, writing=self._writing)

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                self.unsent -= sent
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                    return
                self._out.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._end(None, "it has gone")
            return
        self._watch()
        self._drained()

    # ------------------------------------------------------------------ in

    def _ready(self) -> None:
        if self._out:
            self._flush()
        if not self.is_open:
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._end(None, "it has gone")
            return
        if data:
            self.take(data)
        else:
            self._protocol.receive_eof()
            self._end(self._protocol.close_code, "closed by the client")

    def take(self, data: bytes) -> None:
        """Take bytes that arrived (also what was read behind the request before the hand-over)."""
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._frame(event)
            if not self.is_open:
                return
        self._write_protocol()

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.PONG:
            self._ponged(bytes(frame.data))
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if frame.opcode is not Opcode.CONT:
                self._opcode = frame.opcode
            self._parts.append(bytes(frame.data))
            self._parts_bytes += len(frame.data)
            if self._parts_bytes > MAX_MESSAGE_BYTES:
                self.close(CloseCode.MESSAGE_TOO_BIG, f"a message of more than {MAX_MESSAGE_BYTES} bytes")
            elif frame.fin:
                self._message()

    def _message(self) -> None:
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        if self._opcode is Opcode.BINARY:
            self._received(data)
            return
        try:
            self._received(data.decode())
        except UnicodeDecodeError:
            self.close(CloseCode.INVALID_DATA, "text that is not UTF-8")

    def _end(self, code: int | None, reason: str) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._out.clear()
        self.unsent = 0
        self._closed(code, reason)


def _v1_if_offered(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """v1 where the client knows it; else none, and then the legacy format (a client takes no other name)."""
    return Subprotocol(V1_SUBPROTOCOL) if V1_SUBPROTOCOL in offered else None

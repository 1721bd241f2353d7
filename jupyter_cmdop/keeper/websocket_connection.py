"""One adopted websocket: its handshake, its frames in and out, bounded.

The protocol is that of the `websockets` library without its I/O; reading and writing are the loop's. What is shown to
everybody is framed once for all (`Published`), so those bytes are written beside the library's own, which only speaks
between whole frames.

A connection ends in two steps. For its client session it is over at once; its socket then *leaves*: what is owed (the
close frame above all) is written, the writing half is shut, and what still comes is read and thrown away until the
client has closed too. A socket closed with unread bytes is reset by the system, and the client would never see the
code and the reason.
"""

from __future__ import annotations

import collections
import logging
import socket
import time
from collections.abc import Callable, Sequence

from websockets.exceptions import InvalidHandshake
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from ..wire.websocket import V1_SUBPROTOCOL
from .loop import Loop

# The library's own word on each connection; ours is in the journal.
_PROTOCOL_LOG = logging.getLogger(f"{__name__}.protocol")
_PROTOCOL_LOG.setLevel(logging.WARNING)

MAX_MESSAGE_BYTES = 512 * 1024 * 1024  # as for every other way in; a cell may be large
READ_BYTES = 256 * 1024
TOGETHER_BYTES = (
    64 * 1024
)  # up to which the frames of one turn are written together, and a longer one by itself
OUTBOX_BYTES = 8 * 1024 * 1024  # unread by the client; beyond, it catches up from the journal
HARD_BYTES = 1024 * 1024 * 1024  # of what cannot be left out; beyond, the connection is closed
HARD_FRAMES = 65_536  # waiting; a client that pings and does not read would fill memory with pongs
LEAVING_SECONDS = 5.0  # for the last bytes of a connection that is over
SETTLING_READS = 64  # of what has arrived on a connection before it is replaced

# What of the request matters here; a long cookie would be over a limit of the library's parser.
_HANDSHAKE_HEADERS = frozenset({"host", "connection", "upgrade", "origin"})

# Close codes (RFC 6455 §7.4). JupyterLab comes back for all but 1000 and 1001.
SESSION_OVER = CloseCode.NORMAL_CLOSURE
COME_BACK = CloseCode.SERVICE_RESTART
NOT_ALLOWED = CloseCode.POLICY_VIOLATION


class Leaving:
    """Connections that are over and owe their clients the last bytes."""

    def __init__(self) -> None:
        self._until: dict[WebsocketConnection, float] = {}

    def add(self, connection: WebsocketConnection) -> None:
        self._until[connection] = time.monotonic() + LEAVING_SECONDS

    def discard(self, connection: WebsocketConnection) -> None:
        self._until.pop(connection, None)

    def __len__(self) -> int:
        return len(self._until)

    def run_timers(self, now: float) -> None:
        for connection in [c for c, until in self._until.items() if until <= now]:
            connection.release()

    def release_all(self) -> None:
        for connection in list(self._until):
            connection.release()


class WebsocketConnection:
    """The bytes of one websocket, from `start` on.

    Args:
        connection: the accepted socket, whose HTTP request has been read and not been answered.
        headers: of the handshake's request.
        leaving: keeps it once it is over, until its socket is closed.
        received: called with each whole message.
        ponged: called with the payload of each pong.
        closed: called once, with the close code that the client sent, if it sent one.
        drained: called when everything has been written.
        stirred: called when a turn has brought the first thing that `flush` is to write.

    Raises:
        InvalidHandshake: it is no websocket handshake. Nothing has been written.
    """

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        *,
        headers: Sequence[tuple[str, str]],
        leaving: Leaving,
        received: Callable[[str | bytes], None],
        ponged: Callable[[bytes], None],
        closed: Callable[[int | None, str], None],
        drained: Callable[[], None],
        stirred: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._socket = connection
        self._leaving = leaving
        self._received = received
        self._ponged = ponged
        self._closed = closed
        self._drained = drained
        self._stirred = stirred
        self._out: collections.deque[memoryview] = collections.deque()
        self.unsent = 0
        self._turn: list[bytes] = []
        self._turn_bytes = 0
        self._writing = False
        self._broken = False
        self._is_closing = False
        self._part: bytearray | None = None  # of a fragmented message
        self._opcode = Opcode.BINARY
        self.is_open = True
        self._protocol = ServerProtocol(
            select_subprotocol=_v1_if_offered, max_size=MAX_MESSAGE_BYTES, logger=_PROTOCOL_LOG
        )
        self._accept(headers)
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            # tornado turns Nagle's algorithm on again after each request; it would cost 40 ms a cell.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        """Answer the handshake; from here on the callbacks may come."""
        self._loop.add_reader(self._socket.fileno(), self._ready)
        self._write_protocol()

    @property
    def is_v1(self) -> bool:
        return self._protocol.subprotocol == V1_SUBPROTOCOL

    def _accept(self, headers: Sequence[tuple[str, str]]) -> None:
        """Feed the request to the library, so that its parser goes on to frames, and prepare the answer."""
        wanted = [
            f"{name}: {value}"
            for name, value in headers
            if name.lower() in _HANDSHAKE_HEADERS or name.lower().startswith("sec-websocket-")
        ]
        lines = ["GET / HTTP/1.1", *wanted, "", ""]
        self._protocol.receive_data("\r\n".join(lines).encode("latin-1", "replace"))
        request = next((e for e in self._protocol.events_received() if isinstance(e, Request)), None)
        if request is None:
            raise InvalidHandshake("the request cannot be read")
        response = self._protocol.accept(request)
        if response.status_code != 101:
            raise InvalidHandshake(f"refused with {response.status_code}")
        self._protocol.send_response(response)

    # ------------------------------------------------------------------ out

    @property
    def _may_write(self) -> bool:
        return self.is_open and not self._broken and self._protocol.state is State.OPEN

    def send(self, frame: bytes) -> None:
        """Write a whole frame, or keep it until the client takes it."""
        if self._may_write:
            self._push(frame)

    def ping(self, payload: bytes) -> None:
        if self._may_write:
            self._protocol.send_ping(payload)
            self._write_protocol()

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake; what the client says from now on is not heard."""
        self._is_closing = True
        if self._may_write:
            self._protocol.send_close(code, _at_most(reason))
            self._write_protocol()

    def finish(self, code: int, reason: str) -> None:
        """Say the code and the reason, and be done with it for its client session at once."""
        self.close(code, reason)
        self._leave(None, reason)

    def abort(self, reason: str) -> None:
        """End it without a word: nobody is there to hear one."""
        self._end(None, reason)

    def _write_protocol(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._push(data)
            else:  # the library asks for the end of the stream
                received = self._protocol.close_rcvd
                self._leave(None if received is None else received.code, "closed")
                return

    def _push(self, data: bytes) -> None:
        if self._broken:
            return
        if self._turn_bytes + len(data) > TOGETHER_BYTES:
            self.flush()
        if not self._turn:
            self._stirred()
        if self._out or len(data) > TOGETHER_BYTES:
            self._send(data)
        else:
            self._turn.append(data)
            self._turn_bytes += len(data)

    def flush(self) -> None:
        """Write what the turn has brought; to be called at its end, because a call of the system is dear."""
        if self._turn:
            data = self._turn[0] if len(self._turn) == 1 else b"".join(self._turn)
            self._turn.clear()
            self._turn_bytes = 0
            self._send(data)

    def _send(self, data: bytes) -> None:
        if self._broken:
            return
        if not self._out:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._break()
                return
            if sent == len(data):
                return
            self._out.append(memoryview(data)[sent:])
            self.unsent += len(data) - sent
        else:
            self._out.append(memoryview(data))
            self.unsent += len(data)
        self._watch()
        if self.unsent > HARD_BYTES or len(self._out) > HARD_FRAMES:
            self._end(None, "it does not read")

    def _break(self) -> None:
        """Nothing can be written any more. What has arrived (a pong, a last request) is still read, then the end."""
        self._broken = True
        self._forget_unsent()
        self._watch()

    def _forget_unsent(self) -> None:
        self._out.clear()
        self._turn.clear()
        self.unsent = self._turn_bytes = 0

    def _watch(self) -> None:
        if bool(self._out) != self._writing and self._socket.fileno() >= 0:
            self._writing = bool(self._out)
            self._loop.watch_writes(self._socket.fileno(), self._ready, writing=self._writing)

    def _write_on(self) -> None:
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
            self._break()
            return
        self._watch()
        if self.is_open:
            self._drained()
        else:
            self._shut()

    # ------------------------------------------------------------------ in

    def _ready(self) -> None:
        if self._out:
            self._write_on()
        self._read()

    def _read(self) -> bool:
        """Read once; whether there may be more."""
        if self._socket.fileno() < 0:
            return False
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            self._end(None, "it has gone")
            return False
        if not self.is_open:  # it is leaving
            if not data:
                self.release()
            return bool(data)
        if data:
            self.take(data)
        else:
            self._protocol.receive_eof()
            self._end(None, "closed by the client")
        return bool(data)

    def settle(self) -> None:
        """Take what has arrived and not been looked at: what a pong proves need not be sent again."""
        for _ in range(SETTLING_READS):
            if not self._read():
                return

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
        elif self._is_closing or frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        elif frame.opcode is not Opcode.CONT and frame.fin:
            self._message(frame.opcode, bytes(frame.data))
        else:
            if self._part is None:
                self._opcode, self._part = frame.opcode, bytearray()
            self._part += frame.data
            if frame.fin:
                data, self._part = bytes(self._part), None
                self._message(self._opcode, data)

    def _message(self, opcode: Opcode, data: bytes) -> None:
        if opcode is Opcode.BINARY:
            self._received(data)
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.close(CloseCode.INVALID_DATA, "text that is not UTF-8")
            return
        self._received(text)

    # ------------------------------------------------------------------ the end

    def _over(self, code: int | None, reason: str) -> None:
        self.is_open = False
        self._part = None
        self._closed(code, reason)

    def _leave(self, code: int | None, reason: str) -> None:
        """It is over; its socket stays for what is owed."""
        if not self.is_open:
            return
        self.flush()
        if self._broken or self._socket.fileno() < 0:  # what was owed cannot be written
            self._end(code, reason)
            return
        self._leaving.add(self)
        if not self._out:
            self._shut()
        self._over(code, reason)

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.release()

    def _end(self, code: int | None, reason: str) -> None:
        was_open = self.is_open
        self.release()
        if was_open:
            self._over(code, reason)

    def release(self) -> None:
        """Close the socket."""
        self._leaving.discard(self)
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        self._forget_unsent()


def _at_most(reason: str) -> str:
    """A reason of at most 123 bytes, as a close frame has room for."""
    return reason.encode()[:123].decode(errors="ignore")


def _v1_if_offered(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """v1 where the client knows it; else none, and then the legacy format (a client takes no other name)."""
    return Subprotocol(V1_SUBPROTOCOL) if V1_SUBPROTOCOL in offered else None

"""A small blocking websocket client: its own cost is low and the same for every server.

It offers no extension, so nothing is compressed, and answers pings at once.
"""

from __future__ import annotations

import base64
import os
import re
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

_TEXT_OR_BINARY_OR_MORE, _CLOSE, _PING, _PONG = (0, 1, 2), 8, 9, 10
_READ_BYTES = 256 * 1024


def _masked(data: bytes, key: bytes) -> bytes:
    if not data:
        return b""
    mask = (key * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "little") ^ int.from_bytes(mask, "little")).to_bytes(len(data), "little")


class WebSocket:
    """One connection.

    Attributes:
        marks: the payloads of the pings that came.
        is_closed: whether the other side has ended it.
    """

    def __init__(
        self, url: str, *, subprotocol: str, headers: dict[str, str], receive_buffer: int | None = None
    ) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
        self.marks: list[bytes] = []
        self.is_closed = False
        self._need = 0
        self._pieces: list[bytes] = []
        raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(30)
        raw.connect((host, port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: socket.socket = raw
        if parts.scheme == "wss":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(raw)
        lines = {
            "Host": f"{host}:{port}",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": subprotocol,
            **headers,
        }
        head = f"GET {parts.path}?{parts.query} HTTP/1.1\r\n" + "".join(
            f"{k}: {v}\r\n" for k, v in lines.items()
        )
        self.socket.sendall((head + "\r\n").encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            chunk = self.socket.recv(65536)
            if not chunk:
                raise ConnectionError(f"closed in the handshake: {answer!r}")
            answer += chunk
        answer, rest = answer.split(b"\r\n\r\n", 1)
        if b" 101 " not in answer.split(b"\r\n", maxsplit=1)[0]:
            raise ConnectionError(f"the handshake was refused: {answer[:200]!r}")
        if not re.search(rb"(?i)sec-websocket-protocol:\s*" + re.escape(subprotocol.encode()), answer):
            raise ConnectionError(f"the server did not choose {subprotocol}")
        self._buffer = bytearray(rest)
        # It stays blocking: with a timeout Python waits in every call, also in one that says it does not want to.
        self.socket.settimeout(None)
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, data: bytes, operation: int = 2) -> None:
        key, size = os.urandom(4), len(data)
        if size < 126:
            head = struct.pack("!BB", 0x80 | operation, 0x80 | size)
        elif size < 65536:
            head = struct.pack("!BBH", 0x80 | operation, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | operation, 0x80 | 127, size)
        self.socket.sendall(head + key + _masked(data, key))

    def _parse(self) -> tuple[int, bool, bytes] | None:
        """One frame out of the buffer: operation, whether it is the last of its message, payload."""
        buffer, have = self._buffer, len(self._buffer)
        if have < 2:
            return None
        size, at = buffer[1] & 127, 2
        if size >= 126:
            at = 4 if size == 126 else 10
            if have < at:
                return None
            size = int.from_bytes(buffer[2:at], "big")
        if have < at + size:
            self._need = at + size - have
            return None
        payload = bytes(memoryview(buffer)[at : at + size])
        operation, last = buffer[0] & 15, bool(buffer[0] >> 7)
        del buffer[: at + size]
        return operation, last, payload

    def _next(self) -> bytes | None:
        while (frame := self._parse()) is not None:
            operation, last, payload = frame
            if operation == _PING:
                self.marks.append(payload)
                self.send(payload, _PONG)
            elif operation == _CLOSE:
                self.is_closed = True
                return None
            elif operation in _TEXT_OR_BINARY_OR_MORE:
                self._pieces.append(payload)
                if last:
                    data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                    self._pieces = []
                    return data
        return None

    def _has_decrypted(self) -> bool:
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    def recv(self, seconds: float) -> bytes | None:
        """The next message; None when none came in time, or none will come any more."""
        deadline = time.monotonic() + seconds
        while True:
            message = self._next()
            if message is not None or self.is_closed:
                return message
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if not self._has_decrypted() and not self._poll.poll(left * 1000):
                return None
            try:
                chunk = self.socket.recv(max(65536, min(self._need, 1 << 22)))
            except OSError:
                chunk = b""
            if not chunk:
                self.is_closed = True
                return None
            self._need = 0
            self._buffer += chunk

    def recv_ready(self) -> Iterator[bytes]:
        """What is there now: reads once, without waiting."""
        try:
            chunk = self.socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            chunk = None
        except OSError:
            chunk = b""
        if chunk == b"":
            self.is_closed = True
            return
        if chunk:
            self._buffer += chunk
        while (message := self._next()) is not None:
            yield message

    def hang_up(self) -> None:
        """End the connection without a word of the protocol, as a network does."""
        self.socket.close()

    def close(self) -> None:
        try:
            self.socket.settimeout(2)
            self.send(b"", _CLOSE)
        except OSError:
            pass  # it is over already
        self.socket.close()

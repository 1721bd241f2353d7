"""What stands between a client and a keeper in these tests: a small Jupyter server, and a network that can be cut.

`Front` does what the handler of a Jupyter server does: it reads the upgrade request and hands the socket over the link.
Whose the socket is stands in the query of the request, in place of a login. `Network` is a TCP proxy that can stop
forwarding without closing anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.wire.link import PROTOCOL, FrameDecoder, encode_frame
from tests.support import LIMIT_SECONDS


def pointer_of(session: Session) -> Any:
    found = Registry.of_user().resolve(session.id)
    assert found.pointer is not None
    return found.pointer


def keeper_pid(session: Session) -> int:
    return int(pointer_of(session).pid)


class ServerLink:
    """A link as a Jupyter server has it: it can send a descriptor beside a frame. One question at a time."""

    def __init__(self, session: Session, **hello: Any) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(LIMIT_SECONDS)
        self._socket.connect(pointer_of(session).link)
        self._decoder = FrameDecoder()
        self._frames: list[dict[str, Any]] = []
        self._count = 0
        self._lock = threading.Lock()
        self.send({"hello": {"protocol": PROTOCOL, "oldest": 1, "client": "test server", **hello}})
        self.welcome = self.next()

    def send(self, header: dict[str, Any], payload: bytes = b"", descriptors: tuple[int, ...] = ()) -> None:
        frame = encode_frame(header, payload)
        sent = socket.send_fds(self._socket, [frame], list(descriptors)) if descriptors else 0
        self._socket.sendall(frame[sent:])

    def next(self) -> dict[str, Any]:
        while not self._frames:
            data = self._socket.recv(65536)
            if not data:
                raise EOFError("the keeper closed the link")
            self._frames += [header for header, _ in self._decoder.feed(data)]
        return self._frames.pop(0)

    def start(
        self, verb: str, args: dict[str, Any], payload: bytes = b"", descriptors: tuple[int, ...] = ()
    ) -> int:
        self._count += 1
        self.send({"id": self._count, "verb": verb, "args": args}, payload, descriptors)
        return self._count

    def ask(
        self, verb: str, args: dict[str, Any], payload: bytes = b"", descriptors: tuple[int, ...] = ()
    ) -> dict[str, Any]:
        """The frame that ends the request; items on the way are dropped."""
        with self._lock:
            number = self.start(verb, args, payload, descriptors)
            while True:
                frame = self.next()
                if frame.get("id") == number and "item" not in frame:
                    return frame

    def close(self) -> None:
        self._socket.close()


def read_request(connection: socket.socket) -> tuple[str, list[list[str]], bytes]:
    """Path, headers, and what was read behind them."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            raise EOFError("no whole request")
        data += more
    head, _, leftover = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return first.split()[1], [line.split(": ", 1) for line in lines], leftover


def adopt_args(path: str, headers: list[list[str]], **more: Any) -> dict[str, Any]:
    """Arguments of `adopt` as the query of the request says."""
    said = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
    actor = said.get("actor", "carol")
    return {
        "path": path,
        "headers": headers,
        "session_id": said.get("session_id", ""),
        "actor": {"id": actor, "kind": "human", "name": actor.title()},
        "role": said.get("role", "peer"),
        "grant": said.get("grant"),
        "valid_until_seconds": float(said["valid"]) if "valid" in said else None,
        "client": "a browser",
        "cursor": said.get("cursor"),
        **more,
    }


class Front:
    """Accepts websockets for a session and hands them to its keeper."""

    def __init__(self, session: Session) -> None:
        self.link = ServerLink(session)
        self.adopted: list[dict[str, Any]] = []
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._server.getsockname()
        self._thread = threading.Thread(target=self._serve, name="front", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.settimeout(LIMIT_SECONDS)
            with connection, contextlib.suppress(ConnectionError, EOFError):
                self._hand_over(connection)

    def _hand_over(self, connection: socket.socket) -> None:
        path, headers, leftover = read_request(connection)
        answer = self.link.ask("adopt", adopt_args(path, headers), leftover, (connection.fileno(),))
        self.adopted.append(answer)
        if "result" not in answer:
            body = json.dumps(answer).encode()
            connection.sendall(b"HTTP/1.1 503 Refused\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "a socket was handed over and the keeper did not answer"
        self.link.close()


class Network:
    """A TCP proxy. After `go_dark` it forwards nothing in either direction, and closes nothing; `go_light` goes on."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._calls: list[Callable[[], None]] = []
        self._open: list[socket.socket] = []
        self._held: list[tuple[socket.socket, Callable[[], None]]] = []
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._called)
        self._running = True
        self._thread.start()

    def _run(self) -> None:
        while self._running:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is key:
                    key.data()

    def _accept(self) -> None:
        near, _ = self._server.accept()
        far = socket.create_connection(self._target)
        self._open += [near, far]
        for source, sink in ((near, far), (far, near)):
            self._selector.register(source, selectors.EVENT_READ, self._forward(source, sink))

    def _forward(self, source: socket.socket, sink: socket.socket) -> Callable[[], None]:
        def forward() -> None:
            try:
                data = source.recv(16384)
                if data:
                    sink.sendall(data)
                    return
            except OSError:
                pass
            for end in (source, sink):
                with contextlib.suppress(KeyError):
                    self._selector.unregister(end)
                end.close()

        return forward

    def _called(self) -> None:
        self._woken.recv(4096)
        while self._calls:
            self._calls.pop(0)()

    def _do(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        self._calls += [call, done.set]
        self._wake.send(b"\0")
        assert done.wait(LIMIT_SECONDS)

    def go_dark(self) -> None:
        """From now on nothing of the connections that are open passes; new ones work."""

        def stop() -> None:
            for end in self._open:
                with contextlib.suppress(KeyError, ValueError):
                    self._held.append((end, self._selector.unregister(end).data))

        self._do(stop)

    def go_light(self) -> None:
        """What was held passes, and what comes."""

        def go_on() -> None:
            while self._held:
                end, forward = self._held.pop(0)
                self._selector.register(end, selectors.EVENT_READ, forward)

        self._do(go_on)

    def close(self) -> None:
        self._do(lambda: setattr(self, "_running", False))
        self._thread.join(LIMIT_SECONDS)
        self._selector.close()
        for end in (self._server, self._wake, self._woken, *self._open):
            end.close()


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))

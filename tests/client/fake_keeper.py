"""A keeper of twenty answers: a thread with a Unix socket that speaks the link protocol as it is told to."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client import places, processes
from jupyter_cmdop.client.registry import Pointer, Registry
from jupyter_cmdop.wire.link import FrameDecoder, encode_frame, unspill

Answer = Callable[["Call"], None]
LIMIT_SECONDS = 20.0


@dataclass
class Call:
    """One request as an answer sees it."""

    keeper: FakeKeeper
    send: Callable[[dict[str, Any]], None]
    id: int
    verb: str
    args: dict[str, Any]

    def item(self, **item: Any) -> None:
        self.send({"id": self.id, "item": item})

    def result(self, **result: Any) -> None:
        self.send({"id": self.id, "result": result})

    def refuse(self, code: str, message: str, **fields: Any) -> None:
        self.send({"id": self.id, "refusal": {"code": code, "message": message, **fields}})


@dataclass
class FakeKeeper:
    """Attributes: `hellos`, `calls`, `cancels` and `beats` are what has arrived, in queues that a test waits on."""

    name: str
    session_id: str
    link: Path
    hellos: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)
    calls: queue.Queue[tuple[str, dict[str, Any]]] = field(default_factory=queue.Queue)
    cancels: queue.Queue[int] = field(default_factory=queue.Queue)
    beats: queue.Queue[int] = field(default_factory=queue.Queue)
    closed_links: queue.Queue[int] = field(default_factory=queue.Queue)
    answers: dict[str, Answer] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    actor: dict[str, Any] = field(default_factory=lambda: {"id": "alice", "kind": "human", "name": "Alice"})
    hello_refusal: dict[str, Any] | None = None
    is_mute: bool = False
    connections: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.status = {
            "name": self.name,
            "id": self.session_id,
            "kind": "kernel",
            "state": "open",
            "driver": None,
            "generation": 1,
            "incarnation": 1,
            "policy": "open",
            "kernel_id": self.session_id,
            "spec": "python3",
            "execution_state": "idle",
            "presence": [],
            "queue": [],
            "running": [],
            "pending_input": None,
            "from_the_future": {"x": 1},
        } | self.status
        self.on("status", lambda call: call.result(**self.status))
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.link))
        self._listener.listen(16)
        self._spawn(self._accept)

    def on(self, verb: str, answer: Answer) -> None:
        self.answers[verb] = answer

    def result(self, verb: str, **result: Any) -> None:
        self.on(verb, lambda call: call.result(**result))

    def next_call(self) -> tuple[str, dict[str, Any]]:
        return self.calls.get(timeout=LIMIT_SECONDS)

    def args_of(self, verb: str) -> dict[str, Any]:
        """Arguments of the next call of this verb; others before it are dropped."""
        while True:
            name, args = self.next_call()
            if name == verb:
                return args

    def drop_links(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_links()
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive()

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        lock = threading.Lock()

        def send(header: dict[str, Any]) -> None:
            with lock, contextlib.suppress(OSError):
                connection.sendall(encode_frame(header))

        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                except OSError:
                    data = b""
                if not data:
                    self.closed_links.put(1)
                    return
                for header, payload in decoder.feed(data):
                    if not self._handle(unspill(header, payload), send):
                        return

    def _handle(self, header: dict[str, Any], send: Callable[[dict[str, Any]], None]) -> bool:
        if "hello" in header:
            self.hellos.put(header["hello"])
            if self.hello_refusal is not None:
                send({"refusal": self.hello_refusal})
                return False
            if not self.is_mute:
                send({"hello": self._hello(header["hello"])})
        elif "cancel" in header:
            self.cancels.put(header["cancel"])
            send({"id": header["cancel"], "result": {"cancelled": True, "cursor": "1:9"}})
        elif "beat" in header:
            self.beats.put(1)
        else:
            call = Call(self, send, header["id"], header["verb"], header["args"])
            self.calls.put((call.verb, call.args))
            answer = self.answers.get(call.verb)
            if answer is None:
                send({"id": call.id, "error": {"code": "bad_request", "message": f"no verb {call.verb}"}})
            else:
                answer(call)
        return True

    def _hello(self, hello: dict[str, Any]) -> dict[str, Any]:
        actor = {"id": hello["actor"], "kind": hello["kind"]} if hello.get("actor") else self.actor
        return {
            "protocol": 1,
            "session": self.status,
            "attachment": "a1",
            "actor": actor,
            "rights": ["input"],
            "level": "cooperative",
            "version": "0.0.0",
        }


MakeKeeper = Callable[..., FakeKeeper]


@pytest.fixture
def keepers(registry: Registry) -> Iterator[MakeKeeper]:
    """Makes fake keepers that are registered as this process, and ends them."""
    made: list[FakeKeeper] = []

    def make(name: str = "analysis", *, pointer: dict[str, Any] | None = None, **fields: Any) -> FakeKeeper:
        sockets = places.make_socket_dir()
        reserved: Pointer = registry.reserve(name, sockets=str(sockets), spec="python3")
        keeper = FakeKeeper(name, reserved.id, sockets / "link.sock", **fields)
        made.append(keeper)
        changes = {
            "link": str(keeper.link),
            "pid": os.getpid(),
            "start_time": processes.start_time(os.getpid()),
            "state": "open",
            "protocol": 1,
        }
        registry.update(reserved.id, **{**changes, **(pointer or {})})
        return keeper

    yield make
    for keeper in made:
        keeper.close()


@pytest.fixture
def keeper(keepers: MakeKeeper) -> FakeKeeper:
    return keepers()

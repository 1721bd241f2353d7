"""A kernel connection on this machine for a session on another: unmodified clients, and a websocket in place of ZMQ.

`jupyter console` wants a connection file and five sockets. They are made here, in a directory that is ours alone and
with a key that nobody else has; what goes in and out passes over the session's kernel websocket, which names and
arbitrates its actor as it does for a browser. When the websocket is lost it is opened again under the same header
session, and the keeper gives what came meanwhile. A request that was sent and of which nothing was heard is sent again:
a keeper knows the message id, and runs nothing twice; what was made while the websocket was away it refuses, and says
so.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from jupyter_cmdop.wire import kernel as zmq_wire
from jupyter_cmdop.wire import websocket as websocket_wire
from jupyter_cmdop.wire.errors import WireError

from . import places
from .errors import ClientError, ServerProblem
from .remote import Server
from .remote_link import open_websocket
from .remote_session import RETRY_SECONDS

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

UNHEARD_REQUESTS = 256
"""Requests of which nothing was heard that are kept for another connection; a console has one or two."""
GIVEN_MESSAGES = 50_000
"""Ids of what was passed on; far more than a keeper sends between two of its marks."""
LOOK_SECONDS = 0.2
"""How long anything here waits before it looks whether it is to end."""
STOP_SECONDS = 5.0
_CHANNELS = ("shell", "iopub", "stdin", "control", "hb")

log = logging.getLogger(__name__)


class RemoteConsole:
    """The five sockets, from `__enter__` to `__exit__`.

    Attributes:
        connection_file: what `--existing` takes.
    """

    def __init__(self, server: Server, kernel_id: str, *, tell: Callable[[str], None]) -> None:
        self._server = server
        self._kernel_id = kernel_id
        self._tell = tell
        self._key = secrets.token_hex(32).encode()
        self._header_session = uuid.uuid4().hex
        self._stop = threading.Event()
        self._is_open = threading.Event()
        self._websocket: ClientConnection | None = None
        self._unheard: dict[str, bytes] = {}
        self._given: dict[tuple[str, str], None] = {}
        self._identities: dict[str, list[bytes]] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._context = zmq.Context()

    def __enter__(self) -> str:
        """Open everything; the path of the connection file.

        Raises:
            ClientError: the server does not let this credential in, or does not answer.
        """
        self._directory = places.make_socket_dir()
        try:
            self._websocket = self._open()
            self._is_open.set()
            self._sockets = {
                "shell": self._bind(zmq.ROUTER, 1),
                "iopub": self._bind(zmq.XPUB, 2),
                "stdin": self._bind(zmq.ROUTER, 3),
                "control": self._bind(zmq.ROUTER, 4),
                "hb": self._bind(zmq.REP, 5),
            }
            self._arrived = self._context.socket(zmq.PULL)
            self._arrived.set_hwm(16)
            self._arrived.bind("inproc://arrived")
            path = self._write_connection_file()
        except BaseException:
            self._clear()
            raise
        for doing, name in ((self._serve, "channels"), (self._listen, "websocket")):
            thread = threading.Thread(target=doing, name=f"cmdop console {name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return str(path)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._websocket is not None:
            self._websocket.close()
        for thread in self._threads:
            thread.join(STOP_SECONDS)
        self._clear()

    def _clear(self) -> None:
        if self._websocket is not None:
            self._websocket.close()
        self._context.destroy(linger=0)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _bind(self, kind: int, port: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.linger = 0
        made.sndtimeo = int(LOOK_SECONDS * 1000)
        if kind == zmq.XPUB:
            made.setsockopt(zmq.XPUB_NODROP, 1)  # a console that stands still stops us, and loses nothing
        made.bind(f"ipc://{self._prefix}-{port}")
        return made

    @property
    def _prefix(self) -> Path:
        return self._directory / "k"

    def _write_connection_file(self) -> Path:
        info: dict[str, Any] = {
            "transport": "ipc",
            "ip": str(self._prefix),
            **{f"{channel}_port": port for port, channel in enumerate(_CHANNELS, start=1)},
            "key": self._key.decode(),
            "signature_scheme": "hmac-sha256",
            "kernel_name": "",
        }
        path = self._directory / "kernel.json"
        places.write_private_file(path, msgspec.json.encode(info))
        return path

    # ------------------------------------------------------------------ the websocket

    def _open(self) -> ClientConnection:
        return open_websocket(
            self._server,
            "cmdop",
            "api",
            "sessions",
            self._kernel_id,
            "channels",
            name=self._kernel_id,
            query=f"?session_id={self._header_session}",
            subprotocols=(websocket_wire.V1_SUBPROTOCOL,),
        )

    def _listen(self) -> None:
        """Pass on what the session says, over as many connections as that takes."""
        from websockets.exceptions import ConnectionClosed

        with self._context.socket(zmq.PUSH) as passing:
            passing.linger = 0
            passing.set_hwm(16)
            passing.sndtimeo = int(LOOK_SECONDS * 1000)
            passing.connect("inproc://arrived")
            while not self._stop.is_set() and self._websocket is not None:
                with contextlib.suppress(ConnectionClosed):
                    for message in self._websocket:
                        self._push(passing, message if isinstance(message, bytes) else message.encode())
                self._is_open.clear()
                if not self._stop.is_set() and not self._open_again():
                    return

    def _push(self, passing: zmq.Socket[bytes], message: bytes) -> None:
        while not self._stop.is_set():
            try:
                passing.send(message)
            except zmq.Again:
                continue
            return

    def _open_again(self) -> bool:
        """Whether there is a connection again."""
        self._tell(f"\r\nnote: the connection to {self._server.url} was lost; connecting again\r")
        problem: ClientError | None = None
        for seconds in RETRY_SECONDS:
            if self._stop.wait(seconds):
                return False
            try:
                opened = self._open()
            except ClientError as error:
                problem = error
                if isinstance(error, ServerProblem) and error.may_pass:
                    continue
                break
            with self._lock:
                self._websocket = opened
                unheard = list(self._unheard.values())
            self._is_open.set()
            for frame in unheard:
                self._send(frame)
            self._tell("note: connected again\r")
            return True
        self._tell(f"note: {problem}; leave the console with Ctrl-D\r")
        return False

    def _send(self, frame: bytes) -> None:
        """Send; what does not arrive is sent again by whoever connects again."""
        from websockets.exceptions import ConnectionClosed

        with self._lock:
            websocket = self._websocket
        if websocket is None:
            return
        try:
            websocket.send(frame)
        except ConnectionClosed:
            log.debug("a request waits for another connection")

    # ------------------------------------------------------------------ the channels

    def _serve(self) -> None:
        poller = zmq.Poller()
        for channel in _CHANNELS:
            poller.register(self._sockets[channel], zmq.POLLIN)
        poller.register(self._arrived, zmq.POLLIN)
        names = {id(socket): channel for channel, socket in self._sockets.items()}
        while not self._stop.is_set():
            for socket, _ in poller.poll(int(LOOK_SECONDS * 1000)):
                if socket is self._arrived:
                    self._give(socket.recv())
                    continue
                channel = names[id(socket)]
                frames = socket.recv_multipart()
                if channel == "hb":
                    socket.send_multipart(frames)
                elif channel != "iopub":  # there it is a subscription
                    self._take(channel, frames)

    def _take(self, channel: str, frames: list[bytes]) -> None:
        """A message of the console."""
        try:
            message = zmq_wire.split(frames)
            if not zmq_wire.verify(self._key, message):
                raise WireError("it is not signed with this connection's key")
            msg_id = zmq_wire.parse_header(message.header).msg_id
            frame = websocket_wire.encode_v1(
                channel, message.header, message.parent, message.metadata, message.content, message.buffers
            )
        except WireError as error:
            log.warning("a message on %s is not passed on: %s", channel, error)
            return
        self._remember(msg_id, message.identities, frame)
        if self._is_open.is_set():
            self._send(frame)

    def _remember(self, msg_id: str, identities: list[bytes], frame: bytes) -> None:
        with self._lock:
            self._unheard[msg_id] = frame
            self._identities[msg_id] = identities
            for kept in (self._unheard, self._identities):
                while len(kept) > UNHEARD_REQUESTS:
                    del kept[next(iter(kept))]

    def _give(self, frame: bytes) -> None:
        """A message of the session."""
        try:
            message = websocket_wire.decode_v1(frame)
            parent = _named(message.parent).msg_id
            header = _named(message.header)
            message_id = (message.channel, header.msg_id)
        except WireError as error:
            log.warning("a message of the session is not passed on: %s", error)
            return
        if message_id in self._given:
            return  # the last batch before the connection was lost may come twice
        self._given[message_id] = None
        while len(self._given) > GIVEN_MESSAGES:
            del self._given[next(iter(self._given))]
        with self._lock:
            self._unheard.pop(parent, None)
            identities = self._identities.get(parent)
        if message.channel == "iopub":
            identities = [f"kernel.{header.msg_type}".encode()]
        elif identities is None:
            return  # an answer for somebody who is not here
        parts = [message.header, message.parent, message.metadata, message.content, *message.buffers]
        frames = zmq_wire.join(self._key, parts, identities=identities)
        while not self._stop.is_set():
            try:
                self._sockets[message.channel].send_multipart(frames)
            except zmq.Again:
                continue
            return


class _Named(msgspec.Struct):
    msg_id: str = ""
    msg_type: str = ""


def _named(part: bytes) -> _Named:
    """What tells of a header or a parent header who it is."""
    return zmq_wire.decode_as(_NAMED, part, what="header")


_NAMED = msgspec.json.Decoder(_Named)

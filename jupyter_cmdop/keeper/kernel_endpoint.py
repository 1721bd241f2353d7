"""The kernel protocol for one grant: sockets of its own, a key of its own, a connection file of its own.

Whoever holds the key is the grant's actor; nothing else in a message says who sent it.
"""

from __future__ import annotations

import collections
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from ..backends.kernel_channels import SHARED_IO_THREAD
from ..backends.zmq_frames import drain, send
from ..core.actor import Actor
from ..core.grants import Grant
from ..core.session import attachment_of_grant
from ..wire.kernel import DELIMITER, encode_json, join
from .clients import Published
from .files import write_private
from .loop import Loop
from .replays import SeenSignatures

REQUEST_CHANNELS = ("shell", "control", "stdin")
CHANNELS = (*REQUEST_CHANNELS, "iopub", "hb")
OUTBOX_BYTES = (
    64 * 1024 * 1024
)  # of iopub messages that wait for a reader; then a marker says how to get the rest
IOPUB_QUEUE = 1000  # messages libzmq holds a subscriber before we hold them
LARGE_BYTES = (
    64 * 1024
)  # a part of this size is not copied into libzmq, and counted until libzmq lets go of it
UNREAD_SECONDS = 0.2  # between two looks whether it has: libzmq does not tell
TURN_MESSAGES = 64  # read from one socket in one turn
HEARTBEAT_MILLISECONDS = (
    10_000  # ZMTP pings on the heartbeat connection: libzmq peers answer them by themselves
)
HEARTBEAT_TIMEOUT_MILLISECONDS = 30_000
PRESENCE_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_MONITOR_STOPPED
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An iopub message that its reader has not taken yet."""

    frames: list[bytes]
    size: int
    cursor: str


class KernelEndpoint:
    """The five sockets of one grant.

    Args:
        receive: called with (channel, frames) for each message that arrives.
        presence: called when a client came or the last one went.
        marker: makes the message that stands for skipped ones, from their number and the cursor of the first.

    Attributes:
        seen: the signatures of what has come.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        grant: Grant,
        *,
        directory: Path,
        receive: Callable[[str, list[bytes]], None],
        presence: Callable[[], None],
        marker: Callable[[int, str], Published],
        alive: Callable[[], bool],
    ) -> None:
        self.grant = grant
        self.key = secrets.token_hex(32).encode()
        self.token = secrets.token_urlsafe(32)
        self._loop = loop
        self._receive = receive
        self._presence = presence
        self._marker = marker
        self._alive = alive
        self.seen = SeenSignatures()
        self._waiting: collections.deque[Waiting] = collections.deque()
        self._waiting_bytes = 0
        self._unread: collections.deque[tuple[zmq.MessageTracker, int]] = collections.deque()
        self._unread_bytes = 0
        self._skipped = 0
        self._skipped_from = ""
        self._curve = zmq.curve_keypair() if grant.transport == "tcp" else None
        self._prefix = directory / f"g{grant.id}"
        self.subscribers = 0
        self.heartbeats = 0
        self.has_heartbeat = False
        self.connection_file: Path | None = None
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        self.ports: dict[str, int] = {}
        kinds = dict.fromkeys(CHANNELS, zmq.ROUTER) | {"iopub": zmq.XPUB}
        for port, channel in enumerate(CHANNELS, start=1):
            self.sockets[channel] = self._bind(context, channel, kinds[channel], port)
        self._monitor = self.sockets["hb"].get_monitor_socket(PRESENCE_EVENTS)
        for channel in REQUEST_CHANNELS:
            loop.add_socket(self.sockets[channel], self._reader(channel))
        loop.add_socket(self.sockets["iopub"], self._read_subscriptions)
        loop.add_socket(self.sockets["hb"], self._echo)
        loop.add_socket(self._monitor, self._read_monitor)

    def _bind(
        self, context: zmq.Context[zmq.Socket[bytes]], channel: str, kind: int, port: int
    ) -> zmq.Socket[bytes]:
        socket = context.socket(kind)
        socket.affinity = SHARED_IO_THREAD
        socket.linger = 0
        if kind == zmq.ROUTER:
            socket.router_handover = True
            socket.router_mandatory = True
            socket.sndhwm = 10_000
            socket.maxmsgsize = 512 * 1024 * 1024
        else:
            socket.setsockopt(zmq.XPUB_VERBOSER, 1)
            socket.setsockopt(zmq.XPUB_NODROP, 1)
            socket.sndhwm = IOPUB_QUEUE
        if channel == "hb":
            socket.heartbeat_ivl = HEARTBEAT_MILLISECONDS
            socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MILLISECONDS
            socket.router_mandatory = False
        if self._curve is not None:
            public, secret = self._curve
            socket.curve_publickey, socket.curve_secretkey, socket.curve_server = public, secret, True
            socket.setsockopt(zmq.ZAP_DOMAIN, self.grant.id.encode())
            self.ports[channel] = socket.bind_to_random_port("tcp://127.0.0.1")
        else:
            socket.bind(f"ipc://{self._prefix}-{port}")
            self.ports[channel] = port
        return socket

    def bind_again(self) -> None:
        """Make the files of ipc sockets again; clients that are connected stay so."""
        if self._curve is not None:
            return
        for channel, port in self.ports.items():
            address = f"ipc://{self._prefix}-{port}"
            self.sockets[channel].unbind(address)
            self.sockets[channel].bind(address)
            self._loop.touch(self.sockets[channel])

    # ------------------------------------------------------------------ as a client

    @property
    def actor(self) -> Actor:
        return self.grant.actor

    @property
    def attachment(self) -> str:
        return attachment_of_grant(self.grant.id)

    @property
    def grant_id(self) -> str | None:
        return self.grant.id

    @property
    def is_open(self) -> bool:
        return bool(self.sockets)

    # ------------------------------------------------------------------ the connection file

    @property
    def public_key(self) -> bytes | None:
        return None if self._curve is None else self._curve[0]

    def write_connection_file(self, path: Path, *, session: dict[str, str], kernel_name: str) -> None:
        """Write the file that any Jupyter client takes (`--existing`), readable by its owner only."""
        info: dict[str, Any] = {
            "transport": "tcp" if self._curve else "ipc",
            "ip": "127.0.0.1" if self._curve else str(self._prefix),
            **{f"{channel}_port": port for channel, port in self.ports.items()},
            "key": self.key.decode(),
            "signature_scheme": "hmac-sha256",
            "kernel_name": kernel_name,
            "cmdop": {
                **session,
                "grant": self.grant.id,
                "actor": self.grant.actor.id,
                "kind": self.grant.actor.kind,
                "role": self.grant.role,
                "token": self.token,
            },
        }
        if self._curve is not None:
            # jupyter_client configures its own side with the server's keypair: one keypair a grant.
            info["curve_publickey"], info["curve_secretkey"] = (half.decode() for half in self._curve)
        write_private(path, encode_json(info) + b"\n")
        self.connection_file = path

    # ------------------------------------------------------------------ reading

    def _reader(self, channel: str) -> Callable[[], bool]:
        socket = self.sockets[channel]

        def read() -> bool:
            taken = 0
            for frames in drain(socket, TURN_MESSAGES):
                taken += 1
                self._receive(channel, frames)
                if not self.sockets:  # closed by what it received
                    return False
            return taken == TURN_MESSAGES

        return read

    def _read_subscriptions(self) -> bool:
        socket = self.sockets["iopub"]
        taken = list(drain(socket, TURN_MESSAGES))
        for frames in taken:
            if frames[0][:1] == b"\x01":
                self.subscribers += 1
            elif frames[0][:1] == b"\x00":
                self.subscribers = max(0, self.subscribers - 1)
        self.flush()
        self._presence()
        return len(taken) == TURN_MESSAGES

    def _echo(self) -> bool:
        socket = self.sockets["hb"]
        taken = list(drain(socket, TURN_MESSAGES))
        for frames in taken:
            if self._alive():  # a heartbeat stands for the kernel's, not for ours
                with contextlib.suppress(zmq.Again):
                    send(socket, frames)
                self._loop.touch(socket)
        return len(taken) == TURN_MESSAGES

    def _read_monitor(self) -> bool:
        taken = list(drain(self._monitor, TURN_MESSAGES))
        for frames in taken:
            event = parse_monitor_message(frames)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.heartbeats += 1
                self.has_heartbeat = True
            elif event == zmq.EVENT_DISCONNECTED:
                self.heartbeats = max(0, self.heartbeats - 1)
        self._presence()
        return len(taken) == TURN_MESSAGES

    @property
    def is_present(self) -> bool:
        """Whether a client of this grant is there, as far as its connections tell.

        A heartbeat connection whose process does not answer ZMTP pings is closed by libzmq, so a frozen client is
        noticed; a client that opened none is there while it subscribes.
        """
        return self.heartbeats > 0 if self.has_heartbeat else self.subscribers > 0

    # ------------------------------------------------------------------ writing

    def reply(self, channel: str, identities: Sequence[bytes], parts: Sequence[bytes], seq: int = 0) -> bool:
        """Send a message to one client; False when it is gone or does not read."""
        if not self.sockets:
            return False
        socket = self.sockets[channel]
        self._loop.touch(socket)
        try:
            send(socket, join(self.key, parts, identities=identities))
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def foresee(self, published: Published) -> None:
        if self.subscribers and self.sockets:
            published.want(lambda: published.signed(self.key))

    def publish(self, published: Published) -> None:
        """Show a message to every client of this grant."""
        if not self.subscribers or not self.sockets:
            return
        frames = self._frames(published)
        if self._waiting or self._skipped or not self._send(frames):
            self._park(frames, published.cursor)

    def _frames(self, published: Published) -> list[bytes]:
        return [published.topic, DELIMITER, published.signed(self.key), *published.parts]

    def _send(self, frames: list[bytes]) -> bool:
        largest = max(frames, key=len)
        size = len(largest)
        if size < LARGE_BYTES:
            return self._hand_over(frames, copy=True)
        # libzmq's queue has a limit in messages only, and a thousand large ones are more than a machine has.
        if self._still_unread() and self._unread_bytes + size > OUTBOX_BYTES:
            return False
        tracked = zmq.Frame(largest, track=True, copy=False)
        tracker = tracked.tracker
        if not self._hand_over([tracked if part is largest else part for part in frames], copy=False):
            return False
        if tracker is not None:
            self._unread.append((tracker, size))
            self._unread_bytes += size
        return True

    def _still_unread(self) -> int:
        while self._unread and self._unread[0][0].done:
            self._unread_bytes -= self._unread.popleft()[1]
        return self._unread_bytes

    def _hand_over(self, frames: Sequence[bytes | zmq.Frame], *, copy: bool) -> bool:
        socket = self.sockets["iopub"]
        self._loop.touch(socket)
        try:
            send(socket, frames, copy=copy)
        except zmq.Again:
            return False
        return True

    def _park(self, frames: list[bytes], cursor: str) -> None:
        size = sum(map(len, frames))
        if self._skipped or self._waiting_bytes + self._unread_bytes + size > OUTBOX_BYTES:
            if not self._skipped:
                self._skipped_from = cursor
            self._skipped += 1
            return
        self._waiting.append(Waiting(frames, size, cursor))
        self._waiting_bytes += size

    def flush(self) -> None:
        """Send what waited, as far as the reader takes it."""
        while self._waiting and self._send(self._waiting[0].frames):
            self._waiting_bytes -= self._waiting.popleft().size
        # The marker goes out when there is room again, so that one stands for the whole gap.
        if self._skipped and not self._waiting and self._still_unread() <= OUTBOX_BYTES // 2:
            marker = self._marker(self._skipped, self._skipped_from)
            self._skipped = 0 if self._send(self._frames(marker)) else self._skipped

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting) or bool(self._skipped)

    def next_look(self) -> float | None:
        """When to try again what waits for libzmq to let go of something large."""
        return time.monotonic() + UNREAD_SECONDS if self.has_waiting and self._unread else None

    def close(self) -> None:
        """Close at once; a client that goes on gets nothing and reaches nothing."""
        self.sockets["hb"].disable_monitor()
        for socket in self.sockets.values():
            self._loop.remove_socket(socket)
        self._loop.remove_socket(self._monitor)
        self._monitor.close(0)
        for socket in self.sockets.values():
            socket.close(0)
        self.sockets = {}
        self._waiting.clear()
        self._unread.clear()
        if self.connection_file is not None:
            self.connection_file.unlink(missing_ok=True)
        if self._curve is None:
            for path in self._prefix.parent.glob(f"{self._prefix.name}-*"):
                path.unlink(missing_ok=True)

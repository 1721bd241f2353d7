"""The only sockets to a kernel: one identity, raw frames, nothing dropped on our side."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence

import zmq

from .kernel_process import Launched
from .zmq_frames import drain, has_input, send

RECONNECT_MILLISECONDS = 10  # a kernel binds its sockets some time after it was started
# Messages read ahead from a publisher that waits for its subscriber. libzmq counts messages and not bytes: with more, a
# kernel that shows large things faster than they are recorded would fill the keeper's memory instead of waiting.
BOUNDED_QUEUE = 256
COPY_BYTES = 64 * 1024  # above it a frame is not copied into libzmq
REQUEST_CHANNELS = ("shell", "control", "stdin")
# One of libzmq's threads reads what the kernel publishes and does nothing else: a publisher that does not wait drops
# what is not taken quickly. The masks are those of ZMQ_AFFINITY.
IO_THREADS = 2
SHARED_IO_THREAD = 0b01
IOPUB_IO_THREAD = 0b10


class KernelChannels:
    """Sockets to one incarnation of a kernel.

    Args:
        launched: the kernel process.
        bounded: whether reading ahead is bounded, which is right for a publisher that waits (XPUB_NODROP) and loses
            output with any other.
        touched: told of each socket that was sent to, because that may eat its wake-up.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        launched: Launched,
        *,
        bounded: bool,
        touched: Callable[[zmq.Socket[bytes]], None],
    ) -> None:
        self.launched = launched
        self.bounded = bounded
        self._touched = touched
        self._context = context
        self.fence = 0
        self.asked_at: float | None = (
            None  # the first request since the kernel was last heard; the listener clears it
        )
        identity = secrets.token_hex(8).encode()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        for channel in REQUEST_CHANNELS:
            socket = context.socket(zmq.DEALER)
            socket.affinity = SHARED_IO_THREAD
            socket.linger = 0
            socket.sndhwm = 0
            socket.rcvhwm = 0
            socket.reconnect_ivl = RECONNECT_MILLISECONDS
            socket.identity = identity
            socket.connect(launched.endpoints[channel])
            self.sockets[channel] = socket
        self.sockets["iopub"] = self._subscribe(bounded)
        heartbeat = context.socket(zmq.DEALER)
        heartbeat.affinity = SHARED_IO_THREAD
        heartbeat.linger = 0
        heartbeat.reconnect_ivl = RECONNECT_MILLISECONDS
        heartbeat.connect(launched.endpoints["hb"])
        self.sockets["hb"] = heartbeat

    def _subscribe(self, bounded: bool) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.SUB)
        socket.affinity = IOPUB_IO_THREAD
        socket.linger = 0
        socket.rcvhwm = BOUNDED_QUEUE if bounded else 0
        socket.reconnect_ivl = RECONNECT_MILLISECONDS
        socket.subscribe(b"")
        socket.connect(self.launched.endpoints["iopub"])
        return socket

    def unbound_iopub(self) -> zmq.Socket[bytes]:
        """Read ahead without bound: this kernel's publisher drops what its subscriber does not take.

        Returns:
            The new socket; the old one is closed. To be called before any actor's input is let in.
        """
        self.sockets["iopub"].close()
        self.bounded = False
        self.sockets["iopub"] = self._subscribe(False)
        return self.sockets["iopub"]

    def send(self, channel: str, frames: Sequence[bytes], *, generation: int | None = None) -> bool:
        """Write one message to the kernel.

        Args:
            channel: shell, control or stdin.
            frames: delimiter, signature and parts.
            generation: the generation under which an actor's input was admitted; None for the keeper's own.

        Returns:
            False when the generation has been fenced off: nothing was written.
        """
        if generation is not None and generation < self.fence:
            return False
        socket = self.sockets[channel]
        send(socket, frames, copy=len(frames[-1]) < COPY_BYTES)
        self._touched(socket)
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        return True

    def ping(self) -> None:
        """Ask the kernel's heartbeat, which a thread of its own sends back."""
        socket = self.sockets["hb"]
        send(socket, [b"", b"ping"], copy=True)  # the empty frame stands where a REQ socket has it
        self._touched(socket)

    def has_unread(self) -> bool:
        """Whether something of the kernel's has come and was not read yet."""
        found = False
        for socket in self.sockets.values():
            found = has_input(socket) or found
            self._touched(socket)  # to ask eats a wake-up, too
        return found

    def drain(self, channel: str, most: int) -> Iterator[list[bytes]]:
        """Up to `most` messages that have arrived."""
        return drain(self.sockets[channel], most)

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close()
        self.sockets.clear()

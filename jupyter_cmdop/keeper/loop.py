"""One thread's wait for ZMQ sockets and plain descriptors together.

A ZMQ socket's descriptor is edge-triggered: it tells of a *change*, and sending or receiving on the socket can take
the change away unseen (zeromq/pyzmq#2173). So every socket that was touched is asked for its events again before the
loop sleeps; only then is waiting on descriptors safe.
"""

from __future__ import annotations

import collections
import os
import selectors
import threading
import time
from collections.abc import Callable

import zmq

MAX_SLEEP_SECONDS = 60.0
Handler = Callable[[], bool | None]
"""Does bounded work; True means that there may be more."""


class Loop:
    """Handlers by descriptor and by ZMQ socket, timers, and calls from other threads."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._zmq: dict[int, tuple[zmq.Socket[bytes], Handler]] = {}
        self._touched: dict[int, None] = {}
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_read, self._wake_write = (
            os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        )
        self._woken = threading.Lock()
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._clear_wake)
        self._timers: list[Callable[[], float | None]] = []
        self.stopped = False

    # ---------------------------------------------------------------- registration

    def add_socket(self, socket: zmq.Socket[bytes], handler: Handler) -> None:
        descriptor = socket.getsockopt(zmq.FD)
        if not isinstance(descriptor, int):
            raise AssertionError("a ZMQ socket's descriptor is a number")
        self._zmq[descriptor] = (socket, handler)
        self._selector.register(descriptor, selectors.EVENT_READ, None)
        self._touched[descriptor] = None

    def remove_socket(self, socket: zmq.Socket[bytes]) -> None:
        for descriptor, (known, _) in list(self._zmq.items()):
            if known is socket:
                self._selector.unregister(descriptor)
                del self._zmq[descriptor]
                self._touched.pop(descriptor, None)

    def touch_all(self) -> None:
        """After sends: any socket's wake-up may have been eaten."""
        self._touched.update(dict.fromkeys(self._zmq))

    def add_reader(self, descriptor: int, handler: Handler) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def watch_writes(self, descriptor: int, handler: Handler, *, writing: bool) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        self._selector.modify(descriptor, events, handler)

    def remove_reader(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def add_timer(self, due: Callable[[], float | None]) -> None:
        """`due` tells the monotonic second at which the loop must not be asleep, or None."""
        self._timers.append(due)

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop's thread, from any thread."""
        self._posted.append(call)
        if self._woken.acquire(blocking=False):
            os.write(self._wake_write, b"\0")

    def stop(self) -> None:
        self.stopped = True

    # ---------------------------------------------------------------- running

    def turn(self) -> None:
        """Wait until something happens, and handle all that has happened. The caller then commits the turn."""
        ready = self._ready_sockets()
        timeout = 0.0 if ready or self._posted else self._timeout()
        try:
            found = self._selector.select(timeout)
        except InterruptedError:
            return
        for key, _ in found:
            if key.data is None:
                self._touched[key.fd] = None
        for descriptor in self._ready_sockets():
            socket_and_handler = self._zmq.get(descriptor)
            if socket_and_handler is not None:
                self._touched[descriptor] = None
                socket_and_handler[1]()
        for key, _ in found:
            if key.data is None:
                continue
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data == key.data:  # not closed (and used again) in this turn
                key.data()
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def _ready_sockets(self) -> list[int]:
        """Descriptors of touched sockets that have something to read; the others are asked again when they wake."""
        ready = []
        for descriptor in list(self._touched):
            known = self._zmq.get(descriptor)
            if known is not None and int(known[0].getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                ready.append(descriptor)
            else:
                del self._touched[descriptor]
        return ready

    def _timeout(self) -> float:
        now = time.monotonic()
        due = [when - now for timer in self._timers if (when := timer()) is not None]
        return max(0.0, min([MAX_SLEEP_SECONDS, *due]))

    def _clear_wake(self) -> None:
        self._woken.release()
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    def close(self) -> None:
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing

"""One thread's wait for ZMQ sockets and plain descriptors together.

A ZMQ socket's descriptor is edge-triggered: it tells of a *change*, and sending or receiving on the socket can take
the change away unseen (zeromq/pyzmq#2173). So every socket that was touched, that is sent to or received from, is
asked for its events again before the loop sleeps; only then is waiting on descriptors safe.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import selectors
import threading
import time
from collections.abc import Callable

import zmq

from ..backends.zmq_frames import has_input

MAX_SLEEP_SECONDS = 60.0
# While things happen nobody works out what is due: timers run so often at least, and may be so late at most.
TIMER_SECONDS = 0.005
SHORT_SLEEP_SECONDS = 0.001  # below it `selectors` would round up, and a rest would be twice as long
Handler = Callable[[], bool | None]
"""Does bounded work; True means that there may be more."""


class Loop:
    """Handlers by descriptor and by ZMQ socket, timers, and calls from other threads.

    Attributes:
        is_time: after a turn, whether what is due is to be looked at.
        woken: called before anything is handled, with the monotonic second by which the loop meant to be awake.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[zmq.Socket[bytes], Handler] = {}
        self._descriptors: dict[zmq.Socket[bytes], int] = {}
        self._sockets: dict[int, zmq.Socket[bytes]] = {}
        self._touched: dict[zmq.Socket[bytes], None] = {}
        self._resting: zmq.Socket[bytes] | None = None
        self._rests_until = 0.0
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_read, self._wake_write = (
            os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else _pipe()
        )
        self._woken = threading.Lock()
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._clear_wake)
        self._timers: list[Callable[[], float | None]] = []
        self._timers_at = 0.0
        self._was_busy = True
        self.is_time = False
        self.stopped = False
        self.woken: Callable[[float], None] | None = None

    # ---------------------------------------------------------------- registration

    def add_socket(self, socket: zmq.Socket[bytes], handler: Handler) -> None:
        descriptor = _descriptor(socket)
        self._handlers[socket] = handler
        self._descriptors[socket] = descriptor
        self._sockets[descriptor] = socket
        self._selector.register(descriptor, selectors.EVENT_READ, None)
        self._touched[socket] = None

    def remove_socket(self, socket: zmq.Socket[bytes]) -> None:
        if self._handlers.pop(socket, None) is None:
            return
        self._touched.pop(socket, None)
        descriptor = self._descriptors.pop(socket)
        del self._sockets[descriptor]
        if self._resting is socket:
            self._resting = None
        else:
            self._selector.unregister(descriptor)

    def touch(self, socket: zmq.Socket[bytes]) -> None:
        """After sending to it or asking it anything: its wake-up may have been eaten."""
        if socket in self._handlers:
            self._touched[socket] = None

    def rest(self, socket: zmq.Socket[bytes], seconds: float) -> None:
        """Let one socket wait, so that more has come when it is read next; everything else is heard at once."""
        if self._resting is not None or socket not in self._handlers:
            return
        self._resting, self._rests_until = socket, time.monotonic() + seconds
        self._selector.unregister(self._descriptors[socket])

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
        self._forget_idle()
        awake = self._awake()
        timeout = 0.0 if awake else self._timeout()
        due = time.monotonic() + timeout
        try:
            found = self._select(timeout)
        except InterruptedError:
            return
        if self.woken is not None:
            self.woken(due)
        now = time.monotonic()
        self._was_busy = awake or bool(found)
        self.is_time = not self._was_busy or now >= self._timers_at
        if self.is_time:
            self._timers_at = now + TIMER_SECONDS
        if self._resting is not None and (found or now >= self._rests_until):
            self.end_rest()
        for key, _ in found:
            if key.data is None and (socket := self._sockets.get(key.fd)) is not None:
                self._touched[socket] = None
        resting = self._resting
        for socket in list(self._touched):
            # It may have been removed in this turn, by what another has brought.
            if socket is not resting and (handler := self._handlers.get(socket)) is not None:
                del self._touched[socket]
                if handler():
                    self.touch(socket)
        for key, _ in found:
            if key.data is None:
                continue
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data == key.data:  # not closed (and used again) in this turn
                key.data()
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def _forget_idle(self) -> None:
        """Of the touched sockets only those stay that have something to read; the others tell when that changes."""
        for socket in list(self._touched):
            if socket is not self._resting and not has_input(socket):
                del self._touched[socket]

    def _awake(self) -> bool:
        return bool(self._posted) or any(socket is not self._resting for socket in self._touched)

    def _select(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        if 0 < timeout < SHORT_SLEEP_SECONDS and isinstance(self._selector, selectors.EpollSelector):
            descriptor = self._selector.fileno()
            if descriptor < FD_SETSIZE and not select.select([descriptor], (), (), timeout)[0]:
                return []
            timeout = 0.0
        return self._selector.select(timeout)

    def _timeout(self) -> float:
        now = time.monotonic()
        if self._was_busy and not self.is_time:
            return TIMER_SECONDS if self._resting is None else max(0.0, self._rests_until - now)
        first = now + MAX_SLEEP_SECONDS if self._resting is None else self._rests_until
        for timer in self._timers:
            due = timer()
            if due is not None and due < first:
                first = due
        return max(0.0, first - now)

    def end_rest(self) -> None:
        """Hear again what rests: the turn that follows reads it."""
        socket, self._resting = self._resting, None
        if socket is not None:
            self._selector.register(self._descriptors[socket], selectors.EVENT_READ, None)
            self._touched[socket] = None

    def _clear_wake(self) -> None:
        # In this order: who posts before the release finds the lock taken, and his call is made at the end of this
        # turn. Released first, his byte could be read here, and nobody would ever write another: the lock stays taken.
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        self._woken.release()

    def close(self) -> None:
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


FD_SETSIZE = 1024  # `select` knows no higher descriptor


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    descriptor = socket.getsockopt(zmq.FD)
    if not isinstance(descriptor, int):
        raise AssertionError("a ZMQ socket's descriptor is a number")
    return descriptor


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing

"""Many receivers of one kernel's output, read by one loop."""

from __future__ import annotations

import json
import re
import selectors
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import zmq

_STAMP = re.compile(rb'"text"\s*:\s*"(\d{10,})')
_STAMP_WITHIN = 2000  # the text stands behind header, parent and metadata


class Receiver(Protocol):
    def fileno(self) -> int: ...
    def recv_ready(self) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class Subscriber:
    """A client straight at the kernel that only watches."""

    def __init__(self, connection_file: Path) -> None:
        info = json.loads(connection_file.read_bytes())
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.subscribe(b"")
        between = "-" if info["transport"] == "ipc" else ":"
        self._socket.connect(f"{info['transport']}://{info['ip']}{between}{info['iopub_port']}")

    def fileno(self) -> int:
        return int(self._socket.getsockopt(zmq.FD))

    def recv_ready(self) -> Iterator[bytes]:
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            yield self._socket.recv_multipart()[-1]

    def close(self) -> None:
        self._socket.close()


class Fan:
    """Attributes: latencies: microseconds from the kernel's stamp to our reading, by receiver."""

    def __init__(self, receivers: Sequence[Receiver]) -> None:
        self._receivers = receivers
        self.latencies: list[list[float]] = [[] for _ in receivers]
        self._selector = selectors.DefaultSelector()
        for at, receiver in enumerate(receivers):
            self._selector.register(receiver.fileno(), selectors.EVENT_READ, at)

    def _take(self, at: int) -> int:
        seen = self.latencies[at]
        for raw in self._receivers[at].recv_ready():
            now = time.monotonic_ns()
            found = _STAMP.search(raw, 0, _STAMP_WITHIN)
            if found:
                seen.append((now - int(found[1])) / 1000)
        return len(seen)

    def pump(self, want: int, *, quiet_seconds: float = 5, limit_seconds: float = 120) -> list[int]:
        """Read until every receiver has `want` stamped messages, or nothing comes; what each one got."""
        waiting = {at for at in range(len(self._receivers)) if self._take(at) < want}
        deadline = time.monotonic() + limit_seconds
        last = time.monotonic()
        while waiting and time.monotonic() < deadline and time.monotonic() - last < quiet_seconds:
            for key, _ in self._selector.select(0.2):
                last = time.monotonic()
                if self._take(key.data) >= want:
                    waiting.discard(key.data)
        return [len(seen) for seen in self.latencies]

    def drop_ready(self) -> None:
        """Read what is there now, and count nothing."""
        for receiver in self._receivers:
            for _ in receiver.recv_ready():
                pass

    def reset(self) -> None:
        for seen in self.latencies:
            seen.clear()

    def close(self) -> None:
        self._selector.close()

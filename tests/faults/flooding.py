"""Floods, their readers, and what is measured meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from tests.faults.flood_reader import END
from tests.support import TooLate

ROOT = Path(__file__).parents[2]
FLOOD_SECONDS = 240.0
"""No flood takes so long, nor a reader behind it."""

_PRINTS = "for n in range({n}): print(n, flush=True)\n"
_LINES = "for n in range({n}): print(n)\n"
_BUFFERS = """
kernel, block = get_ipython().kernel, bytes(32 * 1024)
for n in range({n}):
    kernel.session.send(
        kernel.iopub_socket, 'display_data', content=dict(data={{'text/plain': f'{{n}};'}}, metadata={{}}),
        parent=kernel.get_parent(), ident=b'display_data', buffers=[block])
"""
_ONE = "print('x' * {n}, flush=True)\n"
_RATE = """
import sys, time
sys.stdout.flush()
kernel = get_ipython().kernel
session, parent, begun, n = kernel.session, kernel.get_parent(), time.perf_counter(), 0
while n < {n}:
    due = min({n}, int((time.perf_counter() - begun) * 10_000))
    while n < due:
        message = session.msg('stream', content=dict(name='stdout', text=f'{{n}}\\n'), parent=parent)
        kernel.iopub_socket.send_multipart(session.serialize(message, ident=b'stream.stdout'))
        n += 1
"""
END_CODE = f"print({END.strip()!r}, flush=True)\n"


@dataclass(frozen=True, slots=True)
class Flood:
    """What a cell shows: `n` times, and how it is written."""

    name: str
    template: str
    n: int

    @property
    def code(self) -> str:
        return self.template.format(n=self.n) + END_CODE

    def endless(self, arrived: Path) -> str:
        """The same until it is interrupted; into `arrived` goes when that was."""
        body = "".join(f"        {line}\n" for line in self.template.format(n=self.n).splitlines())
        note = f"pathlib.Path({str(arrived)!r}).write_text(str(time.monotonic()))"
        return (
            f"import pathlib, time\ntry:\n    while True:\n{body}"
            f"except KeyboardInterrupt:\n    {note}\n    raise\n"
        )

    def expected(self) -> dict[str, Any]:
        text = END
        if self.name == "one":
            text = "x" * self.n + "\n" + END
        elif self.name != "buffers":
            text = "".join(f"{n}\n" for n in range(self.n)) + END
        return {
            "text": hashlib.sha256(text.encode()).hexdigest(),
            "characters": len(text),
            "displays": self.n if self.name == "buffers" else 0,
            "in_order": True,
        }


FULL = {
    flood.name: flood
    for flood in (
        Flood("prints", _PRINTS, 30_000),
        Flood("lines", _LINES, 200_000),
        Flood("buffers", _BUFFERS, 6_000),
        Flood("one", _ONE, 64 * 2**20),
        Flood("rate", _RATE, 100_000),
    )
}
SHORT = {
    flood.name: flood
    for flood in (
        Flood("prints", _PRINTS, 3_000),
        Flood("lines", _LINES, 20_000),
        Flood("buffers", _BUFFERS, 500),
        Flood("one", _ONE, 8 * 2**20),
        Flood("rate", _RATE, 5_000),
    )
}


class Helper:
    """A program of ours beside the test, which says lines of JSON."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        self._said: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))
        self._said.put(None)

    def says(self, limit_seconds: float = FLOOD_SECONDS) -> Any:
        try:
            said = self._said.get(timeout=limit_seconds)
        except queue.Empty as error:
            raise TooLate(f"{self.process.args!r} said nothing") from error
        assert said is not None, f"{self.process.args!r} has ended"
        return said

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


_PROBE = r"""
import json, select, socket, struct, sys, time

def frame(header):
    raw = json.dumps(header).encode()
    return struct.pack(">IQ", len(raw), 0) + raw

def read(n):
    data = b""
    while len(data) < n:
        data += link.recv(n - len(data))
    return data

def answer():
    header, payload = struct.unpack(">IQ", read(12))
    read(header + payload)

link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
link.sendall(frame({"hello": {"protocol": 1, "oldest": 1, "client": "probe"}}))
answer()
print(json.dumps("ready"), flush=True)
took = []
while not select.select([sys.stdin], [], [], 0.004)[0]:
    begun = time.perf_counter()
    link.sendall(frame({"id": len(took) + 1, "verb": "status", "args": {}}))
    answer()
    took.append(time.perf_counter() - begun)
print(json.dumps(took), flush=True)
"""

_NEIGHBOUR = r"""
import json, select, sys, time
from jupyter_cmdop.client.session import Session

with Session.open(sys.argv[1]) as session:
    session.run("1")
    print(json.dumps("ready"), flush=True)
    took = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        begun = time.perf_counter()
        assert session.run("1").status == "ok"
        took.append(time.perf_counter() - begun)
    print(json.dumps(took), flush=True)
"""


class Probe(Helper):
    """Round trips one after the other, for as long as it lives: of `status` on a link, or of a cell."""

    def __init__(self, *, link: str = "", session: str = "") -> None:
        super().__init__("-c", _PROBE if link else _NEIGHBOUR, link or session)
        assert self.says() == "ready"

    def seconds(self) -> list[float]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return [float(took) for took in self.says()]


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] if len(seconds) > 1 else seconds[0]


@dataclass
class Memory:
    """The most resident memory that a process has while this is looked at."""

    process: psutil.Process
    most: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, int(self.process.memory_info().rss))

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

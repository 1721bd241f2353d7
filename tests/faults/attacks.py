"""What attacks on a session share: its processes, a link without manners, sockets without a client library."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import json
import os
import pickle
import socket
import struct
import sys
import time
import unittest.mock
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import zmq

from jupyter_cmdop.cli.main import main
from jupyter_cmdop.client import shapes
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.wire.link import FrameDecoder, encode_frame, unspill
from tests.support import LIMIT_SECONDS, CliResult, Home, Sessions, TooLate, wait_for_status

T = TypeVar("T")
DELIMITER = b"<IDS|MSG>"
NOBODY = 65534


# ---------------------------------------------------------------------- processes


def kernel_of(session: Session) -> psutil.Process:
    """The kernel process of this incarnation."""
    status = wait_for_status(session, lambda s: s.state == "open" and s.processes)
    return psutil.Process(status.processes[0].pid)


def keeper_of(home: Home, session: Session | str) -> psutil.Process:
    session_id = session if isinstance(session, str) else session.id
    return psutil.Process(pointer_of(home, session_id)["pid"])


def pointer_of(home: Home, session_id: str) -> dict[str, Any]:
    found = json.loads((home.runtime / "cmdop" / f"{session_id}.json").read_bytes())
    assert isinstance(found, dict)
    return found


def wait_gone(*processes: psutil.Process, limit_seconds: float = LIMIT_SECONDS) -> None:
    """Wait for the end of processes, ours or not."""
    _, alive = psutil.wait_procs(processes, timeout=limit_seconds)
    alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not alive, f"still there: {alive}"


def wait_until(condition: Callable[[], Any], what: str, *, limit_seconds: float = LIMIT_SECONDS) -> Any:
    """Look again and again at what gives no event; returns the first true value."""
    deadline = time.monotonic() + limit_seconds
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise TooLate(f"not within {limit_seconds} s: {what}")
        time.sleep(0.01)
    return value


def wait_ready(session: Session, incarnation: int) -> shapes.Status:
    return wait_for_status(session, lambda s: s.state == "open" and s.incarnation == incarnation)


def rss_of(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


# ---------------------------------------------------------------------- the command line, without a process


def call_cli(
    *arguments: str, code: int | None = 0, json_output: bool = True, env: Mapping[str, str] | None = None
) -> CliResult:
    """As `tests.support.run_cli`, in this process: for tests that are about what a session answers."""
    out, err = io.StringIO(), io.StringIO()
    argv = [*arguments, *(["--json"] if json_output else [])]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        unittest.mock.patch.dict(os.environ, env or {}),
    ):
        try:
            status = main(argv)
        except SystemExit as exited:
            status = int(exited.code or 0)
    result = CliResult(status, out.getvalue(), err.getvalue(), tuple(argv))
    assert code is None or result.code == code, (
        f"{arguments} gave {result.code}: {result.out!r} {result.err!r}"
    )
    return result


# ---------------------------------------------------------------------- the link, without manners


class RawLink:
    """A connection to a keeper's link that says whatever it is told to.

    Attributes:
        hello: the keeper's first frame, None when nothing was said.
    """

    def __init__(self, path: str, *, hello: dict[str, Any] | None = None, silent: bool = False) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(LIMIT_SECONDS)
        self.socket.connect(path)
        self._decoder = FrameDecoder()
        self._frames: list[dict[str, Any]] = []
        self._count = 0
        self.hello: dict[str, Any] | None = None
        if not silent:
            self.send({"hello": {"protocol": 1, "oldest": 1, "client": "raw", **(hello or {})}})
            self.hello = self.receive()

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self.send_bytes(encode_frame(header, payload))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> dict[str, Any] | None:
        """The next frame's header; None when the keeper has closed the connection."""
        while not self._frames:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._frames.extend(unspill(header, payload) for header, payload in self._decoder.feed(data))
        return self._frames.pop(0)

    def ask(self, verb: Any, args: Any = None, **fields: Any) -> dict[str, Any]:
        """Send a request and return the frame that ends it."""
        self._count += 1
        self.send({"id": self._count, "verb": verb, "args": {} if args is None else args, **fields})
        while True:
            frame = self.receive()
            assert frame is not None, f"the link closed instead of answering {verb!r}"
            if "item" not in frame and "event" not in frame:
                return frame

    def is_closed_by_keeper(self) -> bool:
        """Read to the end: whether there is one."""
        while self.receive() is not None:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


def link_path(home: Home, session: Session) -> str:
    return str(pointer_of(home, session.id)["link"])


def lengths(header: int, payload: int) -> bytes:
    return struct.pack(">IQ", header, payload)


# ---------------------------------------------------------------------- the kernel protocol, without a client


class RawEndpoint:
    """Sockets to the endpoints of a connection file, and its key; frames are whatever one wants."""

    def __init__(self, connection_file: str | Path, *, key: bytes | None = None) -> None:
        self.info: dict[str, Any] = json.loads(Path(connection_file).read_bytes())
        self.key = self.info["key"].encode() if key is None else key
        self.session = uuid.uuid4().hex
        self._context = zmq.Context()
        self._opened: list[zmq.Socket[bytes]] = []
        self.sockets = {channel: self.open(channel) for channel in ("shell", "control", "stdin")}

    def address(self, channel: str) -> str:
        return f"ipc://{self.info['ip']}-{self.info[f'{channel}_port']}"

    def open(self, channel: str, kind: int = zmq.DEALER) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.linger = 1000
        made.connect(self.address(channel))
        self._opened.append(made)
        return made

    def header(self, **fields: Any) -> bytes:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": self.session,
            "username": "nobody",
            "date": "2026-01-01T00:00:00.000000Z",
            "version": "5.4",
        }
        return json.dumps({**header, **fields}).encode()

    def sign(self, parts: Sequence[bytes]) -> bytes:
        return hmac.new(self.key, b"".join(parts[:4]), hashlib.sha256).hexdigest().encode()

    def send(
        self,
        channel: str,
        header: bytes | None = None,
        *,
        parent: bytes = b"{}",
        metadata: bytes = b"{}",
        content: bytes = b"{}",
        buffers: Sequence[bytes] = (),
        signature: bytes | None = None,
    ) -> None:
        parts = [self.header() if header is None else header, parent, metadata, content]
        frames = [DELIMITER, self.sign(parts) if signature is None else signature, *parts, *buffers]
        self.send_frames(channel, frames)

    def send_frames(self, channel: str, frames: Sequence[bytes]) -> None:
        self.sockets[channel].send_multipart(list(frames))

    def receive(self, channel: str) -> dict[str, Any]:
        """The next reply: its header, parent and content."""
        if not self.sockets[channel].poll(int(LIMIT_SECONDS * 1000)):
            raise TooLate(f"no reply on {channel}")
        frames = self.sockets[channel].recv_multipart()
        at = frames.index(DELIMITER)
        header, parent, _, content = (json.loads(part) for part in frames[at + 2 : at + 6])
        return {"header": header, "parent_header": parent, "content": content}

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        self._context.term()


# ---------------------------------------------------------------------- kernelspecs that go wrong


def make_spec(home: Home, name: str, argv: list[str], **more: Any) -> str:
    """Install a kernelspec in the home."""
    folder = home.root / "data" / "kernels" / name
    folder.mkdir(parents=True, exist_ok=True)
    spec = {"argv": argv, "display_name": name, "language": "text", **more}
    (folder / "kernel.json").write_text(json.dumps(spec))
    return name


def null_spec(home: Home, name: str = "null") -> str:
    """The kernelspec of the tests' own kernel, which answers at once."""
    program = Path(__file__).parent.parent / "nullkernel.py"
    return make_spec(
        home, name, [sys.executable, str(program), "{connection_file}"], interrupt_mode="message"
    )


def is_root() -> bool:
    return os.geteuid() == 0


@pytest.fixture(scope="module")
def lone_session(module_session: Sessions) -> Session:
    """One session for a module whose tests leave it usable."""
    return module_session()


def as_nobody(act: Callable[[], T]) -> T:
    """What `act` returns (or raises) in a forked process of another Unix user; nothing is executed anew.

    A program of its own would have to read a Python installation, which may be closed to other users.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            outcome: object = act()
        except BaseException as error:
            outcome = error
        with open(writing, "wb") as pipe:
            try:
                pipe.write(pickle.dumps(outcome))
            except Exception:
                pipe.write(pickle.dumps(AssertionError(repr(outcome))))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    found = pickle.loads(raw)
    if isinstance(found, BaseException):
        raise found
    return found

"""A real Jupyter server in a process of its own, the requests of a REST client, and the websocket of a browser."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import websocket

from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session
from jupyter_cmdop.wire import websocket as frames
from tests.support import LIMIT_SECONDS, Home, TooLate, end_session

TOKEN = "server-token"
CONFIG = Path(__file__).resolve().parents[2] / "jupyter-config"
OTHERS = ("jupyterlab", "notebook", "notebook_shim", "jupyter_lsp", "jupyter_server_terminals")
"""Extensions that these tests need not wait for, where they happen to be installed."""
V1 = "v1.kernel.websocket.jupyter.org"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def data(self) -> Any:
        return json.loads(self.body)


def _merged(headers: Message) -> dict[str, str]:
    return {name: ", ".join(headers.get_all(name, [])) for name in set(headers.keys())}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


class Server:
    """A server with our extension as an installation enables it: by its file in `jupyter_server_config.d`."""

    def __init__(
        self,
        home: Home,
        root: Path,
        *arguments: str,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        tls: tuple[Path, Path] | None = None,
        wait: bool = True,
        token: str = TOKEN,
        python: Path | str = sys.executable,
    ) -> None:
        self.home = home
        self.root = root
        self.token = token
        self.python = python
        self.port = port or free_port()
        self.tls = tls
        self.log = home.root / f"server-{self.port}-{uuid.uuid4().hex[:6]}.log"
        root.mkdir(exist_ok=True)
        tls_arguments = () if tls is None else (f"--certfile={tls[0]}", f"--keyfile={tls[1]}")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    str(python),
                    "-m",
                    "jupyter_server",
                    "--allow-root",
                    "--no-browser",
                    f"--port={self.port}",
                    "--ServerApp.port_retries=0",
                    f"--IdentityProvider.token={token}",
                    f"--ServerApp.root_dir={root}",
                    "--log-level=DEBUG",
                    *(f"--ServerApp.jpserver_extensions={name}=False" for name in OTHERS),
                    *tls_arguments,
                    *arguments,
                ],
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "JUPYTER_CONFIG_PATH": str(CONFIG), **(env or {})},
            )
        if wait:
            self.wait_ready()

    # --- its life

    def wait_listening(self) -> None:
        """Return as soon as HTTP is answered, whatever the answer."""
        self._until(lambda: self.get("/api").status == 200)

    def wait_ready(self) -> None:
        """Return when sessions are adopted."""
        self._until(lambda: self.get("/api/kernels").status not in (0, 503))

    def _until(self, predicate: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not predicate():
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended: {self.text()[-4000:]}")
            if time.monotonic() > deadline:
                raise TooLate(f"the server is not ready: {self.text()[-4000:]}")
            time.sleep(0.05)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Ask it to stop, wait for its end; returns its log."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise TooLate(f"the server does not stop: {self.text()[-4000:]}") from None
        return self.text()

    def again(self, *arguments: str, wait: bool = True, **options: Any) -> Server:
        """Another server on the same port and directory."""
        return Server(
            self.home,
            self.root,
            *arguments,
            port=self.port,
            tls=self.tls,
            wait=wait,
            token=self.token,
            python=self.python,
            **options,
        )

    # --- requests

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = "",
        headers: Mapping[str, str] | None = None,
        timeout: float = LIMIT_SECONDS,
    ) -> Answer:
        """One request; `token` None sends none, "" the server's. Status 0: nobody answers."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        chosen = self.token if token == "" else token
        if chosen is not None:
            sent["Authorization"] = f"token {chosen}"
        data = None if body is None else json.dumps(body).encode()
        if data is None and method in ("POST", "PUT", "PATCH"):
            data = b""
        asked = urllib.request.Request(self.url + path, data=data, method=method, headers=sent)
        context = ssl._create_unverified_context() if self.tls else None
        opener = urllib.request.build_opener(
            _NoRedirect, urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({})
        )
        try:
            with opener.open(asked, timeout=timeout) as answer:
                return Answer(answer.status, answer.read(), _merged(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read(), _merged(error.headers))
        except (OSError, HTTPException):
            return Answer(0, b"", {})

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request("POST", path, body, **options)

    def delete(self, path: str, **options: Any) -> Answer:
        return self.request("DELETE", path, **options)

    def start_kernel(self, **body: Any) -> str:
        answer = self.post("/api/kernels", {"name": "python3", **body})
        assert answer.status == 201, (answer.status, answer.body, self.text()[-3000:])
        return str(answer.data["id"])

    def open_notebook(self, path: str = "Untitled.ipynb", **kernel: Any) -> dict[str, Any]:
        """What JupyterLab does when a notebook is opened; the notebook session."""
        answer = self.post(
            "/api/sessions",
            {
                "path": path,
                "type": "notebook",
                "name": path.rsplit("/", 1)[-1],
                "kernel": {"name": "python3", **kernel},
            },
        )
        assert answer.status == 201, (answer.status, answer.body, self.text()[-3000:])
        return dict(answer.data)

    def kernels(self) -> dict[str, dict[str, Any]]:
        answer = self.get("/api/kernels")
        assert answer.status == 200, (answer.status, answer.body)
        return {kernel["id"]: kernel for kernel in answer.data}

    def wait_for_kernel(self, kernel_id: str, **fields: Any) -> dict[str, Any]:
        """Ask until the kernel's model has these values."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            model = self.kernels().get(kernel_id)
            if model is not None and all(model[key] == value for key, value in fields.items()):
                return model
            if time.monotonic() > deadline:
                raise TooLate(f"{kernel_id} is {model}, not {fields}")
            time.sleep(0.05)

    def wait_for_end(self, kernel_id: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while kernel_id in self.kernels():
            if time.monotonic() > deadline:
                raise TooLate(f"{kernel_id} is still there")
            time.sleep(0.05)

    def connect(self, kernel_id: str, **options: Any) -> KernelSocket:
        return KernelSocket(self, kernel_id, **options)


@dataclass
class KernelSocket:
    """A kernel's websocket as JupyterLab opens it."""

    server: Server
    kernel_id: str
    token: str | None = ""
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    subprotocols: tuple[str, ...] = (V1,)
    headers: Mapping[str, str] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        chosen = self.server.token if self.token == "" else self.token
        headers = dict(self.headers)
        origin = headers.pop("Origin", None)
        if chosen is not None:
            headers["Authorization"] = f"token {chosen}"
        self.ws = websocket.WebSocket(sslopt={"cert_reqs": ssl.CERT_NONE})
        self.ws.settimeout(LIMIT_SECONDS)
        self.ws.connect(
            f"{self.server.url.replace('http', 'ws', 1)}/api/kernels/{self.kernel_id}/channels"
            f"?session_id={self.session_id}",
            header=[f"{name}: {value}" for name, value in headers.items()],
            subprotocols=list(self.subprotocols),
            origin=origin,
            suppress_origin=origin is None,
            http_no_proxy=["127.0.0.1"],
        )

    def send(self, msg_type: str, content: dict[str, Any], channel: str = "shell") -> str:
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "session": self.session_id,
            "username": "",
            "date": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "version": "5.3",
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        self.ws.send_binary(frames.encode_v1(channel, *parts, []))
        return msg_id

    def execute(self, code: str, **changes: Any) -> str:
        return self.send(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": True,
                "stop_on_error": True,
                **changes,
            },
        )

    def receive(self) -> dict[str, Any]:
        opcode, data = self.ws.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            raise ConnectionError(f"closed: {data!r}")
        channel, header, parent, metadata, content, _ = frames.decode_v1(data)
        message = {
            "channel": channel,
            "header": json.loads(header),
            "parent_header": json.loads(parent),
            "metadata": json.loads(metadata),
            "content": json.loads(content),
        }
        self.seen.append(message)
        return message

    def until(self, predicate: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
        """What arrives up to the first message for which `predicate` holds."""
        found: list[dict[str, Any]] = []
        while not found or not predicate(found[-1]):
            found.append(self.receive())
        return found

    def until_idle(self, msg_id: str) -> list[dict[str, Any]]:
        return self.until(
            lambda m: (
                m["header"]["msg_type"] == "status"
                and m["content"]["execution_state"] == "idle"
                and m["parent_header"].get("msg_id") == msg_id
            )
        )

    def run(self, code: str) -> str:
        """Execute and return the text that came of it."""
        return text_of(self.until_idle(self.execute(code)))

    def wait_closed(self) -> None:
        """Read until the other side closes."""
        try:
            while True:
                self.receive()
        except (ConnectionError, websocket.WebSocketConnectionClosedException):
            self.ws.shutdown()

    def close(self) -> None:
        self.ws.close()


def text_of(messages: list[dict[str, Any]]) -> str:
    parts = []
    for message in messages:
        if message["header"]["msg_type"] == "stream":
            parts.append(message["content"]["text"])
        elif message["header"]["msg_type"] in ("execute_result", "display_data"):
            parts.append(message["content"]["data"]["text/plain"])
    return "".join(parts)


def raw_status(server: Server, method: str, path: str, headers: Mapping[str, str]) -> int:
    """The status of a request whose headers are these and no others."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_SECONDS) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.recv(65536).split(b" ", 2)[1])


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def kernel_pid(kernel_id: str) -> int:
    with Session.open(kernel_id) as session:
        return session.status().processes[0].pid


def keeper_pid(kernel_id: str) -> int:
    pointer = next(p for p in Registry.of_user().list_pointers() if p.id == kernel_id)
    assert pointer.pid is not None
    return pointer.pid


def wait_gone(*pids: int) -> None:
    processes = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    _, alive = psutil.wait_procs(processes, timeout=LIMIT_SECONDS)
    assert not alive, alive


def end_all_sessions(home: Home) -> None:
    """Close every session of a home, whoever made it."""
    pointers = Registry.of_user().list_pointers()
    with ThreadPoolExecutor() as threads:
        for done in [threads.submit(end_session, home, pointer.id) for pointer in pointers]:
            done.result()


class Servers:
    """Makes servers in a home, and at the end stops them and closes every session that is left."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._made: list[Server] = []
        self._count = 0

    def __call__(self, *arguments: str, root: Path | None = None, **options: Any) -> Server:
        self._count += 1
        return self.add(
            Server(self.home, root or self.home.root / f"work-{uuid.uuid4().hex[:6]}", *arguments, **options)
        )

    def add(self, server: Server) -> Server:
        self._made.append(server)
        return server

    def close(self) -> None:
        for server in self._made:
            server.kill()
        end_all_sessions(self.home)


def cookie_of(answer: Answer) -> str:
    """The login cookie that an answer sets, for a Cookie header."""
    found = re.search(r"(username-[^=]+=[^;]+)", answer.headers.get("Set-Cookie", ""))
    assert found, answer.headers
    return found[1]


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.stop()

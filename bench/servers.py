"""What is measured: private folders, sessions of ours, plain kernels, Jupyter servers. All of it ends with its row."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.doors import WebsocketDoor, ZmqDoor
from bench.figures import DIRECT, OURS, PEER
from bench.probes import LIMIT_SECONDS
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session

ROOT = Path(__file__).resolve().parents[1]
NULL_KERNEL = Path(__file__).with_name("null_kernel.py")
SPECS = {"null": "benchnull", "null, hwm 0": "benchnull0", "ipykernel": "python3"}
MARKER = "CMDOP_BENCH"
TOKEN = "bench"
OTHERS = ("jupyterlab", "notebook", "notebook_shim", "jupyter_lsp", "jupyter_server_terminals")
"""Extensions that may be installed here, and are no part of what is measured."""
NODELAY = """
# What jupyter_server would be with TCP_NODELAY on its websockets: without it each round trip waits for a delayed ACK.
from jupyter_server.base.websocket import WebSocketMixin

_open = WebSocketMixin.open


def open_nodelay(self, *args, **kwargs):
    self.set_nodelay(True)
    return _open(self, *args, **kwargs)


WebSocketMixin.open = open_nodelay
c.ZMQChannelsWebsocketConnection.limit_rate = False
"""


@contextmanager
def private_home() -> Iterator[Path]:
    """Jupyter's and our folders are temporary ones; every process that was started in them ends with them."""
    before = dict(os.environ)
    root = Path(tempfile.mkdtemp(prefix="cmdop-bench-"))
    for name in list(os.environ):
        if name.startswith(("JUPYTER", "JPY", "IPYTHON", "CMDOP")):
            del os.environ[name]
    folders = {
        "HOME": "home",
        "JUPYTER_RUNTIME_DIR": "run",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_CONFIG_DIR": "config",
        "IPYTHONDIR": "ipython",
        "CMDOP_STATE_DIR": "state",
    }
    try:
        for variable, folder in folders.items():
            (root / folder).mkdir(mode=0o700)
            os.environ[variable] = str(root / folder)
        os.environ[MARKER] = str(root)
        # This checkout is what is measured, also in the processes that are started.
        os.environ["PYTHONPATH"] = str(ROOT)
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before.get('PATH', '')}"
        _install_null_kernels(root / "data")
        yield root
    finally:
        asked = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C leaves nothing behind either
        try:
            _end_all(str(root))
            shutil.rmtree(root, ignore_errors=True)
            os.environ.clear()
            os.environ.update(before)
        finally:
            signal.signal(signal.SIGINT, asked)


def _install_null_kernels(data: Path) -> None:
    for name, arguments in (("benchnull", []), ("benchnull0", ["--hwm", "0"])):
        folder = data / "kernels" / name
        folder.mkdir(parents=True)
        spec = {
            "argv": [sys.executable, str(NULL_KERNEL), "-f", "{connection_file}", *arguments],
            "display_name": name,
            "language": "text",
        }
        (folder / "kernel.json").write_text(json.dumps(spec))


def _end_all(marker: str) -> None:
    """Kill every process whose environment bears our marker: those that this row has started, and theirs."""
    for _ in range(20):
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARKER) == marker:
                    process.kill()
                    found.append(process)
            except psutil.Error:
                continue  # another user's, or gone
        if not found:
            return
        psutil.wait_procs(found, timeout=2)


def keeper_pid(session_id: str) -> int:
    pids = [pointer.pid for pointer in Registry.of_user().list_pointers() if pointer.id == session_id]
    if not pids or pids[0] is None:
        raise RuntimeError(f"no keeper of session {session_id}")
    return pids[0]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A session of ours with the connection file of an invited client."""

    session: Session
    connection_file: str
    pid: int

    def door(self) -> ZmqDoor:
        return ZmqDoor(OURS, self.connection_file, pid=self.pid).ready()


class PlainKernel:
    """A kernel that the benchmark starts itself, for the clients that go straight to it."""

    def __init__(self, home: Path, kind: str, transport: str = "tcp") -> None:
        name = uuid.uuid4().hex[:8]
        self.connection_file = home / f"{name}.json"
        info: dict[str, Any] = {
            "transport": transport,
            "ip": "127.0.0.1" if transport == "tcp" else str(home / name),
            "key": uuid.uuid4().hex,
            "signature_scheme": "hmac-sha256",
        }
        for at, channel in enumerate(("shell", "iopub", "stdin", "control", "hb")):
            info[f"{channel}_port"] = free_port() if transport == "tcp" else at + 1
        self.connection_file.write_text(json.dumps(info))
        start = ["-m", "ipykernel_launcher"] if kind == "ipykernel" else [str(NULL_KERNEL)]
        hwm = ["--hwm", "0"] if kind == "null, hwm 0" else []
        self.process = subprocess.Popen(
            [sys.executable, *start, "-f", str(self.connection_file), *hwm],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def door(self) -> ZmqDoor:
        return ZmqDoor(DIRECT, self.connection_file).ready()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)


@dataclass(frozen=True, slots=True)
class ServedKernel:
    """A kernel that a server started; for ours `pid` is its keeper, for the peer the server itself."""

    server: Server
    id: str
    pid: int

    def connect(
        self, *, session: str | None = None, cursor: str | None = None, receive_buffer: int | None = None
    ) -> WebsocketDoor:
        url = self.server.url.replace("http", "ws", 1)
        return WebsocketDoor(
            OURS if self.server.is_ours else PEER,
            f"{url}/api/kernels/{self.id}/channels",
            TOKEN,
            pid=self.pid,
            session=session,
            cursor=cursor,
            receive_buffer=receive_buffer,
        )

    def door(self) -> WebsocketDoor:
        return self.connect().ready()


class Server:
    """A Jupyter server of this environment, with our extension or without it; then with the peer's two changes.

    Attributes:
        start_seconds: from its start until it answers what a client asks first.
    """

    def __init__(
        self, home: Path, *, is_ours: bool, as_shipped: bool = False, tls: tuple[Path, Path] | None = None
    ) -> None:
        self.is_ours = is_ours
        self._tls = tls
        folder = Path(tempfile.mkdtemp(prefix="server-", dir=home))
        (folder / "work").mkdir()
        if not is_ours and not as_shipped:
            (folder / "jupyter_server_config.py").write_text(NODELAY)
        self._log = folder / "log"
        port = free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        enabled = {"jupyter_cmdop": is_ours, **dict.fromkeys(OTHERS, False)}
        begin = time.perf_counter()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser"),
                    *(f"--ServerApp.jpserver_extensions={name}={on}" for name, on in enabled.items()),
                    "--ServerApp.ip=127.0.0.1",
                    f"--ServerApp.port={port}",
                    "--ServerApp.port_retries=0",
                    f"--IdentityProvider.token={TOKEN}",
                    f"--ServerApp.root_dir={folder / 'work'}",
                    "--ServerApp.log_level=ERROR",
                    *(() if tls is None else (f"--certfile={tls[0]}", f"--keyfile={tls[1]}")),
                ],
                env={**os.environ, "JUPYTER_CONFIG_DIR": str(folder)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_ready()
        self.start_seconds = time.perf_counter() - begin

    @property
    def pid(self) -> int:
        return self.process.pid

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                self.request("GET", "/api/kernels")
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError(f"the server is not ready: {self._log.read_text(errors='replace')[-2000:]}")

    def request(self, method: str, path: str, body: Any = None) -> Any:
        import ssl

        asked = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        context = None
        if self._tls:
            context = ssl.create_default_context(cafile=str(self._tls[0]))
            context.check_hostname = False
        with urllib.request.urlopen(asked, timeout=LIMIT_SECONDS, context=context) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None

    def start_kernel(self, kind: str) -> ServedKernel:
        made = self.request("POST", "/api/kernels", {"name": SPECS[kind]})["id"]
        return ServedKernel(self, made, keeper_pid(made) if self.is_ours else self.pid)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_SECONDS)


def certificate(home: Path) -> tuple[Path, Path]:
    """A certificate for loopback that nobody else trusts, and its key."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = home / "certificate.pem", home / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return paths


class Bench:
    """What a row is given: how much to do, and ways to make what it measures, all of which end with the row."""

    def __init__(self, home: Path, stack: ExitStack, *, quick: bool, transport: str) -> None:
        self.home = home
        self.quick = quick
        self._stack = stack
        self._transport = transport
        self._made = 0

    def count(self, full: int, least: int = 1) -> int:
        """`full`, or a tenth of it in a quick run."""
        return max(least, full // 10) if self.quick else full

    def session(self, kind: str) -> Endpoint:
        self._made += 1
        session = Session.create(f"bench-{self._made}", kernel=SPECS[kind])
        self._stack.callback(session.disconnect)
        invited = session.invite("bencher", kind="service")
        return Endpoint(session, str(invited.connection_file), keeper_pid(session.id))

    def plain(self, kind: str) -> PlainKernel:
        kernel = PlainKernel(self.home, kind, self._transport)
        self._stack.callback(kernel.stop)
        return kernel

    def server(self, *, is_ours: bool = True, tls: tuple[Path, Path] | None = None) -> Server:
        server = Server(self.home, is_ours=is_ours, tls=tls)
        self._stack.callback(server.stop)
        return server

    def keep(self, doors: Sequence[Any]) -> None:
        """Close them with the row."""
        for door in doors:
            self._stack.callback(door.close)

    def beside(self, *arguments: str) -> subprocess.Popen[str]:
        """A helper of `beside.py` in a process of its own, ready; it ends with its standard input."""
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("beside.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{arguments}: the helper did not start")
        return process


@contextmanager
def bench(*, quick: bool, transport: str) -> Iterator[Bench]:
    with private_home() as home, ExitStack() as stack:
        yield Bench(home, stack, quick=quick, transport=transport)

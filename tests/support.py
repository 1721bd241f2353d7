"""What integration tests share: a machine of one's own, real sessions, unmodified clients, waits for named
events.

A `Home` is an isolated environment (runtime, data, state, HOME, IPython below a temporary folder). Everything
started in it inherits a marker in its environment, by which `check_nothing_left` finds what a test left
running. No wait here lasts for a duration: each one is for an event, with a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_cmdop.client import calls, shapes
from jupyter_cmdop.client.errors import ClientError, KeeperGone, SpawnFailed, UnknownSession
from jupyter_cmdop.client.registry import Registry, remove_socket_dir
from jupyter_cmdop.client.session import Session

LIMIT_SECONDS = 30.0
"""No event of a healthy session takes so long, even on a loaded machine."""
MARKER = "CMDOP_TEST_HOME"
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[()][A-Za-z0-9]|\x1b[=>78]|[\x0e\x0f]")
_SAID = ("CMDOP_STATE_DIR", "CMDOP_GRANT_FILE", "JUPYTERHUB_USER", "XDG_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")


# ---------------------------------------------------------------------- the machine


@dataclass(frozen=True)
class Home:
    """An isolated environment; `os.environ` is set to it while it lives."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def runtime(self) -> Path:
        return self.root / "runtime"

    @property
    def user_home(self) -> Path:
        return self.root / "home"

    @property
    def ipython(self) -> Path:
        return self.root / "ipython"

    def session_dir(self, session_id: str) -> Path:
        return self.state / "sessions" / session_id

    def pointers(self) -> list[Path]:
        return sorted((self.runtime / "cmdop").glob("*-*.json"))

    def processes(self) -> list[psutil.Process]:
        """Every process that was started in this home and is still there, but not this one."""
        found = []
        for process in psutil.process_iter():
            if process.pid == os.getpid():
                continue
            try:
                if (
                    process.environ().get(MARKER) == str(self.root)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def socket_dirs(self) -> list[Path]:
        """The socket directories of this home's sessions that still exist."""
        found = []
        for config in (self.state / "sessions").glob("*/config.json"):
            sockets = Path(json.loads(config.read_bytes())["sockets"])
            if sockets.exists():
                found.append(sockets)
        return found

    def left(self) -> list[str]:
        """What is still there of sessions and processes, in words."""
        left = [f"process {p.pid}: {_command(p)}" for p in self.processes()]
        left += [f"sockets {path}" for path in self.socket_dirs()]
        left += [f"pointer {path.name}" for path in self.pointers()]
        return left

    def check_nothing_left(self) -> None:
        """Fail, and clear up, when a process, a socket directory or a pointer has stayed behind."""
        psutil.wait_procs(self.processes(), timeout=10)  # what is ending has a moment for it
        left = self.left()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for sockets in self.socket_dirs():
            remove_socket_dir(sockets)
        if left:
            pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@contextlib.contextmanager
def isolated_home(root: Path) -> Iterator[Home]:
    """Set `os.environ` to a home below `root`; check at the end that nothing is left of it."""
    made = Home(root)
    made.user_home.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in _SAID:
            patch.delenv(name, raising=False)
        for name, value in {
            MARKER: str(root),
            "HOME": str(made.user_home),
            "JUPYTER_RUNTIME_DIR": str(made.runtime),
            "JUPYTER_DATA_DIR": str(root / "data"),
            "CMDOP_STATE_DIR": str(made.state),
            "IPYTHONDIR": str(made.ipython),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
            "PYTHONWARNINGS": "",
            "NO_COLOR": "1",
        }.items():
            patch.setenv(name, value)
        try:
            yield made
        finally:
            made.check_nothing_left()


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:160]
    except psutil.Error:
        return "?"


# ---------------------------------------------------------------------- sessions


class Sessions:
    """Makes sessions in a home, and ends all of them."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._made: list[Session] = []
        self._count = 0

    def __call__(self, name: str | None = None, **options: Any) -> Session:
        """`Session.create` with a name of its own unless one is given."""
        self._count += 1
        try:
            made = Session.create(
                name or f"test-{os.getpid()}-{self._count}-{secrets.token_hex(3)}", **options
            )
        except SpawnFailed as error:
            error.add_note("\n".join(error.log))
            raise
        self._made.append(made)
        return made

    def close(self) -> None:
        """Close every session that is still there, whatever a test did to it, and wait for its end."""
        for session in self._made:
            session_id = session.id
            session.disconnect()
            end_session(self.home, session_id)
        self._made.clear()


def end_session(home: Home, session_id: str) -> None:
    """Close a session and wait until its keeper, sockets and pointer are gone."""
    found = None
    with contextlib.suppress(ClientError):
        found = Registry.of_user().resolve(session_id)
    pid = None if found is None or found.pointer is None else found.pointer.pid
    keeper = _process(pid)
    with contextlib.suppress(UnknownSession, KeeperGone):
        with Session.open(session_id) as session:
            session.close(force=True)
    if keeper is not None:
        _, alive = psutil.wait_procs([keeper], timeout=LIMIT_SECONDS)
        assert not alive, f"the keeper of {session_id} did not end"
    Registry.of_user().sweep()
    assert not (home.runtime / "cmdop" / f"{session_id}.json").exists()


def _process(pid: int | None) -> psutil.Process | None:
    try:
        return None if pid is None else psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


# ---------------------------------------------------------------------- waiting


class TooLate(AssertionError):
    """What was waited for did not happen within the limit."""


def wait_for_entry(
    session: Session | str,
    type: str | None = None,
    *,
    where: Callable[[dict[str, Any]], bool] | None = None,
    after: int = 0,
    limit_seconds: float = LIMIT_SECONDS,
    **fields: Any,
) -> dict[str, Any]:
    """Follow the journal until an entry matches (also one that is there already), and return it."""
    deadline = time.monotonic() + limit_seconds
    session_id = session if isinstance(session, str) else session.id

    def matches(entry: dict[str, Any]) -> bool:
        return (
            (type is None or entry["type"] == type)
            and all(entry.get(key) == value for key, value in fields.items())
            and (where is None or where(entry))
        )

    with Session.open(session_id) as link:
        with link.start(calls.log(after=after, follow=True)) as stream:
            while True:
                while (item := stream.take()) is not None:
                    entry = dict(item.data["entry"])
                    if matches(entry):
                        return entry
                if stream.is_ended:
                    stream.outcome()
                    raise TooLate(f"the journal ended without {type} {fields}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TooLate(f"no entry {type} {fields} within {limit_seconds} s")
                link.connection.pump(left)


def wait_for_status(
    session: Session, predicate: Callable[[shapes.Status], object], *, limit_seconds: float = LIMIT_SECONDS
) -> shapes.Status:
    """Look at the status whenever something was recorded, until `predicate` holds."""
    deadline = time.monotonic() + limit_seconds
    while True:
        status = session.status()
        if predicate(status):
            return status
        seq = status.journal.seq if status.journal else 0
        left = deadline - time.monotonic()
        if left <= 0:
            raise TooLate(f"the status stayed as it was: {status}")
        try:
            wait_for_entry(session, after=seq, limit_seconds=left)
        except TooLate as error:
            raise TooLate(f"the status stayed as it was: {session.status()}") from error


def wait_for_running(session: Session, actor: str | None = None) -> str:
    """Wait until something (of `actor`) runs; returns the operation."""

    def running(status: shapes.Status) -> bool:
        return any(actor in (None, op.actor) for op in status.running)

    status = wait_for_status(session, running)
    return next(op.operation for op in status.running if actor in (None, op.actor))


def journal(session: Session, *types: str, **options: Any) -> list[dict[str, Any]]:
    """All entries so far (of these types), oldest first."""
    return list(session.log(types=types or None, **options))


def all_bytes(directory: Path) -> dict[str, bytes]:
    """Every file below a directory: name -> raw bytes."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


class Gate:
    """Holds a cell at a place that the test decides: `code` waits there until `open()`, and can be interrupted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        os.mkfifo(path)
        # Held open for writing from the start of the test to its end, so that no order of opening can block.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def code(self) -> str:
        """Python that waits; it says `waiting` on stdout first."""
        return f"print('waiting', flush=True); open({str(self._path)!r}, 'rb', buffering=0).read(1)"

    def open(self, cells: int = 1) -> None:
        """Let so many waiting cells (now or later) go on."""
        os.write(self._descriptor, b"." * cells)

    def close(self) -> None:
        self.open(64)
        os.close(self._descriptor)


# ---------------------------------------------------------------------- clients


def invite_client(
    session: Session,
    actor: str | None = "bot",
    *,
    ready: bool = True,
    client_session: str | None = None,
    **options: Any,
) -> BlockingKernelClient:
    """Invite `actor` and connect an unmodified client; `client.cmdop_invite` is the invitation."""
    invited = session.invite(actor, **options)
    assert invited.connection_file is not None
    client = connect_client(invited.connection_file, ready=ready, client_session=client_session)
    client.cmdop_invite = invited  # type: ignore[attr-defined]
    return client


def connect_client(
    connection_file: str | Path,
    *,
    ready: bool = True,
    client_session: str | None = None,
    username: str | None = None,
) -> BlockingKernelClient:
    """An unmodified client on a connection file."""
    client = BlockingKernelClient(connection_file=str(connection_file))
    client.load_connection_file()
    if client_session is not None:
        client.session.session = client_session
    if username is not None:
        client.session.username = username
    client.start_channels()
    if ready:
        try:
            client.wait_for_ready(timeout=LIMIT_SECONDS)
        except BaseException:
            client.stop_channels()
            raise
    return client


class Clients:
    """Makes unmodified clients, and stops all of them."""

    def __init__(self) -> None:
        self._made: list[BlockingKernelClient] = []

    def __call__(self, session: Session, actor: str | None = "bot", **options: Any) -> BlockingKernelClient:
        return self.add(invite_client(session, actor, **options))

    def add(self, client: BlockingKernelClient) -> BlockingKernelClient:
        self._made.append(client)
        return client

    def again(self, client: BlockingKernelClient, **options: Any) -> BlockingKernelClient:
        """A second client on the same connection file."""
        return self.add(connect_client(client.cmdop_invite.connection_file, **options))  # type: ignore[attr-defined]

    def close(self) -> None:
        for client in self._made:
            client.stop_channels()
        self._made.clear()


def reply_of(
    client: BlockingKernelClient, msg_id: str, *, limit_seconds: float = LIMIT_SECONDS
) -> dict[str, Any]:
    """The shell reply to one request; other replies on the way are kept for their own askers."""
    return _answer(client.get_shell_msg, _kept(client, "shell"), msg_id, limit_seconds)


def control_reply_of(
    client: BlockingKernelClient, msg_id: str, *, limit_seconds: float = LIMIT_SECONDS
) -> dict[str, Any]:
    return _answer(client.get_control_msg, _kept(client, "control"), msg_id, limit_seconds)


def _kept(client: BlockingKernelClient, channel: str) -> dict[str, dict[str, Any]]:
    store: dict[str, dict[str, dict[str, Any]]] = client.__dict__.setdefault("_kept_replies", {})
    return store.setdefault(channel, {})


def _answer(
    get: Callable[..., dict[str, Any]], kept: dict[str, dict[str, Any]], msg_id: str, limit_seconds: float
) -> dict[str, Any]:
    deadline = time.monotonic() + limit_seconds
    while msg_id not in kept:
        try:
            message = get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty as error:
            raise TooLate(f"no reply to {msg_id} within {limit_seconds} s") from error
        kept[message["parent_header"]["msg_id"]] = message
    return kept.pop(msg_id)


def iopub_until(
    client: BlockingKernelClient,
    predicate: Callable[[dict[str, Any]], object],
    *,
    limit_seconds: float = LIMIT_SECONDS,
) -> list[dict[str, Any]]:
    """What the client sees on iopub up to and including the first message for which `predicate` holds."""
    deadline = time.monotonic() + limit_seconds
    seen: list[dict[str, Any]] = []
    while not seen or not predicate(seen[-1]):
        try:
            seen.append(client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic())))
        except queue.Empty as error:
            kinds = [(m["msg_type"], m["content"].get("execution_state", "")) for m in seen[-20:]]
            raise TooLate(f"iopub brought only {kinds} within {limit_seconds} s") from error
    return seen


def is_idle_of(msg_id: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a message is the idle that ends request `msg_id`."""
    return lambda m: (
        m["msg_type"] == "status"
        and m["content"]["execution_state"] == "idle"
        and m["parent_header"].get("msg_id") == msg_id
    )


def is_stream_of(msg_id: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a message is text that cell `msg_id` printed: then it runs in the kernel, and can be interrupted."""
    return lambda m: m["msg_type"] == "stream" and m["parent_header"].get("msg_id") == msg_id


def flush(client: BlockingKernelClient) -> list[dict[str, Any]]:
    """Everything that reached this client before now: up to the idle of a question that the keeper answers."""
    msg_id = client.kernel_info()
    reply_of(client, msg_id)
    return iopub_until(client, is_idle_of(msg_id))


def request(
    client: BlockingKernelClient,
    msg_type: str,
    content: dict[str, Any],
    *,
    channel: str = "shell",
    metadata: dict[str, Any] | None = None,
    header: dict[str, Any] | None = None,
    buffers: list[bytes] | None = None,
    msg_id: str | None = None,
) -> str:
    """Send a message as a stock client does, with what a stock client would let a person add; returns its id."""
    message = client.session.msg(msg_type, content, metadata=metadata)
    message["header"].update(header or {})
    if msg_id is not None:
        message["msg_id"] = message["header"]["msg_id"] = msg_id
    socket = getattr(client, f"{channel}_channel").socket
    client.session.send(socket, message, buffers=buffers)
    return str(message["header"]["msg_id"])


def execute_request(code: str, **changes: Any) -> dict[str, Any]:
    """Content of an execute_request as `KernelClient.execute` makes it."""
    return {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": True,
        "stop_on_error": True,
        **changes,
    }


def text_of(messages: list[dict[str, Any]], msg_id: str | None = None) -> str:
    """The text that streams and results brought (for one request)."""
    parts = []
    for message in messages:
        if msg_id is not None and message["parent_header"].get("msg_id") != msg_id:
            continue
        if message["msg_type"] == "stream":
            parts.append(message["content"]["text"])
        elif message["msg_type"] in ("execute_result", "display_data"):
            parts.append(message["content"]["data"]["text/plain"])
    return "".join(parts)


# ---------------------------------------------------------------------- a client in a process of its own

_AGENT = r"""
import json, queue, sys, threading
from jupyter_client.blocking.client import BlockingKernelClient

client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=30)
lock = threading.Lock()

def say(**event):
    with lock:
        print(json.dumps(event), flush=True)

def watch(channel, get):
    while True:
        try:
            m = get(timeout=1)
        except queue.Empty:
            continue
        except Exception:
            return
        say(channel=channel, type=m["msg_type"], parent=m["parent_header"].get("msg_id"), content=m["content"])

for channel in ("shell", "iopub", "stdin"):
    threading.Thread(target=watch, args=(channel, getattr(client, f"get_{channel}_msg")), daemon=True).start()
say(event="ready", session=client.session.session)
for line in sys.stdin:
    todo = json.loads(line)
    if "code" in todo:
        say(event="sent", id=client.execute(todo["code"], allow_stdin=todo.get("allow_stdin", False)))
    elif "input" in todo:
        client.input(todo["input"])
client.stop_channels()
"""


class AgentProcess:
    """An unmodified client in a process of its own, which can be frozen and killed."""

    def __init__(self, connection_file: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AGENT, str(connection_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._seen: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, name="agent events", daemon=True)
        self._reader.start()
        self.session = str(self.event(event="ready")["session"])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def event(self, *, limit_seconds: float = LIMIT_SECONDS, **fields: Any) -> dict[str, Any]:
        """The next event with these fields; earlier ones that nobody asked for are kept."""
        deadline = time.monotonic() + limit_seconds
        while True:
            for index, event in enumerate(self._seen):
                if all(event.get(key) == value for key, value in fields.items()):
                    return self._seen.pop(index)
            try:
                event_or_end = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty as error:
                raise TooLate(f"the agent said nothing of {fields}; it said {self._seen}") from error
            assert event_or_end is not None, f"the agent ended without {fields}"
            self._seen.append(event_or_end)

    def execute(self, code: str, *, allow_stdin: bool = False) -> str:
        """Send a cell; returns its message id without waiting for the kernel."""
        self._tell(code=code, allow_stdin=allow_stdin)
        return str(self.event(event="sent")["id"])

    def send(self, code: str) -> None:
        """Hand over a cell without waiting for the process to send it: it may be frozen."""
        self._tell(code=code)

    def reply(self, msg_id: str, *, limit_seconds: float = LIMIT_SECONDS) -> dict[str, Any]:
        found = self.event(channel="shell", parent=msg_id, limit_seconds=limit_seconds)
        return dict(found["content"])

    def input(self, text: str) -> None:
        self._tell(input=text)

    def _tell(self, **todo: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(todo) + "\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        """Stop the process, and return when the system says that it stands still."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait(LIMIT_SECONDS)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self._reader.join(LIMIT_SECONDS)
        self.process.stdout.close()


# ---------------------------------------------------------------------- a person in a terminal


class Console:
    """`jupyter console --existing FILE` (or another full-screen program) in a real pty."""

    def __init__(self, command: list[str], *, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._limit = limit_seconds
        self._text = ""
        self.child = pexpect.spawn(
            command[0],
            command[1:],
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(40, 200),
            timeout=limit_seconds,
            # Without it prompt_toolkit waits for a terminal's answer that no terminal gives here.
            env={**os.environ, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"},
        )

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until `pattern` is on the screen, escape sequences aside; what is before it is gone afterwards."""
        deadline = time.monotonic() + self._limit
        while (found := re.search(pattern, _plain(self._text))) is None:
            left = deadline - time.monotonic()
            try:
                self._text += self.child.read_nonblocking(4096, max(0.01, left))
            except (pexpect.TIMEOUT, pexpect.EOF) as error:
                raise TooLate(
                    f"no {pattern!r} on the screen, which shows {_plain(self._text)[-2000:]!r}"
                ) from error
        self._text = _plain(self._text)[found.end() :]
        return found

    def type(self, line: str) -> None:
        """Type a line and Enter, as a terminal sends it."""
        self.child.send(line + "\r")

    def run(self, line: str) -> None:
        """Type a line at the next prompt."""
        self.expect(r"In \[\d+\]: ")
        self.type(line)

    def ended(self) -> int:
        """Wait for its end; the exit status."""
        self.child.expect(pexpect.EOF, timeout=self._limit)
        self.child.close()
        return int(self.child.exitstatus or 0)

    def close(self) -> None:
        self.child.close(force=True)


def _plain(text: str) -> str:
    return _ANSI.sub("", text).replace("\r", "")


def open_console(connection_file: str | Path, *arguments: str) -> Console:
    """A person's stock console on a connection file, at its first prompt."""
    return Console(["jupyter", "console", "--existing", str(connection_file), *arguments])


# ---------------------------------------------------------------------- the command line


@dataclass(frozen=True)
class CliResult:
    """What a verb printed; `data` is its JSON, `lines` one JSON object a line."""

    code: int
    out: str
    err: str
    command: tuple[str, ...] = ()

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def start_cli(
    *arguments: str, env: Mapping[str, str] | None = None, json_output: bool = True
) -> subprocess.Popen[str]:
    """Start a verb and do not wait for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "jupyter_cmdop.cli", *arguments, *(["--json"] if json_output else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )


def finish_cli(process: subprocess.Popen[str], *, input: str | None = None) -> CliResult:
    """Wait for a verb."""
    try:
        out, err = process.communicate(input, timeout=LIMIT_SECONDS * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise TooLate(f"{process.args!r} did not end; it said {out!r} {err!r}") from None
    return CliResult(process.returncode, out, err, tuple(map(str, process.args)))  # type: ignore[arg-type]


def run_cli(
    *arguments: str,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    json_output: bool = True,
    code: int | None = 0,
) -> CliResult:
    """Run a verb with --json and wait; its exit code must be `code` unless that is None."""
    result = finish_cli(start_cli(*arguments, env=env, json_output=json_output), input=input)
    assert code is None or result.code == code, (
        f"{arguments} gave {result.code}: {result.out!r} {result.err!r}"
    )
    return result


# ---------------------------------------------------------------------- fixtures (import them in a conftest)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """An isolated environment for a module's tests; at its end nothing of it may be left."""
    with isolated_home(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture
def session(home: Home) -> Iterator[Sessions]:
    """Makes sessions (`session(policy="turns")`) and closes them; nothing of them may be left."""
    made = Sessions(home)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def module_session(home: Home) -> Iterator[Sessions]:
    """As `session`, for sessions that the tests of a module share."""
    made = Sessions(home)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Makes unmodified clients (`clients(session, "bot")`) and stops them."""
    made = Clients()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate that is opened at the end, so that no cell stays behind it."""
    made = Gate(tmp_path / "gate")
    try:
        yield made
    finally:
        made.close()


@dataclass
class Closing:
    """Closes what a test opened."""

    things: list[Any] = field(default_factory=list)

    def __call__(self, thing: Any) -> Any:
        self.things.append(thing)
        return thing


@pytest.fixture
def closing() -> Iterator[Closing]:
    """`closing(x)` returns x and calls x.close() at the end."""
    made = Closing()
    try:
        yield made
    finally:
        for thing in reversed(made.things):
            thing.close()


__all__ = [
    "AgentProcess",
    "CliResult",
    "Clients",
    "Console",
    "Gate",
    "Home",
    "Sessions",
    "TooLate",
    "all_bytes",
    "clients",
    "closing",
    "connect_client",
    "control_reply_of",
    "end_session",
    "execute_request",
    "finish_cli",
    "flush",
    "gate",
    "home",
    "invite_client",
    "iopub_until",
    "is_idle_of",
    "is_stream_of",
    "isolated_home",
    "journal",
    "module_session",
    "open_console",
    "reply_of",
    "request",
    "run_cli",
    "session",
    "start_cli",
    "text_of",
    "wait_for_entry",
    "wait_for_running",
    "wait_for_status",
]

"""Another Unix user of the same machine: no door opens, no file is readable, nothing is noticed by the session."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from jupyter_cmdop.client import places
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import (
    as_nobody,
    call_cli,
    is_root,
    keeper_of,
    kernel_of,
    link_path,
    pointer_of,
    wait_until,
)
from tests.support import (
    Clients,
    Gate,
    Home,
    Sessions,
    iopub_until,
    is_idle_of,
    is_stream_of,
    journal,
    reply_of,
    text_of,
)

pytestmark = pytest.mark.skipif(not is_root(), reason="only root may become another user")


def _outcome(act: object) -> str:
    """The name of the error that an attempt ends with; "done" when it does not."""
    assert callable(act)
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.connect(path)
        attempt.sendall(b"hello")


def test_no_socket_can_be_reached_and_no_file_read(home: Home, lone_session: Session) -> None:
    """Not the link, not a grant's endpoints, not the kernel's own; not by knowing every path."""
    lone_session.invite("guest")
    sockets = Path(pointer_of(home, lone_session.id)["sockets"])
    paths = [p for top in (home.state, home.runtime / "cmdop", sockets) for p in (top, *top.rglob("*"))]
    doors = [str(p) for p in paths if p.is_socket()]
    files = [p for p in paths if p.is_file()]
    folders = [p for p in paths if p.is_dir()]
    assert len(doors) >= 11  # the link, five of the grant, five of the kernel
    assert any("journal" in p.name for p in files)
    assert any("session.json" in p.name for p in files)

    def attack() -> dict[str, str]:
        found = {door: _outcome(lambda door=door: _connect(door)) for door in doors}
        found |= {str(p): _outcome(p.read_bytes) for p in files}
        found |= {str(p): _outcome(lambda p=p: os.listdir(p)) for p in folders}
        found |= {f"{p}/new": _outcome((p / "new").touch) for p in folders}
        return found

    outcomes = as_nobody(attack)
    assert {path: outcome for path, outcome in outcomes.items() if outcome != "PermissionError"} == {}
    assert lone_session.run("1").status == "ok"
    assert journal(lone_session, "refused") == []


@pytest.fixture
def own_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket root that no other test uses while its modes are wrong."""
    parent = Path(tempfile.mkdtemp(prefix="cmdop-", dir="/tmp"))
    parent.chmod(0o755)
    monkeypatch.setattr(places, "SOCKET_PARENT", parent)
    yield places.socket_root()
    shutil.rmtree(parent)


def test_an_open_directory_still_lets_nobody_in(home: Home, own_root: Path, session: Sessions) -> None:
    """The second line: when the directory is opened by mistake, the link's own mode and the peer check remain."""
    made = session()
    link = Path(link_path(home, made))
    assert link.is_relative_to(own_root)
    root, folder = places.socket_root(), link.parent
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, folder, link)}
    try:
        root.chmod(0o711)
        folder.chmod(0o755)
        assert as_nobody(lambda: _outcome(lambda: _connect(str(link)))) == "PermissionError"
        link.chmod(0o666)

        def say() -> bytes:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
                attempt.settimeout(10)
                attempt.connect(str(link))
                try:
                    attempt.sendall(b"\x00" * 100)
                    return attempt.recv(1000)
                except ConnectionError:
                    return b""

        assert as_nobody(say) == b""
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert made.run("1").status == "ok"


KINDS = {"shell": zmq.DEALER, "control": zmq.DEALER, "stdin": zmq.DEALER, "iopub": zmq.SUB, "hb": zmq.REQ}
HANDSHAKE = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)
MESSAGE = [
    b"<IDS|MSG>",
    b"",
    b'{"msg_type": "execute_request", "msg_id": "m"}',
    b"{}",
    b"{}",
    b'{"code": "1"}',
]


def _knock(
    address: str, kind: int, keys: tuple[bytes, bytes, bytes] | None, identity: bytes
) -> dict[str, Any]:
    """Connect, say something where one can, and listen: how the handshake went, and whether anything was heard."""
    context = zmq.Context()
    knocking = context.socket(kind)
    knocking.linger = 0
    knocking.identity = identity
    if keys is not None:
        knocking.curve_serverkey, knocking.curve_publickey, knocking.curve_secretkey = keys
    monitor = knocking.get_monitor_socket(HANDSHAKE)
    knocking.connect(address)
    if kind == zmq.SUB:
        knocking.subscribe(b"")
    else:
        knocking.send_multipart(MESSAGE if kind == zmq.DEALER else [b"ping"], flags=zmq.NOBLOCK)
    ended = []
    while not ended and monitor.poll(10_000):
        ended.append(parse_monitor_message(monitor.recv_multipart())["event"])
    heard = knocking.poll(200)
    knocking.disable_monitor()
    monitor.close(0)
    knocking.close(0)
    context.term()
    return {"let in": zmq.EVENT_HANDSHAKE_SUCCEEDED in ended, "ended": bool(ended), "heard": heard}


def test_no_port_of_a_grant_lets_another_user_in(lone_session: Session, clients: Clients, gate: Gate) -> None:
    """TCP is open to every user of the machine: the connection's keypair lets in, on each of the five ports.

    With no keys, with keys of one's own, and under the identity of the client that is there, while that one works.
    """
    bot = clients(lone_session, "far", transport="tcp")
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"
    info = bot.get_connection_info()
    server_key = info["curve_publickey"].encode()
    grant = bot.cmdop_invite.grant  # type: ignore[attr-defined]
    after = journal(lone_session)[-1]["seq"]
    sent = bot.execute(gate.code + "; print('the victim')")
    iopub_until(bot, is_stream_of(sent))

    def attack() -> dict[str, Any]:
        found = {}
        for channel, kind in KINDS.items():
            address = f"tcp://{info['ip']}:{info[f'{channel}_port']}"
            found[f"{channel}, no keys"] = _knock(address, kind, None, b"mine")
            own = (server_key, *zmq.curve_keypair())
            found[f"{channel}, own keys"] = _knock(address, kind, own, b"mine")
            found[f"{channel}, as the client"] = _knock(address, kind, own, bot.session.bsession)
        return found

    outcomes = as_nobody(attack)
    assert len(outcomes) == 15
    assert {name for name, o in outcomes.items() if o["let in"] or o["heard"]} == set()
    assert {name for name, o in outcomes.items() if not o["ended"]} == set(), (
        "each was turned away, not ignored"
    )
    gate.open()
    assert reply_of(bot, sent)["content"]["status"] == "ok"
    assert "the victim" in text_of(iopub_until(bot, is_idle_of(sent)), sent)
    assert reply_of(bot, bot.execute("2"))["content"]["status"] == "ok"
    entries = [e for e in journal(lone_session, after=after) if e.get("grant") == grant]
    assert [e["data"]["code"] for e in entries if e["type"] == "admitted"][1:] == ["2"]
    assert {e["type"] for e in entries} <= {"admitted", "delivered", "ended"}


def test_raw_bytes_on_a_port_of_a_grant_get_no_more_than_a_greeting(
    lone_session: Session, clients: Clients
) -> None:
    """What libzmq says to anybody is its version and that it wants CurveZMQ; nothing of the session is in it."""
    bot = clients(lone_session, "far-raw", transport="tcp")
    info = bot.get_connection_info()

    def read(port: int, said: bytes) -> bytes:
        heard = b""
        with socket.socket() as raw:  # not create_connection: it would import, which this user may not
            raw.connect((info["ip"], port))
            raw.settimeout(0.3)
            try:
                raw.sendall(said)
                while more := raw.recv(1000):
                    heard += more
            except OSError:
                pass
        return heard

    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + bytes(32)

    def attack() -> dict[str, bytes]:
        return {
            f"{channel} {said[:4]!r}": read(info[f"{channel}_port"], said)
            for channel in KINDS
            for said in (b"", b"GET / HTTP/1.0\r\n\r\n", greeting, bytes(range(256)) * 40)
        }

    for name, heard in as_nobody(attack).items():
        assert len(heard) <= 64, name
        rest = heard[10:].replace(b"CURVE", b"").strip(b"\x00")
        assert len(rest) <= 3, (name, heard)  # the version, and who is the server
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"


def test_another_user_sees_none_of_our_sessions(home: Home, lone_session: Session, tmp_path: Path) -> None:
    call_cli("ls")
    tmp_path.chmod(0o777)
    env = {"JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"), "CMDOP_STATE_DIR": str(tmp_path / "state")}
    assert as_nobody(lambda: call_cli("ls", env=env)).data == []
    past = as_nobody(lambda: call_cli("ls", "--all", env=env, code=1))  # this says that it cannot know
    assert "cannot be read (Permission denied)" in past.err
    peeking = as_nobody(lambda: call_cli("ls", code=None, json_output=False))
    assert (peeking.code, lone_session.name in peeking.out) in ((1, False), (0, False))
    assert as_nobody(lambda: call_cli("run", lone_session.name, "1", code=None)).code in (1, 4)


def test_another_user_cannot_end_the_keeper(home: Home, lone_session: Session) -> None:
    pid = keeper_of(home, lone_session).pid
    assert as_nobody(lambda: _outcome(lambda: os.kill(pid, 9))) == "PermissionError"
    assert lone_session.status().state == "open"


def _listening(process: psutil.Process) -> list[str]:
    """Doors that no directory guards: ports, and Unix sockets that have no file."""
    found = [f"port {c.laddr}" for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    inodes = {
        os.readlink(entry).removeprefix("socket:[").rstrip("]")
        for entry in Path(f"/proc/{process.pid}/fd").iterdir()
        if os.path.lexists(entry) and os.readlink(entry).startswith("socket:[")
    }
    for line in Path(f"/proc/{process.pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and len(fields) > 7 and fields[7].startswith("@"):
            found.append(fields[7])
    return found


def test_there_is_no_door_without_a_file(home: Home, session: Sessions, clients: Clients) -> None:
    """Directories guard what has a path. A port is opened for an invitation that asks for it, and goes with it."""
    made = session()
    bot = clients(made, "bot")
    reply_of(bot, bot.execute("1"))
    keeper, kernel = keeper_of(home, made), kernel_of(made)
    assert (_listening(keeper), _listening(kernel)) == ([], [])
    far = made.invite("far", transport="tcp")
    assert len(_listening(keeper)) == 5
    assert all("127.0.0.1" in door for door in _listening(keeper))
    made.revoke(far.grant)
    wait_until(lambda: _listening(keeper) == [], "its ports are closed")


def test_what_forked_children_print_needs_no_port(session: Sessions, clients: Clients) -> None:
    """ipykernel's own pipe for it is a TCP port, which any user can reach; ours is a socket in our directory."""
    made = session()
    forking = (
        "import multiprocessing, os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    print('of a fork', flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "child = multiprocessing.get_context('fork').Process(target=lambda: print('of multiprocessing', flush=True))\n"
        "child.start(); child.join()"
    )
    bot = clients(made, "bot")
    for incarnation in (1, 2):
        sent = bot.execute(forking)
        missing = {"of a fork", "of multiprocessing"}
        while missing:
            shown = iopub_until(bot, is_stream_of(sent))[-1]["content"]["text"]
            missing = {text for text in missing if text not in shown}
        assert _listening(kernel_of(made)) == []
        if incarnation == 1:
            made.restart()

"""Another Unix user of the same machine: no door opens, no file is readable, nothing is noticed by the session."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from jupyter_cmdop.client import places
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import as_nobody, call_cli, is_root, keeper_of, link_path, pointer_of
from tests.support import Clients, Home, Sessions, journal, reply_of

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


def test_an_endpoint_on_tcp_wants_its_key(lone_session: Session, clients: Clients) -> None:
    """TCP is open to every user of the machine: the connection's keypair is what lets in."""
    bot = clients(lone_session, "far", transport="tcp")
    assert reply_of(bot, bot.execute("1"))["content"]["status"] == "ok"
    info = bot.get_connection_info()

    def listen() -> int:
        context = zmq.Context()
        subscriber = context.socket(zmq.SUB)
        subscriber.subscribe(b"")
        subscriber.connect(f"tcp://{info['ip']}:{info['iopub_port']}")
        heard = subscriber.poll(500)
        subscriber.close(0)
        context.term()
        return heard

    def with_other_keys() -> int:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        public, secret = zmq.curve_keypair()
        dealer.curve_publickey, dealer.curve_secretkey = public, secret
        dealer.curve_serverkey = info["curve_publickey"].encode()
        dealer.connect(f"tcp://{info['ip']}:{info['shell_port']}")
        dealer.send_multipart([b"<IDS|MSG>", b"", b"{}", b"{}", b"{}", b"{}"])
        answered = dealer.poll(500)
        dealer.close(0)
        context.term()
        return answered

    assert as_nobody(listen) == 0
    assert as_nobody(with_other_keys) == 0
    assert reply_of(bot, bot.execute("2"))["content"]["status"] == "ok"
    assert [e for e in journal(lone_session, "refused") if e["grant"] == bot.cmdop_invite.grant] == []  # type: ignore[attr-defined]


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

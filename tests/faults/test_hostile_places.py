"""Directories and files under a careless umask, and places that somebody has prepared: private, or a clear refusal."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client import places
from jupyter_cmdop.client.errors import ClientError, PlaceError
from jupyter_cmdop.client.registry import Registry
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import NOBODY, call_cli, is_root, null_spec, pointer_of
from tests.server.jupyter import Servers, end_all_sessions
from tests.support import Clients, Closing, Home, Sessions, journal, reply_of

PREPARED = ["link", "open to others", "foreign", "a file"]
needs_root = pytest.mark.skipif(not is_root(), reason="only root may give a directory to somebody else")


@pytest.fixture(params=[0o000, 0o022], ids=["umask 0", "umask 022"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def too_open(*tops: Path) -> dict[str, str]:
    """What is below (or is) one of `tops` and is open to anybody but its owner: path -> mode."""
    found = {}
    for path in [p for top in tops for p in (top, *top.rglob("*"))]:
        facts = path.lstat()
        if facts.st_mode & 0o077 and not stat.S_ISLNK(facts.st_mode):
            found[str(path)] = stat.filemode(facts.st_mode)
    return found


def test_everything_of_a_session_is_private(
    home: Home, umask: int, session: Sessions, clients: Clients
) -> None:
    """Each file, directory and socket: of the session, the kernel, a grant; also what a restart makes."""
    made = session(setup="1")
    bot = clients(made, "bot")
    clients(made, "far", transport="tcp")
    reply_of(bot, bot.execute("print('x' * 200_000)"))
    sockets = Path(pointer_of(home, made.id)["sockets"])
    for incarnation in (1, 2):
        assert made.status().incarnation == incarnation
        doors = [path for path in sockets.rglob("*") if path.is_socket()]
        assert len(doors) >= 11  # the link, five of the grant, five of the kernel
        assert too_open(home.state, home.runtime / "cmdop", sockets, places.socket_root()) == {}
        if incarnation == 1:
            made.restart()
    made.close(force=True)
    assert too_open(home.state) == {}


def test_code_in_a_kernel_has_the_umask_of_its_user(
    home: Home, umask: int, session: Sessions, tmp_path: Path
) -> None:
    """The keeper's own umask is strict; a file that a notebook writes has the mode that it has without us."""
    made = session()
    for incarnation in (1, 2):
        path = tmp_path / f"by-a-cell-{incarnation}"
        assert made.run(f"open({str(path)!r}, 'w').close()").status == "ok"
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
        if incarnation == 1:
            made.restart()


def test_everything_of_the_server_extension_is_private(home: Home, umask: int, closing: Closing) -> None:
    """Its workspace, its notebook sessions, its websockets' credentials."""
    servers = Servers(home)
    try:
        server = servers()
        kernel = server.open_notebook("a.ipynb")["kernel"]["id"]
        socket = closing(server.connect(kernel))
        socket.execute("1")
        socket.until(lambda m: m["header"]["msg_type"] == "execute_reply")
        sockets = Path(pointer_of(home, kernel)["sockets"])
        assert (home.state / "workspaces").is_dir()
        assert too_open(home.state, home.runtime / "cmdop", sockets) == {}
    finally:
        servers.close()
        end_all_sessions(home)


# ---------------------------------------------------------------------- prepared by somebody


def prepare(path: Path, how: str) -> Path:
    """Put something of somebody else's where a directory of ours would be; returns what must stay as it is."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    elsewhere = Path(tempfile.mkdtemp(prefix="cmdop-test-", dir=path.parent.parent))
    if how == "link":
        path.symlink_to(elsewhere)
    elif how == "open to others":
        path.mkdir()
        path.chmod(0o777)
    elif how == "foreign":
        path.mkdir(mode=0o700)
        os.chown(path, NOBODY, NOBODY)
    else:
        path.touch()
    return elsewhere if how == "link" else path


WORDS = {
    "link": "symbolic link",
    "open to others": "others may look into it",
    "foreign": f"belongs to user id {NOBODY}",
    "a file": "not a directory",
}


@pytest.fixture
def alone(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Places of one's own, in which nothing has been made yet."""
    sockets = Path(tempfile.mkdtemp(prefix="cmdop-", dir="/tmp"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "top" / "runtime"))
    monkeypatch.setenv("CMDOP_STATE_DIR", str(tmp_path / "top" / "state"))
    monkeypatch.setattr(places, "SOCKET_PARENT", sockets)
    yield tmp_path / "top"
    shutil.rmtree(sockets)


PLACES = {
    "sockets": places.socket_root,
    "pointers": places.pointers_dir,
    "state": lambda: Path(os.environ["CMDOP_STATE_DIR"]),
    "sessions": places.sessions_dir,
}


@needs_root
@pytest.mark.parametrize("how", PREPARED)
@pytest.mark.parametrize("place", PLACES)
def test_a_prepared_place_is_refused(alone: Path, place: str, how: str) -> None:
    """No session begins there, the refusal names the place, what it is and the way out, and nothing is left."""
    path = PLACES[place]()
    if (place, how) == ("state", "link"):
        pytest.skip("CMDOP_STATE_DIR may be a link: its user chose it")
    kept = prepare(path, how)
    refused = call_cli("new", "mine", code=None, json_output=False)
    assert refused.code == 1
    assert str(path) in refused.err
    assert WORDS[how] in refused.err
    assert "next:" in refused.err
    assert "Traceback" not in refused.err
    assert kept.is_file() or list(kept.iterdir()) == []
    assert not [p for p in alone.rglob("*.json") if p.parent.name != "kernels"]
    assert not [p for p in places.SOCKET_PARENT.rglob("*") if p != places.socket_root() and p.parent != kept]


@needs_root
@pytest.mark.parametrize("how", ["foreign", "open to others", "link"])
def test_records_in_a_prepared_place_are_not_believed(alone: Path, how: str) -> None:
    """Somebody else's story about our past sessions is not shown as ours."""
    path = places.sessions_dir()
    kept = prepare(path, how)
    forged = kept / "0b0cf1f4-7c4e-4f0e-9a56-0a4c5d3b1e2f"
    forged.mkdir()
    (forged / "session.json").write_text(
        '{"id": "0b0cf1f4-7c4e-4f0e-9a56-0a4c5d3b1e2f", "name": "forged", "state": "closed"}'
    )
    for verb in (("status", "forged"), ("log", "forged"), ("verify", "forged")):
        refused = call_cli(*verb, code=None, json_output=False)
        assert refused.code in (1, 4)
        assert str(path) in refused.err
        assert WORDS[how] in refused.err


def test_a_place_too_long_for_a_socket_is_refused(
    alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir(mode=0o700)
    monkeypatch.setattr(places, "SOCKET_PARENT", long)
    refused = call_cli("new", "mine", code=None, json_output=False)
    assert refused.code == 1
    assert "too long for a Unix socket" in refused.err
    assert "next:" in refused.err
    assert Registry.of_user().list_pointers() == []
    assert [p for p in long.rglob("*") if p != places.socket_root()] == []


def test_a_state_directory_too_long_for_the_system_is_refused(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMDOP_STATE_DIR", str(alone / ("x" * 300)))
    refused = call_cli("new", "mine", code=None, json_output=False)
    assert refused.code == 1
    assert "File name too long" in refused.err
    assert "CMDOP_STATE_DIR" in refused.err


@needs_root
@pytest.mark.parametrize("how", ["link", "open to others", "foreign"])
@pytest.mark.parametrize("place", ["pointers", "connection files"])
def test_a_place_that_comes_back_as_somebody_elses_gets_no_secret(
    home: Home, session: Sessions, place: str, how: str
) -> None:
    """A runtime directory may go at logout; whoever makes it anew must not be given connection files."""
    made = session(kernel=null_spec(home))
    with Session.open(made.id) as link:
        link.status()
        pointers = home.runtime / "cmdop"
        path = pointers if place == "pointers" else pointers / made.id
        aside = home.root / f"aside-{made.id}"
        path.rename(aside)
        kept = prepare(path, how)
        try:
            with pytest.raises(ClientError) as refused:
                link.invite("guest")
            assert "others could read or replace it" in str(refused.value)
            assert str(path) in str(refused.value)
            assert list(kept.iterdir()) == []
            assert [e["actor"] for e in journal(made, "revoked")] == ["keeper"]
            assert link.run("say on").text == "on\n"
        finally:
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
            shutil.rmtree(kept, ignore_errors=True)
            aside.rename(path)


def test_private_dir_refuses_what_the_command_line_shows(alone: Path) -> None:
    """The same check is behind every place: its error names path, problem and advice."""
    places.private_dir(alone)
    (alone / "x").mkdir(mode=0o755)
    (alone / "x").chmod(0o755)
    with pytest.raises(PlaceError) as caught:
        places.private_dir(alone / "x")
    assert (caught.value.path, bool(caught.value.problem), bool(caught.value.advice)) == (
        str(alone / "x"),
        True,
        True,
    )


@needs_root
@pytest.mark.parametrize("how", ["link", "open to others", "foreign"])
def test_a_socket_directory_that_comes_back_as_somebody_elses_gets_no_kernel(
    home: Home, session: Sessions, how: str
) -> None:
    """A temporary directory may be cleaned, and made anew by anybody: no kernel listens there."""
    made = session(kernel=null_spec(home))
    path = Path(pointer_of(home, made.id)["sockets"])
    aside = path.with_name(f"{path.name}-aside")
    with Session.open(made.id) as link:
        link.status()
        path.rename(aside)
        kept = prepare(path, how)
        try:
            with pytest.raises(ClientError) as refused:
                link.restart()
            assert "not a directory of this user alone" in str(refused.value)
            assert str(path) in str(refused.value)
            assert list(kept.iterdir()) == []
        finally:
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
            shutil.rmtree(kept, ignore_errors=True)
            aside.rename(path)

"""Files and directories that are damaged, missing or not ours alone: said in words, with the fix, and no harm done."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.client import places
from jupyter_cmdop.client.session import Session
from tests.faults.attacks import as_nobody, call_cli, is_root, link_path, pointer_of
from tests.support import Home, Sessions, connect_client, end_session, reply_of

root_only = pytest.mark.skipif(
    not is_root(), reason="only root may give a file to another user, or become one"
)


# ---------------------------------------------------------------------- damaged files of a session


@pytest.fixture(scope="module")
def past(home: Home, module_session: Sessions) -> tuple[str, str, Path]:
    """A closed session with a record: its name, id and directory."""
    made = module_session("past")
    made.run("print('kept')")
    made.run("6 * 7")
    name, session_id = made.name, made.id
    end_session(home, session_id)
    return name, session_id, home.session_dir(session_id)


@pytest.fixture
def copy(past: tuple[str, str, Path], tmp_path: Path) -> Path:
    target = tmp_path / "journal"
    shutil.copytree(past[2], target)
    return target


def test_a_closed_journal_is_whole_by_name_and_by_directory(past: tuple[str, str, Path]) -> None:
    name, _, directory = past
    by_name, by_directory = call_cli("verify", name).data, call_cli("verify", str(directory)).data
    assert by_name == by_directory
    assert by_name["ok"]
    receipt = f"{by_name['head_seq']}:{by_name['head_hash']}"
    assert call_cli("verify", name, "--receipt", receipt).data["ok"]
    assert "receipt" in call_cli("verify", name, json_output=False).out


def _flip_a_bit_of_the_last_body(directory: Path) -> None:
    _change(
        directory,
        "UPDATE entries SET body = CAST(X'00' || body AS BLOB) WHERE seq = (SELECT MAX(seq) FROM entries)",
    )


def _remove_an_entry(directory: Path) -> None:
    _change(directory, "DELETE FROM entries WHERE seq = 5")


def _make_garbage(directory: Path) -> None:
    (directory / "journal.sqlite").write_bytes(os.urandom(50_000))


def _make_empty(directory: Path) -> None:
    (directory / "journal.sqlite").write_bytes(b"")


def _cut_in_half(directory: Path) -> None:
    file = directory / "journal.sqlite"
    os.truncate(file, file.stat().st_size // 2)


def _zero_a_page(directory: Path) -> None:
    with open(directory / "journal.sqlite", "r+b") as file:
        file.seek(4096)
        file.write(bytes(4096))


def _make_a_directory(directory: Path) -> None:
    (directory / "journal.sqlite").unlink()
    (directory / "journal.sqlite").mkdir()


def _change(directory: Path, statement: str) -> None:
    connection = sqlite3.connect(directory / "journal.sqlite")
    with connection:
        connection.execute(statement)
    connection.close()


DAMAGE = [
    _flip_a_bit_of_the_last_body,
    _remove_an_entry,
    _make_garbage,
    _make_empty,
    _cut_in_half,
    _zero_a_page,
    _make_a_directory,
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_journal_is_never_called_whole(copy: Path, damage: object) -> None:
    assert callable(damage)
    damage(copy)
    report = call_cli("verify", str(copy), code=1)
    assert report.data["ok"] is False
    assert report.data["problem"]
    said = call_cli("verify", str(copy), code=1, json_output=False)
    assert said.out.startswith("NOT whole")


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_log_and_read_of_a_damaged_journal_end_in_words(
    home: Home, past: tuple[str, str, Path], copy: Path, damage: object
) -> None:
    name, _, directory = past
    kept = directory.with_name("kept")
    directory.rename(kept)
    try:
        shutil.copytree(copy, directory)
        assert callable(damage)
        damage(directory)
        for verb in ("log", "read"):
            shown = call_cli(verb, name, code=None, json_output=False)
            assert shown.code in (0, 1)
            assert "please report" not in shown.err
            if shown.code:
                assert f"jupyter cmdop verify {directory}" in shown.err
        assert call_cli("ls", "--all").code == 0
        assert call_cli("status", name).data["state"] == "closed"
    finally:
        shutil.rmtree(directory)
        kept.rename(directory)


def test_a_journal_that_is_not_there(home: Home, past: tuple[str, str, Path], tmp_path: Path) -> None:
    assert "no journal" in call_cli("verify", str(tmp_path / "nothing"), code=1).err
    assert call_cli("verify", str(tmp_path), code=1).code == 1
    name, _, directory = past
    kept = directory / "kept.sqlite"
    (directory / "journal.sqlite").rename(kept)
    try:
        for verb in ("log", "read", "verify"):
            assert call_cli(verb, name, code=1, json_output=False)
    finally:
        kept.rename(directory / "journal.sqlite")


RECORDS = [b"", b"{", b"null", b"[]", b'{"id":5}', b"\xff", b"[" * 100_000, b'{"id":"x","name":"\\u001b[2J"}']


def test_damaged_records_and_pointers_are_passed_over(
    home: Home, lone_session: Session, past: tuple[str, str, Path]
) -> None:
    name, session_id, directory = past
    record = (directory / "session.json").read_bytes()
    stray = home.runtime / "cmdop" / f"{session_id}.json"
    try:
        for damaged in RECORDS:
            (directory / "session.json").write_bytes(damaged)
            stray.write_bytes(damaged)
            listed = call_cli("ls", "--all").data
            assert lone_session.id in [item["id"] for item in listed]
            assert call_cli("status", lone_session.name).data["state"] == "open"
            assert call_cli("status", name, code=4)
            assert call_cli("doctor", code=None).data["checks"]
    finally:
        (directory / "session.json").write_bytes(record)
        stray.unlink()
    assert call_cli("status", name).data["id"] == session_id


def test_a_pointer_that_lies_does_no_harm(home: Home, lone_session: Session) -> None:
    """A foreign process id, a link that is no socket, a socket directory that is not ours: nothing is touched."""
    innocent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    precious = home.root / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    pointer = pointer_of(home, lone_session.id)
    session_id = "00000000-0000-4000-8000-000000000000"
    file = home.runtime / "cmdop" / f"{session_id}.json"
    try:
        for lie in (
            {"pid": innocent.pid, "start_time": "1"},
            {"pid": innocent.pid, "start_time": None, "link": str(precious / "file")},
            {"pid": 1, "start_time": None, "link": "/dev/null"},
            {"pid": 2**30, "link": "x" * 300},
            {"pid": -1},
            {"pid": 0},
            {"host": "elsewhere"},
            {"boot_id": "another boot"},
        ):
            made = {**pointer, "id": session_id, "name": "liar", "sockets": str(precious), **lie}
            file.write_bytes(json.dumps(made).encode())
            item = next(i for i in call_cli("ls").data if i["name"] == "liar")
            assert item["state"] in ("lost", "unresponsive", "starting"), lie
            assert item["reason"]
            for verb in (("run", "liar", "1"), ("close", "liar", "--force")):
                assert call_cli(*verb, code=None).code in (1, 4), (lie, verb)
            told = call_cli("status", "liar", code=None)
            assert told.code in (1, 4) or told.data["state"] == "unresponsive", lie
            call_cli("doctor", "--sweep", code=None)
            assert innocent.poll() is None
            assert (precious / "file").read_text() == "keep"
    finally:
        file.unlink(missing_ok=True)
        innocent.communicate(b"\n")
    assert call_cli("status", lone_session.name).data["state"] == "open"


# ---------------------------------------------------------------------- grant files


def test_grant_files_that_are_none(lone_session: Session, tmp_path: Path) -> None:
    invited = lone_session.invite("carrier")
    good = Path(invited.connection_file or "").read_bytes()
    file = tmp_path / "grant.json"
    cases = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"cmdop":5}',
        b'{"cmdop":{}}',
        b'{"cmdop":{"actor":"x"}}',
        good[:-30],
    ]
    for content in cases:
        places.write_private_file(file, content)
        failed = call_cli("run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(file)}, code=1)
        assert "holds no " in failed.err, content  # grant, or credential where a bare token would do
        assert "jupyter cmdop invite" in failed.err
    for path in (tmp_path / "missing", tmp_path, Path("/dev/null"), Path("/proc/self/mem")):
        failed = call_cli("run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(path)}, code=1)
        assert "grant" in failed.err
    places.write_private_file(file, good)
    file.chmod(0o644)
    failed = call_cli("run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(file)}, code=1)
    assert f"chmod 600 {file}" in failed.err
    file.chmod(0o600)
    assert call_cli("run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(file)}).data["status"] == "ok"
    other = json.loads(good)
    other["cmdop"]["token"] = "guessed"
    places.write_private_file(file, json.dumps(other).encode())
    refused = call_cli("run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(file)}, code=3)
    assert refused.data["refusal"]["code"] == "revoked"
    other["cmdop"]["session"] = "00000000-0000-4000-8000-000000000000"
    places.write_private_file(file, json.dumps(other).encode())
    refused = call_cli("run", lone_session.name, "1", env={"CMDOP_GRANT_FILE": str(file)}, code=3)
    assert refused.data["refusal"]["code"] == "forbidden"
    lone_session.revoke("carrier")


# ---------------------------------------------------------------------- places


def test_everything_is_for_its_owner_alone_whatever_the_umask(home: Home, session: Sessions) -> None:
    before = os.umask(0)
    try:
        made = session("open-hearted")
        invited = made.invite("guest")
        client = connect_client(invited.connection_file or "")
    finally:
        os.umask(before)
    assert reply_of(client, client.execute("1"))["content"]["status"] == "ok"
    client.stop_channels()
    made.run("print('x' * 100_000)")
    sockets = Path(pointer_of(home, made.id)["sockets"])
    found = 0
    for top in (home.state, home.runtime / "cmdop", sockets):
        for path in (top, *top.rglob("*")):
            facts = path.lstat()
            if stat.S_ISSOCK(facts.st_mode) and path.parent == sockets and path.name != "link.sock":
                continue  # libzmq makes them as the umask says: it is their directory that is closed
            assert not facts.st_mode & 0o077, (path, oct(facts.st_mode))
            assert facts.st_uid == os.geteuid()
            found += 1
    assert found > 10
    assert not Path(link_path(home, made)).stat().st_mode & 0o077


@pytest.fixture
def socket_root(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket root of this test's own, so that the real one stays as it is."""
    monkeypatch.setattr(places, "SOCKET_PARENT", tmp_path)
    return places.socket_root()


def _refused(home: Home, words: str, advice: str) -> None:
    before = set(home.left())
    failed = call_cli("new", "never", code=1, json_output=False)
    assert words in failed.err
    assert advice in failed.err
    assert set(home.left()) == before


def test_a_socket_root_that_is_not_ours_alone_is_refused_with_the_fix(home: Home, socket_root: Path) -> None:
    socket_root.symlink_to(home.root)
    _refused(home, "symbolic link", f"ask an administrator to remove {socket_root}")
    socket_root.unlink()
    socket_root.write_text("")
    _refused(home, "not a directory", "move it away")
    socket_root.unlink()
    socket_root.mkdir()
    socket_root.chmod(0o755)
    _refused(home, "mode 0755", f"chmod 700 {socket_root}")
    assert "PROBLEM" in call_cli("doctor", code=1, json_output=False).out
    socket_root.chmod(0o700)


@root_only
def test_a_socket_root_of_another_user_is_refused(home: Home, socket_root: Path) -> None:
    socket_root.mkdir(mode=0o700)
    os.chown(socket_root, 65534, 65534)
    _refused(home, "belongs to user id 65534", "ask an administrator")
    assert list(socket_root.iterdir()) == []


def test_a_socket_root_with_a_long_path_is_refused_before_anything_starts(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / ("x" * 100)
    parent.mkdir()
    monkeypatch.setattr(places, "SOCKET_PARENT", parent)
    _refused(home, "too long", "next:")


@pytest.mark.parametrize("variable", ["CMDOP_STATE_DIR", "JUPYTER_RUNTIME_DIR"])
def test_a_state_or_runtime_directory_that_cannot_be_used_is_named_with_what_to_set(
    home: Home, tmp_path: Path, variable: str
) -> None:
    before = set(home.left())
    file = tmp_path / "file"
    file.write_text("")
    for bad in (file, file / "below", Path("/proc/nowhere"), Path("/dev/null/x")):
        failed = call_cli("new", "never", env={variable: str(bad)}, code=1, json_output=False)
        assert variable in failed.err or "move it away" in failed.err, failed.err
        assert "please report" not in failed.err
    assert set(home.left()) == before


def test_a_runtime_directory_that_others_may_look_into_is_refused(home: Home, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    (runtime / "cmdop").mkdir(parents=True)
    (runtime / "cmdop").chmod(0o777)
    env = {"JUPYTER_RUNTIME_DIR": str(runtime)}
    for verb in (("ls",), ("new", "never"), ("status", "x")):
        failed = call_cli(*verb, env=env, code=1, json_output=False)
        assert f"chmod 700 {runtime}/cmdop" in failed.err
    (runtime / "cmdop").chmod(0o700)
    assert call_cli("ls", env=env).data == []


@root_only
def test_a_state_directory_that_cannot_be_written(home: Home, tmp_path: Path) -> None:
    """As a user without rights, because nothing is closed to root."""
    tmp_path.chmod(0o755)
    call_cli("new", "-", code=2)  # what it imports cannot be read by everybody
    env = {"CMDOP_STATE_DIR": str(tmp_path / "state"), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    failed = as_nobody(lambda: call_cli("new", "never", env=env, code=1, json_output=False))
    assert "Permission denied" in failed.err
    assert "set JUPYTER_RUNTIME_DIR" in failed.err or "set CMDOP_STATE_DIR" in failed.err
    assert list(tmp_path.iterdir()) == []

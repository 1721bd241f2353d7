"""Somebody else by URL: what a grant opens, what it does not, and how fast it ends."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from tests.faults.attacks import as_nobody, call_cli, is_root
from tests.remote.far import Far
from tests.server.jupyter import Server
from tests.support import Home, Sessions, finish_cli, journal, run_cli, wait_for_entry, wait_for_status


@pytest.fixture(scope="module")
def lone(module_session: Sessions) -> Session:
    return module_session("shared")


def grant(session: Session, path: Path, actor: str, *arguments: str) -> Path:
    run_cli("invite", session.name, "--as", actor, *arguments, "--grant-file-out", str(path))
    return path


def test_a_peer_runs_takes_and_is_named(server: Server, lone: Session, tmp_path: Path) -> None:
    far = Far(server.url, grant(lone, tmp_path / "bob", "bob", "--kind", "human"))
    operation = far("run", lone.name, "print('of bob')").data["operation"]
    [entry] = [e for e in lone.log(types=["admitted"]) if e["operation"] == operation]
    assert (entry["actor"], entry["grant"] is not None) == ("bob", True)
    assert far("take", lone.name).data["driver"] == "bob"
    assert far("release", lone.name).data["driver"] is None
    for verb, arguments in (("close", ()), ("restart", ()), ("policy", ("turns",)), ("invite", ())):
        assert far(verb, lone.name, *arguments, code=3).data["refusal"]["code"] == "forbidden"


def test_an_observer_sees_and_does_nothing(server: Server, lone: Session, tmp_path: Path) -> None:
    far = Far(server.url, grant(lone, tmp_path / "eve", "eve", "--role", "observer"))
    lone.run("print('to be seen')")
    assert "to be seen" in far("read", lone.name, json_output=False).out
    assert far("run", lone.name, "1", code=3).data["refusal"]["code"] == "read_only"
    assert far("take", lone.name, code=3).code == 3


def test_a_grant_file_says_where_it_is_good(far: Far, lone: Session, tmp_path: Path) -> None:
    """Made by URL, its file has the URL: whoever has the file needs to know nothing else."""
    path = tmp_path / "carl"
    far("invite", lone.name, "--as", "carl", "--grant-file-out", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["url"] == far.url + "/"
    assert run_cli("status", lone.name, "--grant-file", str(path)).data["name"] == lone.name
    again = far("invite", lone.name, "--as", "carl", "--grant-file-out", str(path), code=1)
    assert "cannot be made" in again.err
    shown = far("invite", lone.name, "--as", "dora", "--grant-file-out", "-").out
    assert json.loads(shown)["cmdop"]["actor"] == "dora"
    assert far.grant_file is not None
    assert far.grant_file.read_text().strip() not in shown


def test_a_credential_from_a_pipe(server: Server, lone: Session, tmp_path: Path) -> None:
    """As a password manager gives it: it can be read once."""
    text = grant(lone, tmp_path / "piped", "piped").read_text()
    for arguments in (("run", lone.name, "1"), ("status", lone.name)):
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        with os.fdopen(reading):
            call_cli(*arguments, "--url", server.url, "--grant-file", f"/dev/fd/{reading}")


def test_a_file_that_others_may_read_is_refused(server: Server, lone: Session, tmp_path: Path) -> None:
    path = grant(lone, tmp_path / "open", "open")
    path.chmod(0o640)
    result = Far(server.url, path)("status", lone.name, code=1)
    assert result.data["error"]["code"] == "grant_file"


def test_a_grant_is_good_for_its_session_only(
    server: Server, lone: Session, session: Sessions, tmp_path: Path
) -> None:
    other = session()
    far = Far(server.url, grant(lone, tmp_path / "bob", "bob"))
    for name in (other.name, other.id, "nobody-knows"):
        assert far("status", name, code=3).data["refusal"]["code"] == "forbidden"
    assert journal(other, "refused") == []


def test_revoking_closes_within_a_second(server: Server, lone: Session, tmp_path: Path) -> None:
    far = Far(server.url, grant(lone, tmp_path / "bob", "bob-2"))
    following = far.start("read", lone.name, "--follow", json_output=False)
    lone.run("print('still here')")
    assert following.stdout is not None
    while "still here" not in following.stdout.readline():
        pass
    began = time.monotonic()
    lone.revoke("bob-2")
    wait_for_status(lone, lambda s: all(p.actor != "bob-2" for p in s.presence))
    assert time.monotonic() - began < 1.0
    result = finish_cli(following)
    assert result.code == 3, result.err
    assert "revoked" in result.err or "not (or no longer) valid" in result.err or "grant" in result.err
    assert far("run", lone.name, "1", code=3).code == 3


def test_a_token_that_is_none(server: Server, lone: Session, tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.touch(0o600)
    path.write_text("not-the-token")
    result = Far(server.url, path)("status", lone.name, code=3)
    assert "does not take this token" in result.err
    assert "not-the-token" not in result.err + result.out
    nobody = Far(server.url, None)("status", lone.name, code=3)
    assert "wants a credential" in nobody.err


@pytest.mark.skipif(not is_root(), reason="only root may become another user")
def test_another_unix_user_comes_in_through_the_server(
    server: Server, lone: Session, tmp_path: Path, home: Home
) -> None:
    """The documented recipe: an observer sees, is refused, gets a peer's grant, and runs and takes over."""
    text = run_cli(
        "invite", lone.name, "--as", "bob-of-here", "--role", "observer", "--grant-file-out", "-"
    ).out
    more = run_cli("invite", lone.name, "--as", "bob-of-here", "--grant-file-out", "-").out
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    own = tmp_path / "of-bob"
    env = {
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "CMDOP_STATE_DIR": str(own / "state"),
        "HOME": str(own),
    }
    lone.run("print('for bob')")
    _warm(server, lone, tmp_path, text)

    def story() -> dict[str, object]:
        own.mkdir()
        files = []
        for name, content in (("watch", text), ("act", more)):
            file = own / name
            file.touch(0o600)
            file.write_text(content)
            files.append(str(file))
        watch, act = (("--url", server.url, "--grant-file", file) for file in files)
        return {
            "seen": call_cli("read", lone.name, *watch, json_output=False, env=env).out,
            "refused": call_cli("run", lone.name, "x = 1", *watch, code=3, env=env).data["refusal"]["code"],
            "ran": call_cli("run", lone.name, "print('by bob')", *act, env=env).data["status"],
            "took": call_cli("take", lone.name, *act, env=env).data["driver"],
            "here": call_cli("ls", env=env).data,
        }

    found = as_nobody(story)
    assert "for bob" in str(found["seen"])
    assert {**found, "seen": None} == {
        "seen": None,
        "refused": "read_only",
        "ran": "ok",
        "took": "bob-of-here",
        "here": [],
    }
    entry = wait_for_entry(lone, "admitted", actor="bob-of-here")
    assert entry["data"]["code"] == "print('by bob')"
    lone.take("the end of the story")
    lone.release()


def _warm(server: Server, lone: Session, tmp_path: Path, text: str) -> None:
    """Import here what the other user's process needs: it may not be allowed to read this Python."""
    file = tmp_path / "warm"
    file.touch(0o600)
    file.write_text(text)
    for verb in (("read",), ("run", "1"), ("take",), ("log",)):
        call_cli(verb[0], lone.name, *verb[1:], "--url", server.url, "--grant-file", str(file), code=None)
        call_cli("ls")

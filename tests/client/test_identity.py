"""Who the caller is: said by hand, granted by a file, or the owner."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

from jupyter_cmdop.client.errors import GrantFileError
from jupyter_cmdop.client.identity import OWNER, identify, owner_name
from jupyter_cmdop.core.actor import check_actor_id


@pytest.fixture
def grant_file(tmp_path: Path) -> Path:
    path = tmp_path / "bot.json"
    grant = {"session": "12345678", "name": "analysis", "token": "secret", "actor": "bot", "later": 1}
    path.write_text(json.dumps({"key": "k", "cmdop": grant}))
    path.chmod(0o600)
    return path


def test_owner_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CMDOP_GRANT_FILE", raising=False)
    assert identify() == OWNER
    assert identify(actor="bot", kind="agent").hello_fields() == {
        "actor": "bot",
        "kind": "agent",
        "token": None,
    }


def test_grant_file_names_the_caller(grant_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CMDOP_GRANT_FILE", raising=False)
    granted = identify(grant_file=str(grant_file))
    assert (granted.actor, granted.token, granted.session) == ("bot", "secret", "12345678")
    assert granted.file == str(grant_file)


def test_variable_is_used_unless_an_identity_is_said_by_hand(
    grant_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMDOP_GRANT_FILE", str(grant_file))
    assert identify().token == "secret"
    assert identify(actor="carol").token is None


def test_home_is_expanded(grant_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(grant_file.parent))
    assert identify(grant_file="~/bot.json").actor == "bot"


def test_file_and_name_must_agree(grant_file: Path) -> None:
    assert identify(actor="bot", grant_file=str(grant_file)).token == "secret"
    with pytest.raises(GrantFileError, match="a grant for bot, not for carol"):
        identify(actor="carol", grant_file=str(grant_file))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604])
def test_token_that_others_may_have_read_is_not_used(grant_file: Path, mode: int) -> None:
    grant_file.chmod(mode)
    with pytest.raises(GrantFileError, match="open to other users") as caught:
        identify(grant_file=str(grant_file))
    assert caught.value.next[0] == f"chmod 600 {grant_file}"


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"{", b'{"cmdop": 1}', b'{"cmdop": {"actor": "bot"}}', b"\xff", b"null"],
)
def test_file_without_a_grant(grant_file: Path, content: bytes) -> None:
    grant_file.write_bytes(content)
    with pytest.raises(GrantFileError, match="holds no grant"):
        identify(grant_file=str(grant_file))


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GrantFileError, match="cannot be read"):
        identify(grant_file=str(tmp_path / "nowhere"))
    with pytest.raises(GrantFileError, match=r"cannot be read|holds no grant"):
        identify(grant_file=str(tmp_path))


def test_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(GrantFileError):
        identify(grant_file=str(tmp_path / "fifo"))


def test_owner_is_the_unix_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    assert owner_name()[0] == pwd.getpwuid(os.geteuid()).pw_name


def test_owner_on_a_hub_is_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "alice@example.org")
    assert owner_name() == ("alice@example.org", "alice@example.org")


@pytest.mark.parametrize("user", ["DOMAIN\\bob", "-x", "ünal", "a b", "x" * 300, "$machine"])
def test_owner_id_is_always_one_that_is_allowed(monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", user)
    assert check_actor_id(owner_name()[0])


def test_uid_without_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert owner_name() == ("uid-4000000", "uid-4000000")

"""Addresses, credentials, and what the answers of servers, proxies and strangers mean; without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_cmdop.client.errors import (
    ClientError,
    GrantFileError,
    Refused,
    RequestFailed,
    ServerProblem,
    UnknownSession,
)
from jupyter_cmdop.client.remote import Credential, Server, checked_url, read_credential

TOKEN = "s3cret"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://host:8888", "http://host:8888/"),
        ("https://hub.example/user/ann/", "https://hub.example/user/ann/"),
        ("https://hub.example/user/ann/lab", "https://hub.example/user/ann/"),
        ("http://host/tree/", "http://host/"),
        ("http://[::1]:8888/base", "http://[::1]:8888/base/"),
    ],
)
def test_a_url_is_the_base_of_a_server(given: str, wanted: str) -> None:
    assert checked_url(given) == wanted


@pytest.mark.parametrize(
    "given",
    [
        f"http://host/?token={TOKEN}",
        f"http://{TOKEN}@host/",
        f"http://ann:{TOKEN}@host/",
        f"http://host/#{TOKEN}",
        "ftp://host/",
        "host:8888",
        "http://",
        "http://host:port/",
        "",
    ],
)
def test_what_holds_a_secret_or_is_no_url_is_refused_without_repeating_it(given: str) -> None:
    with pytest.raises(RequestFailed) as refused:
        checked_url(given)
    assert TOKEN not in str(refused.value) + "".join(refused.value.next)


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_credential_is_a_token_or_a_grant(tmp_path: Path) -> None:
    assert read_credential(private(tmp_path / "a", f"  {TOKEN}\n")) == Credential(TOKEN)
    grant = {"token": TOKEN, "session": "id", "actor": "bob"}
    both = {"cmdop": grant, "url": "http://h/"}
    assert read_credential(private(tmp_path / "b", json.dumps(both))) == Credential(
        TOKEN, "id", "bob", "http://h/"
    )
    assert TOKEN not in repr(Server("http://h/", Credential(TOKEN)))


@pytest.mark.parametrize(
    "text",
    ["", "two words", "line\nline", "{}", '{"cmdop": 1}', '{"cmdop": {"token": ""}}', "t\u00f6ken", "{"],
)
def test_what_is_no_credential(tmp_path: Path, text: str) -> None:
    with pytest.raises(GrantFileError):
        read_credential(private(tmp_path / "file", text))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_credential_that_others_may_read(tmp_path: Path, mode: int) -> None:
    with pytest.raises(GrantFileError):
        read_credential(private(tmp_path / "file", TOKEN, mode))


REFUSAL = {"code": "forbidden", "message": "no", "next": ["ask"]}
ANSWERS: list[tuple[int, object, dict[str, str], type[ClientError], str]] = [
    (403, {"code": "forbidden", "message": "m", "refusal": REFUSAL}, {}, Refused, "no"),
    (403, {"error": {"code": "x", "message": "m"}, "refusal": REFUSAL}, {}, Refused, "no"),
    (403, "a page", {}, Refused, "does not take this token"),
    (404, {"code": "unknown_session", "message": "no session is called 'x'"}, {}, UnknownSession, "'x'"),
    (404, "a page", {}, ServerProblem, "no Jupyter server with jupyter_cmdop"),
    (200, "a page", {}, ServerProblem, "answers with a page"),
    (302, "", {"Location": f"/hub/login?next={TOKEN}"}, ServerProblem, "sends its visitors to /hub/login"),
    (502, "a page", {}, ServerProblem, "cannot answer now (HTTP 502)"),
    (503, {"code": "unavailable", "message": "starting"}, {}, ServerProblem, "starting"),
    (409, {"code": "other", "message": "in the way"}, {}, RequestFailed, "in the way"),
    (400, [1], {}, ServerProblem, "HTTP 400"),
    (403, {"error": 5}, {}, Refused, "does not take this token"),
]


@pytest.mark.parametrize(("status", "body", "headers", "kind", "said"), ANSWERS)
def test_each_answer_says_what_to_do(
    status: int, body: object, headers: dict[str, str], kind: type[ClientError], said: str
) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    error = Server("http://h/", Credential(TOKEN)).explain(status, raw, headers, "x")
    assert type(error) is kind
    assert said in error.message
    assert TOKEN not in error.message + "".join(error.next)
    if isinstance(error, ServerProblem):
        assert error.next
        assert error.may_pass == (status >= 500)

"""Parts of the HTTP API that need no server."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_cmdop.client.errors import (
    ClientError,
    KeeperGone,
    LinkTimeout,
    PlaceError,
    Refused,
    RequestFailed,
    SpawnFailed,
    UnknownSession,
)
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.core.actor import Actor
from jupyter_cmdop.core.refusal import HTTP_STATUS, Refusal
from jupyter_cmdop.server.api_errors import ApiError, api_error, problem_of, without_paths
from jupyter_cmdop.server.api_feed import decode_cursor, encode_cursor, record_of
from jupyter_cmdop.server.api_limits import BURST_SECONDS, ActLimit
from jupyter_cmdop.server.identity import Person


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann/.local/share/jupyter/x.log: denied", "…/x.log: denied"),
        ("the file '/tmp/cmdop-0/ab/link' is gone", "the file '…/link' is gone"),
        ("see ~/work/a.ipynb", "see …/a.ipynb"),
        (
            "ask root/mcp-claude, or https://example.org/a/b",
            "ask root/mcp-claude, or https://example.org/a/b",
        ),
        ("1/2 and a / b", "1/2 and a / b"),
        ("GET cmdop/api/sessions", "GET cmdop/api/sessions"),
    ],
)
def test_paths_are_left_out(text: str, shown: str) -> None:
    assert without_paths(text) == shown


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownSession("x"), "unknown_session"),
        (KeeperGone("gone"), "keeper_gone"),
        (LinkTimeout("late"), "timeout"),
        (SpawnFailed("in /a/b/c.py", log=("Traceback (most recent call last):",)), "spawn_failed"),
        (PlaceError("/home/ann/x", "is open", "chmod 700 /home/ann/x"), "internal"),
        (RequestFailed("bad_request", "no"), "bad_request"),
        (RequestFailed("unknown_verb", "no"), "unsupported"),
        (ClientError("in /a/b/c"), "internal"),
        *((Refused(Refusal(code, "no")), code) for code in HTTP_STATUS),
    ],
)
def test_every_failure_has_a_code_and_tells_no_secret(error: ClientError, code: str) -> None:
    made = api_error(error)
    problem = problem_of(made.status_code, made)
    assert problem["code"] == code
    assert problem["message"]
    assert "Traceback" not in str(problem)
    assert "/a/b" not in str(problem)
    assert "/home" not in str(problem)


def test_fault_of_ours_says_nothing_about_itself() -> None:
    assert problem_of(500, ValueError("secret /a/b/c"))["message"] == "something went wrong in the server"
    assert problem_of(503, None)["code"] == "unavailable"


def test_grant_is_proven_where_it_acts() -> None:
    """Between the server's question and the link that acts it may be revoked: the keeper sees the token itself."""
    bearer = Person(Actor("bot", "agent"), "peer", grant="g1", session="s", token="secret")
    assert bearer.identity() == Identity(token="secret")
    assert "secret" not in repr(bearer)


def test_role_of_an_owner_does_not_make_one() -> None:
    alice = Person(Actor("example:alice"), "owner")
    assert alice.identity().verified is not None
    assert alice.identity().verified["id"] == "example:alice"
    assert Person(Actor("ann"), "owner", owns=True).identity() == Identity()


def test_limit_lets_a_burst_through_and_fills_again() -> None:
    now = 0.0
    limit = ActLimit(60, clock=lambda: now)
    for _ in range(int(BURST_SECONDS)):
        limit.spend("bot")
    with pytest.raises(ApiError) as caught:
        limit.spend("bot")
    assert caught.value.code == "rate_limited"
    assert caught.value.refusal is not None
    assert 0 < caught.value.refusal["retry_after"] <= 1.0
    limit.spend("ann")  # each has his own
    now = 1.0
    limit.spend("bot")
    with pytest.raises(ApiError):
        limit.spend("bot")
    now = 1000.0
    for _ in range(int(BURST_SECONDS)):
        limit.spend("bot")
    with pytest.raises(ApiError):
        limit.spend("bot")


def test_no_limit() -> None:
    limit = ActLimit(0)
    for _ in range(10_000):
        limit.spend("bot")


@given(st.text(max_size=200))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with contextlib.suppress(ApiError):
        assert all(seq >= 0 for seq in decode_cursor(text).values())


@given(st.dictionaries(st.uuids(version=4).map(str), st.integers(0, 10**17), max_size=20))
def test_cursor_comes_back(seen: dict[str, int]) -> None:
    decoded = decode_cursor(encode_cursor(seen))
    assert list(decoded.values()) == list(seen.values())


def test_record_tells_no_answer_and_no_long_code() -> None:
    admitted = {"seq": 1, "type": "admitted", "actor": "a", "data": {"code": "x" * 10_000, "digest": "d"}}
    record = record_of(admitted, session="s", session_id="i")
    assert record["kind"] == "operation"
    assert record["data"] == {"preview": "x" * 200}
    answered = {
        "seq": 2,
        "type": "input_answered",
        "actor": "a",
        "data": {"value": "secret", "prompt_id": "p"},
    }
    assert record_of(answered, session="s", session_id="i")["data"] == {"prompt_id": "p"}

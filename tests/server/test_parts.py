"""The parts of the extension that need no server: names, the workspace's memory, what goes on, renewal."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_cmdop
from jupyter_cmdop.client.errors import KeeperGone
from jupyter_cmdop.core.actor import check_session_name
from jupyter_cmdop.server.grants import GrantGate
from jupyter_cmdop.server.naming import base_name, free_names
from jupyter_cmdop.server.settings import Keep
from jupyter_cmdop.server.stopping import Stop, decide, last_words
from jupyter_cmdop.server.websockets_open import OpenWebsockets
from jupyter_cmdop.server.workspace import Credential, Workspace
from tests.support import Home

ONE = "11111111-1111-4111-8111-111111111111"
TWO = "22222222-2222-4222-8222-222222222222"


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/Untitled.ipynb", "Untitled"),
        ("/home/me/My analysis (2).ipynb", "My-analysis-2"),
        ("script.py", "script.py"),
        ("/home/me/.hidden.ipynb", "hidden"),
        ("Übung.ipynb", "Ubung"),
        ("x" * 100 + ".ipynb", "x" * 64),
    ],
)
def test_session_is_called_as_its_document(path: str, name: str) -> None:
    assert base_name(path, "python3") == name


@pytest.mark.parametrize("path", [None, "", "...ipynb", "素晴らしい.ipynb"])
def test_session_without_a_name_to_take_is_called_as_its_kernel(path: str | None) -> None:
    name = base_name(path, "python3")
    assert name.startswith("python3-")
    assert len(name) == len("python3-") + 4


@given(st.text(max_size=100), st.text(min_size=1, max_size=80), st.integers(0, 5))
def test_every_name_is_one_that_a_session_may_have(path: str, kernel: str, taken: int) -> None:
    base = base_name(path, kernel)
    names = list(itertools.islice(free_names(base, []), taken + 1))
    found = next(free_names(base, [name.upper() for name in names]))
    assert check_session_name(found)
    assert found.casefold() not in {name.casefold() for name in names}


# ---------------------------------------------------------------------- the workspace's memory


def test_memory_outlives_the_server(home: Home, tmp_path: Path) -> None:
    first = Workspace(str(tmp_path))
    first.remember(ONE, "started", "analysis")
    again = Workspace(str(tmp_path))
    opened = again.opened(ONE)
    assert opened is not None
    assert (opened.how, opened.name) == ("started", "analysis")
    assert again.opened(TWO) is None
    again.forget_all_but([TWO])
    assert first.opened(ONE) is None


def test_last_of_two_servers_knows_that_it_is(home: Home, tmp_path: Path) -> None:
    """Also when both stop at the same time: each gives its own mark up before it looks at the other's."""
    first, second = Workspace(str(tmp_path)), Workspace(str(tmp_path))
    first.enter()
    second.enter()
    assert first.notebook_database() is not None
    assert second.notebook_database() is None
    assert not first.is_last()
    assert second.is_last()
    first.leave()
    second.leave()
    third = Workspace(str(tmp_path))
    assert third.notebook_database() is not None
    third.leave()


# ---------------------------------------------------------------------- what goes on


class FakeSession:
    """A session whose keeper answers what a test says."""

    def __init__(
        self, name: str = "a", workspace: str = "", answers: Mapping[str, Any] | None = None
    ) -> None:
        self.kernel_id = ONE
        self.name = name
        self.workspace = workspace
        self.answers = answers or {}
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def ask(self, verb: str, args: Mapping[str, Any]) -> Any:
        self.asked.append((verb, args))
        answer = self.answers.get(verb)
        if answer is None:
            raise KeeperGone("it is not there")
        return answer


@pytest.mark.parametrize(
    ("keep", "how", "name", "grants", "last", "goes_on"),
    [
        ("shared", "started", "a", [], True, False),
        ("shared", "started", "a", [{"actor": "bot"}], True, True),
        ("shared", "started", "renamed", [], True, True),
        ("shared", None, "a", [], True, True),
        ("shared", "started", "a", None, True, True),  # in doubt
        ("shared", "started", "a", [], False, True),
        ("all", "started", "a", [], True, True),
        ("none", None, "a", [{"actor": "bot"}], True, False),
        ("none", None, "a", [], False, True),
    ],
)
def test_what_goes_on_when_the_server_stops(
    home: Home,
    tmp_path: Path,
    keep: Keep,
    how: Any,
    name: str,
    grants: list[dict[str, str]] | None,
    last: bool,
    goes_on: bool,
) -> None:
    workspace = Workspace(str(tmp_path))
    if how:
        workspace.remember(ONE, how, "a")
    session = FakeSession(name, str(tmp_path), {} if grants is None else {"grants": {"grants": grants}})
    [stop] = asyncio.run(decide([session], keep, workspace, is_last=last))  # type: ignore[list-item]
    assert stop.goes_on is goes_on
    foreign = FakeSession(name, "/elsewhere", session.answers)
    [stop] = asyncio.run(decide([foreign], keep, workspace, is_last=last))  # type: ignore[list-item]
    assert stop.goes_on


def test_last_words_name_what_goes_on_and_how_to_end_it() -> None:
    kept = Stop(FakeSession("analysis"), "made by hand")  # type: ignore[arg-type]
    ended = Stop(FakeSession("gone"))  # type: ignore[arg-type]
    lines = last_words([kept, ended])
    assert lines[0] == "1 session goes on without this server:"
    assert "jupyter cmdop close analysis" in lines[1]
    assert len(lines) == 2
    assert last_words([ended]) == []


# ---------------------------------------------------------------------- renewal


class FakeProvider:
    """Knows one user, or nobody any more."""

    def __init__(self) -> None:
        self.user: Any = SimpleNamespace(username="cookie-1")
        self.token = "secret"

    async def get_user(self, handler: Any) -> Any:
        return self.user

    def clear_login_cookie(self, handler: Any) -> None:
        self.user = None


class FakePeople:
    def __init__(self) -> None:
        self.person = SimpleNamespace(actor=SimpleNamespace(id="me"), grant=None, username="cookie-1")

    def of(self, handler: Any) -> Any:
        return self.person

    def came_with_the_token(self, handler: Any) -> bool:
        return bool(handler.by_token)


def opened_websocket(
    tmp_path: Path, *, by_token: bool = False
) -> tuple[Any, FakeSession, FakeProvider, Workspace]:
    session = FakeSession("a", str(tmp_path), {"renew": {"renewed": True}, "drop": {"closed": 1}})
    provider, workspace = FakeProvider(), Workspace(str(tmp_path))
    manager = SimpleNamespace(sessions=lambda: [session])
    websockets: Any = OpenWebsockets(manager, provider, FakePeople(), workspace)  # type: ignore[arg-type]
    websockets.opened(session, "w1", SimpleNamespace(by_token=by_token))
    return websockets, session, provider, workspace


def test_credential_that_can_end_is_renewed_while_it_is_good(home: Home, tmp_path: Path) -> None:
    websockets, session, provider, workspace = opened_websocket(tmp_path)
    asyncio.run(websockets.renew_all())
    assert session.asked == [("renew", {"attachment": "w1", "valid_until_seconds": 900.0})]
    provider.user = None
    asyncio.run(websockets.renew_all())
    assert session.asked[-1][0] == "drop"
    assert workspace.credentials() == []


def test_server_token_needs_no_renewal(home: Home, tmp_path: Path) -> None:
    websockets, session, _, workspace = opened_websocket(tmp_path, by_token=True)
    asyncio.run(websockets.renew_all())
    assert session.asked == []
    assert workspace.credentials() == []


def test_websocket_that_has_ended_is_forgotten(home: Home, tmp_path: Path) -> None:
    websockets, session, _, workspace = opened_websocket(tmp_path)
    session.answers = {"renew": {"renewed": False}}
    asyncio.run(websockets.renew_all())
    assert workspace.credentials() == []


def test_inherited_websocket_is_renewed_only_while_its_actor_is_seen(home: Home, tmp_path: Path) -> None:
    websockets, session, _, workspace = opened_websocket(tmp_path)
    websockets._requests.clear()  # as in a server that was started after the one that knew the request
    asyncio.run(websockets.renew_all())
    assert session.asked == []
    websockets.seen(SimpleNamespace(by_token=True), SimpleNamespace(username="other-tab"))
    asyncio.run(websockets.renew_all())
    assert [verb for verb, _ in session.asked] == ["renew"]
    assert [c.attachment for c in workspace.credentials()] == ["w1"]


def test_logout_drops_what_an_earlier_server_had_handed_over(home: Home, tmp_path: Path) -> None:
    async def log_out() -> None:
        websockets, session, provider, workspace = opened_websocket(tmp_path)
        websockets._requests.clear()
        workspace.remember_websocket(
            Credential(session=ONE, attachment="w2", actor="me", username="cookie-2")
        )
        gate = GrantGate(provider, seen=websockets.seen, logged_out=websockets.logged_out)  # type: ignore[arg-type]
        gate.clear_login_cookie(SimpleNamespace(current_user=SimpleNamespace(username="cookie-1")))  # type: ignore[arg-type]
        await asyncio.gather(*websockets._tasks)
        assert session.asked == [("drop", {"attachment": "w1", "reason": "logged out"})]
        assert [c.attachment for c in workspace.credentials()] == ["w2"]
        assert provider.user is None

    asyncio.run(log_out())


# ---------------------------------------------------------------------- being found


def test_windows_gets_one_line_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    [point] = jupyter_cmdop._jupyter_server_extension_points()
    assert point == {"module": "jupyter_cmdop.server.windows"}


def test_server_finds_the_extension_by_its_installed_file() -> None:
    import json
    import tomllib

    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    [(source, target)] = shared.items()
    assert target == "etc/jupyter/jupyter_server_config.d/jupyter_cmdop.json"
    enabled = json.loads((root / source).read_text(encoding="utf-8"))
    assert enabled == {"ServerApp": {"jpserver_extensions": {"jupyter_cmdop": True}}}

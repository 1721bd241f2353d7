"""Security from the route table: every route, every method, with every kind of wrong credential.

The routes are those of the table and those that a running server really has, so that a new one cannot be forgotten: it
must have a row in `BODIES`, and what nobody may do, nobody may do there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client.session import Session
from jupyter_cmdop.server import api_openapi, api_routes
from tests.http.rest import Api, Feed
from tests.server.jupyter import UPGRADE, Answer, Server, Servers, cookie_of
from tests.support import Home

IMPORTS = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
ROUTES = "--ServerApp.jpserver_extensions=tests.server.extension_with_routes=True"
CANARY = "canary-9f81ab27c455"

# What makes each operation of the table a good request; None where it takes nothing.
BODIES: dict[str, Any] = {
    "list_sessions": None,
    "create_session": {"name": "made-by-the-table", "attach": True},
    "read_session": None,
    "rename_session": {"name": "renamed-by-the-table"},
    "close_session": None,
    "read_floor": None,
    "move_floor": {"action": "take"},
    "set_policy": {"policy": "open"},
    "run": {"code": "1", "wait_seconds": 30},
    "send": {"text": "1"},
    "read": None,
    "wait": None,
    "answer": {"text": "x"},
    "approve": {"operation": "o1"},
    "interrupt": {},
    "signal": {"pid": 1},
    "restart": {},
    "revive": {},
    "note": {"text": "x"},
    "read_journal": None,
    "list_grants": None,
    "make_grant": {},
    "revoke": None,
    "feed_of_session": None,
    "feed": None,
    "openapi": None,
}
# What an observer's grant may do: look.
LOOKING = {
    "read_session",
    "read_floor",
    "read",
    "wait",
    "read_journal",
    "list_grants",
    "feed_of_session",
}
# What a peer's grant may do as well.
PEER = {*LOOKING, "move_floor", "run", "send", "interrupt", "note"}
# Nothing of the kind here: told to whoever may know the session, and not before.
ABSENT = {"approve": 501, "signal": 501, "revive": 501, "answer": 409}


@dataclass(frozen=True)
class Route:
    id: str
    method: str
    path: str

    def ask(self, server: Server, session: str, *, headers: dict[str, str], **options: Any) -> Answer:
        path = self.path.replace("{name}", session).replace("{grant}", "nobody")
        if self.id.startswith("feed"):
            headers = {**headers, **UPGRADE}
        return server.request(
            self.method, f"/cmdop/api{path}", BODIES[self.id], headers=headers, **{"token": None, **options}
        )


TABLE = [
    Route(verb.id, method.upper(), path) for path, method, verb in api_openapi.described(api_routes.ROUTES)
]
PLAIN = [route for route in TABLE if not route.id.startswith("feed")]


@pytest.fixture(scope="module")
def with_routes(home: Home) -> Iterator[Server]:
    made = Servers(home)
    try:
        # What the canary opens must be in no log.
        yield made(ROUTES, env=IMPORTS, token=CANARY)
    finally:
        made.close()


@pytest.fixture(scope="module")
def owner(with_routes: Server) -> Api:
    return Api(with_routes)


@pytest.fixture(scope="module")
def made(owner: Api) -> str:
    return owner.make()


@pytest.fixture(scope="module")
def cookie(with_routes: Server) -> dict[str, str]:
    """A login as a browser has it, with the header that proves where a request comes from."""
    page = with_routes.get("/login", token=None)
    found = re.search(r"_xsrf=([^;]+)", page.headers.get("Set-Cookie", ""))
    assert found
    login = with_routes.request(
        "GET", f"/api/contents?token={CANARY}", token=None
    )  # as the link that a server prints
    return {"Cookie": f"_xsrf={found[1]}; {cookie_of(login)}", "X-XSRFToken": found[1]}


def refuse(answer: Answer, *codes: str) -> None:
    assert answer.status >= 400, answer
    problem = json.loads(answer.body)
    assert problem["code"] in codes, problem
    assert problem["message"]
    assert problem["next"]
    for header in ("Content-Security-Policy", "X-Content-Type-Options"):
        assert answer.headers.get(header), (header, answer)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_operation_has_its_row() -> None:
    assert {route.id for route in TABLE} == set(BODIES)
    assert len({route.id for route in TABLE}) == len(TABLE)


def test_every_handler_of_the_table_is_described() -> None:
    """A method without a mark would be served without its checks."""
    for pattern, handler in api_routes.ROUTES:
        for method in ("get", "head", "post", "put", "patch", "delete"):
            own = getattr(handler, method)
            if own.__module__.startswith("jupyter_cmdop"):
                assert hasattr(own, "__verb__"), (pattern, method)


def test_no_route_of_the_server_is_outside_the_table(with_routes: Server) -> None:
    """Also one that somebody adds elsewhere: nobody gets anything there without a credential."""
    routes = with_routes.get("/test/routes").data
    ours = [pattern for pattern, _ in routes if "/cmdop/api" in pattern]
    described = {pattern for pattern, _ in api_routes.rules("/")}
    assert described <= {pattern.rstrip("$") for pattern in ours}
    for pattern in ours:
        path = re.sub(r"\(\?P<\w+>[^)]*\)", "x", pattern.rstrip("$")).replace("\\", "").replace(".*", "x")
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            answer = with_routes.request(method, path, {} if method != "GET" else None, token=None)
            assert answer.status in (403, 404, 405), (method, path, answer)


@pytest.mark.parametrize("route", TABLE, ids=lambda route: route.id)
class TestRefusedEverywhere:
    def test_no_credential(self, route: Route, with_routes: Server, made: str) -> None:
        refuse(route.ask(with_routes, made, headers={}), "unauthenticated", "xsrf")

    def test_bad_token(self, route: Route, with_routes: Server, made: str) -> None:
        refuse(route.ask(with_routes, made, headers={}, token="wrong"), "unauthenticated", "xsrf")

    def test_token_in_the_url(self, route: Route, with_routes: Server, made: str) -> None:
        in_url = Route(route.id, route.method, f"{route.path}?token={CANARY}")
        refuse(in_url.ask(with_routes, made, headers={}), "token_in_url")

    def test_foreign_host(self, route: Route, with_routes: Server, made: str) -> None:
        answer = route.ask(with_routes, made, headers={"Host": "evil.example"}, token=CANARY)
        refuse(answer, "foreign_host")

    def test_foreign_origin(
        self, route: Route, with_routes: Server, made: str, cookie: dict[str, str]
    ) -> None:
        """A login cookie is sent by the browser whoever asks; that the page is ours must be proven."""
        answer = route.ask(with_routes, made, headers={**cookie, "Origin": "http://evil.example"})
        refuse(answer, "foreign_origin")

    def test_grant_for_another_session(
        self, route: Route, with_routes: Server, owner: Api, made: str
    ) -> None:
        others = other_token(owner)
        refuse(route.ask(with_routes, made, headers={}, token=others), "forbidden")


@pytest.mark.parametrize("route", PLAIN, ids=lambda route: route.id)
def test_cookie_without_xsrf(route: Route, with_routes: Server, made: str, cookie: dict[str, str]) -> None:
    answer = route.ask(with_routes, made, headers={"Cookie": cookie["Cookie"]})
    if route.method == "GET":
        assert answer.status in (200, 202)  # reading changes nothing, and no foreign page can read the answer
    else:
        refuse(answer, "xsrf")


@pytest.mark.parametrize("role", ["observer", "peer"])
def test_grant_opens_what_its_role_may(with_routes: Server, owner: Api, role: str) -> None:
    session = owner.make()
    bearer = owner.as_grant(session, f"a-{role}", role=role)
    allowed = LOOKING if role == "observer" else PEER
    for route in TABLE:
        if route.id == "feed_of_session":
            feed = bearer.feed(f"sessions/{session}/feed")
            assert feed.receive()["kind"] == "hello"
            feed.close()
            continue
        answer = route.ask(with_routes, session, headers={}, token=bearer.token)
        if route.id in allowed:
            assert answer.status in (200, 201, 202), (route, answer)
        elif route.id == "revoke":
            assert answer.status == 404, answer  # there is no grant of that name
        elif route.id in ABSENT and (role, route.id) != ("observer", "answer"):
            assert answer.status == ABSENT[route.id], answer
        else:
            refuse(answer, "forbidden", "read_only")
    with Session.open(session) as link:
        assert link.status().state == "open"
        admitted = list(link.log(types=["admitted"]))
    assert {entry["actor"] for entry in admitted} == ({"a-peer"} if role == "peer" else set())


def test_owner_may_everything_of_the_table(with_routes: Server, owner: Api) -> None:
    """That the rows are good requests: otherwise the refusals above would prove nothing."""
    for route in TABLE:
        session = owner.make() if route.method != "GET" else "made-by-the-table"
        if route.id == "create_session":
            assert owner.request("DELETE", f"sessions/{session}?force=true").status == 200
        elif owner.get("sessions/made-by-the-table").status != 200:
            assert owner.post("sessions", {"name": "made-by-the-table"}).status == 201
        if route.id.startswith("feed"):
            path = route.path.strip("/").replace("{name}", "made-by-the-table")
            feed = Feed(owner, path, None)
            assert feed.receive()["kind"] == "hello"
            feed.close()
            continue
        answer = route.ask(with_routes, session, headers={}, token=CANARY)
        if route.id in ABSENT:
            assert answer.status == ABSENT[route.id]
        elif route.id == "revoke":
            assert answer.status == 404
        else:
            assert answer.status in (200, 201, 202), (route, answer)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store"
        if route.method != "GET" and owner.get(f"sessions/{session}").status == 200:
            owner.request("DELETE", f"sessions/{session}?force=true")


_others: dict[int, str] = {}


def other_token(owner: Api) -> str:
    """The token of a grant for a session that the table is not about."""
    if id(owner) not in _others:
        session = owner.make()
        _others[id(owner)] = owner.as_grant(session).token
    return _others[id(owner)]


def test_cookie_with_xsrf_acts_as_the_owner(with_routes: Server, made: str, cookie: dict[str, str]) -> None:
    in_page = Api(with_routes, token=None, headers=cookie)
    assert in_page.run(made, "print('from a page')")["text"] == "from a page\n"
    origin = {"Origin": with_routes.url}
    assert in_page.post(f"sessions/{made}/note", {"text": "x"}, headers=origin).status == 201


def test_no_token_is_in_any_log(with_routes: Server, owner: Api, home: Home, made: str) -> None:
    """Whatever the tests of this module have asked, in every right and wrong way."""
    bearer = owner.as_grant(made, "quiet")
    bearer.run(made, "1")
    Route("run", "POST", f"/sessions/{{name}}/run?token={bearer.token}").ask(with_routes, made, headers={})
    tokens = [CANARY.encode(), bearer.token.encode(), other_token(owner).encode()]
    searched = 0
    for path in [*home.root.glob("*.log"), *home.state.rglob("*")]:
        if path.is_file() and path.name != "jpserver" and not path.name.endswith(".sock"):
            # Jupyter itself says at its start how it was started, and prints the link for the browser.
            lines = [line for line in path.read_bytes().splitlines() if b"/?token=" not in line]
            searched += 1
            for token in tokens:
                assert not [line for line in lines if token in line], path
    assert searched > 3

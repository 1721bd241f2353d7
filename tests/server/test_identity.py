"""Who is who: owners, others, grants; and what each may do on which route."""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path

import pytest

from jupyter_cmdop.client.session import Session
from jupyter_cmdop.server.identity import foreign_id
from tests.server.jupyter import UPGRADE, Server, Servers, cookie_of, raw_status
from tests.server.test_websocket import refused
from tests.support import Closing, Gate, Home, run_cli, wait_for_entry, wait_for_status

IMPORTS = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
PROVIDER = "--ServerApp.identity_provider_class=tests.server.providers.ExampleIdentityProvider"
ROUTES = "--ServerApp.jpserver_extensions=tests.server.extension_with_routes=True"


def name_of(server: Server, kernel_id: str) -> str:
    return str(server.kernels()[kernel_id]["cmdop"]["session"])


def invite(server: Server, kernel_id: str, *arguments: str) -> str:
    return str(run_cli("invite", name_of(server, kernel_id), *arguments).data["token"])


# ---------------------------------------------------------------------- grants


def test_grant_opens_the_model_and_the_websocket_of_its_session(server: Server, closing: Closing) -> None:
    kernel_id = server.start_kernel()
    token = invite(server, kernel_id, "--as", "bot", "--kind", "agent")
    assert server.get(f"/api/kernels/{kernel_id}", token=token).status == 200
    bearer = {"Authorization": f"Bearer {token}"}
    assert server.get(f"/api/kernels/{kernel_id}", token=None, headers=bearer).status == 200
    ws = closing(server.connect(kernel_id, token=token))
    assert ws.run("print('from the agent')") == "from the agent\n"
    with Session.open(kernel_id) as session:
        [admitted] = session.log(types=["admitted"])
        [present] = session.status().presence
    assert admitted["actor"] == "bot"
    assert (present.actor, present.kind, present.role) == ("bot", "agent", "peer")


def test_grant_of_an_observer_sees_and_types_nothing(server: Server, closing: Closing) -> None:
    kernel_id = server.start_kernel()
    token = invite(server, kernel_id, "--as", "eye", "--role", "observer")
    ws = closing(server.connect(kernel_id, token=token))
    messages = ws.until_idle(ws.execute("x = 1"))
    assert any(m["header"]["msg_type"] == "error" for m in messages)
    with Session.open(kernel_id) as session:
        wait_for_entry(session, "refused", actor="eye")
        assert list(session.log(types=["admitted"])) == []


def test_grant_is_good_for_one_session_only(server: Server) -> None:
    own, other = server.start_kernel(), server.start_kernel()
    token = invite(server, own)
    assert server.get(f"/api/kernels/{other}", token=token).status == 403
    assert refused(server, other, token=token) == 403


def test_grant_in_a_url_is_nothing(server: Server) -> None:
    kernel_id = server.start_kernel()
    token = invite(server, kernel_id)
    assert server.get(f"/api/kernels/{kernel_id}?token={token}", token=None).status in (302, 403)
    channels = f"/api/kernels/{kernel_id}/channels?token={token}"
    assert raw_status(server, "GET", channels, {"Host": f"127.0.0.1:{server.port}", **UPGRADE}) == 403


def test_revoked_grant_fails_at_once_and_its_websocket_is_closed(server: Server) -> None:
    kernel_id = server.start_kernel()
    token = invite(server, kernel_id, "--as", "bot")
    ws = server.connect(kernel_id, token=token)
    assert ws.run("print(1)") == "1\n"
    run_cli("revoke", name_of(server, kernel_id), "bot")
    assert server.get(f"/api/kernels/{kernel_id}", token=token).status in (302, 403)
    assert refused(server, kernel_id, token=token) == 403
    ws.wait_closed()


@pytest.fixture
def with_routes(servers: Servers) -> Server:
    return servers(ROUTES, env=IMPORTS)


def test_grant_is_refused_on_every_other_route(with_routes: Server) -> None:
    """Every rule of the application's router, every method: never more than somebody without a credential gets."""
    server = with_routes
    kernel_id = server.start_kernel()
    token = invite(server, kernel_id)
    routes = server.get("/test/routes").data
    patterns = [pattern for pattern, _ in routes]
    first = next(handler for pattern, handler in routes if "kernel_id" in pattern and "channels" in pattern)
    assert first == "jupyter_cmdop.server.websocket.SessionWebsocketHandler"
    assert len(patterns) > 40
    allowed = {("GET", f"/api/kernels/{kernel_id}")}
    # JupyterLab's handler of licences cannot write an error of any kind: it leaves whoever asks without an answer.
    paths = {path for pattern in patterns for path in examples(pattern, kernel_id)}
    paths = {path for path in paths if path.startswith("/") and "licenses" not in path}
    assert f"/api/kernels/{kernel_id}/restart" in paths
    assert "/test/routes" in paths
    assert "/api/shutdown" in paths
    asked = 0
    for path in sorted(paths):
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            if (method, path) in allowed:
                continue
            with_grant = server.request(method, path, token=token)
            assert with_grant.status != 0, (method, path, server.text()[-2000:])
            asked += 1
            if with_grant.status < 400 and with_grant.status not in (301, 302):
                nobody = server.request(method, path, token=None)
                assert nobody.status == with_grant.status, (method, path, with_grant)
    assert asked > 200
    assert list(server.kernels()) == [kernel_id]


def examples(pattern: str, kernel_id: str) -> list[str]:
    """Paths that a route's pattern matches."""
    text = pattern.removesuffix("$").removeprefix("^")
    text = re.sub(r"\(\?P<kernel_id>[^)]*\)", kernel_id, text)
    found = [text]
    if "(?P<action>" in text:
        actions = re.search(r"\(\?P<action>([^)]*)\)", text)
        assert actions
        found = [text.replace(actions[0], action) for action in actions[1].split("|")]
    result = []
    for one in found:
        one = re.sub(r"\(\?P<\w+>\(\?:\(\?:/\[\^/\]\+\)\+\|/\?\)\)", "/a.txt", one)
        one = re.sub(r"\(\?P<\w+>\\w\+-\\w\+-\\w\+-\\w\+-\\w\+\)", kernel_id, one)
        while re.search(r"\([^()]*\)", one):
            one = re.sub(r"\([^()]*\)[?+*]?", "x", one)
        one = re.sub(r"\\([./-])", r"\1", one).replace("/?", "/").replace("\\w+", "x").replace(".*", "x")
        if re.fullmatch(pattern, one):
            result.append(urllib.parse.quote(one))
    return result


# ---------------------------------------------------------------------- other people


@pytest.fixture
def foreign(servers: Servers) -> Server:
    return servers(PROVIDER, env=IMPORTS)


def test_others_bear_the_name_of_who_vouches_for_them(foreign: Server, closing: Closing, gate: Gate) -> None:
    kernel_id = foreign.start_kernel()  # by the bare token: the owner
    alice = {"X-User": "alice"}
    ws = closing(foreign.connect(kernel_id, token=None, headers=alice))
    assert ws.run("print(1)") == "1\n"
    with Session.open(kernel_id) as session:
        [admitted] = session.log(types=["admitted"])
        assert admitted["actor"] == "example:alice"
        ws.execute(gate.code)
        wait_for_status(session, lambda s: s.running)
        bob = xsrf_headers(foreign, {"X-User": "bob"})
        assert foreign.post(f"/api/kernels/{kernel_id}/interrupt", token=None, headers=bob).status == 204
        ended = wait_for_entry(session, "ended", where=lambda e: e["data"]["outcome"] == "interrupted")
        assert ended["operation"]
        interrupts = [e for e in session.log() if e.get("actor") == "example:bob"]
        assert interrupts
        # A peer restarts nothing, and is told why; the owner does.
        refused_restart = foreign.post(f"/api/kernels/{kernel_id}/restart", token=None, headers=bob)
        assert refused_restart.status == 403
        assert "lifecycle" in refused_restart.data["message"]
        assert foreign.delete(f"/api/kernels/{kernel_id}", token=None, headers=bob).status == 403
        assert foreign.post(f"/api/kernels/{kernel_id}/restart").status == 200


def xsrf_headers(server: Server, known: dict[str, str]) -> dict[str, str]:
    """The cookie that Jupyter asks for where no token authenticates a request, and who asks."""
    answer = server.get("/login", token=None)
    found = re.search(r"_xsrf=([^;]+)", answer.headers.get("Set-Cookie", ""))
    assert found, answer.headers
    return {**known, "Cookie": f"_xsrf={found[1]}", "X-XSRFToken": found[1]}


def test_name_of_a_stranger_is_never_that_of_the_owner(foreign: Server, home: Home, closing: Closing) -> None:
    kernel_id = foreign.start_kernel()
    with Session.open(kernel_id) as session:
        owner = session.actor
        closing(foreign.connect(kernel_id, token=None, headers={"X-User": owner}))
        [present] = wait_for_status(session, lambda s: s.presence).presence
    assert present.actor == f"example:{owner}"
    assert present.role == "peer"


def test_hub_user_on_his_own_server_is_the_owner(
    servers: Servers, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_USER", "alice")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    server = servers(PROVIDER, env=IMPORTS)
    xsrf = xsrf_headers(server, {"X-User": "alice"})
    answer = server.post("/api/kernels", {"name": "python3"}, token=None, headers=xsrf)
    assert answer.status == 201
    kernel_id = answer.data["id"]
    alice = closing(server.connect(kernel_id, token=None, headers={"X-User": "alice"}))
    bob = closing(server.connect(kernel_id, token=None, headers={"X-User": "bob"}))
    with Session.open(kernel_id) as session:
        present = wait_for_status(session, lambda s: len(s.presence) == 2).presence
        assert session.actor == "alice"
    assert {(p.actor, p.role) for p in present} == {("alice", "owner"), ("example:bob", "peer")}
    alice.close()
    bob.close()


def test_foreign_ids_never_meet() -> None:
    names = ["alice", "a b", "a_b", "a+b", "a+20+b", "", "ä", "x" * 300, "x" * 301]
    ids = [foreign_id("hub", name) for name in names]
    assert len(set(ids)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._@:/+-]{0,127}", one) for one in ids)


# ---------------------------------------------------------------------- no credential, cookies


def test_without_a_credential_nothing_is_answered(server: Server) -> None:
    kernel_id = server.start_kernel()
    for token in (None, "wrong"):
        for method, path in (
            ("GET", "/api/kernels"),
            ("POST", "/api/kernels"),
            ("GET", f"/api/kernels/{kernel_id}"),
            ("DELETE", f"/api/kernels/{kernel_id}"),
            ("POST", f"/api/kernels/{kernel_id}/interrupt"),
            ("POST", f"/api/kernels/{kernel_id}/restart"),
            ("GET", "/api/sessions"),
        ):
            assert server.request(method, path, token=token).status in (302, 403), (method, path)
    assert list(server.kernels()) == [kernel_id]


def test_foreign_host_origin_and_missing_xsrf_are_refused(server: Server) -> None:
    kernel_id = server.start_kernel()
    restart = f"/api/kernels/{kernel_id}/restart"
    assert server.post(restart, headers={"Host": "evil.example"}).status == 403
    cookie = {"Cookie": cookie_of(server.get("/api/status"))}
    assert server.post(restart, token=None, headers=cookie).status == 403
    foreign = {**cookie, "Origin": "http://evil.example"}
    assert server.post(restart, token=None, headers=foreign).status in (403, 404)
    with Session.open(kernel_id) as session:
        assert session.status().incarnation == 1


def test_logout_closes_what_the_cookie_opened(server: Server) -> None:
    kernel_id = server.start_kernel()
    cookie = {"Cookie": cookie_of(server.get("/api/status"))}
    other = {"Cookie": cookie_of(server.get("/api/status"))}
    ws = server.connect(kernel_id, token=None, headers=cookie)
    kept = server.connect(kernel_id, token=None, headers=other)
    assert ws.run("print(1)") == "1\n"
    assert server.get("/logout", token=None, headers=cookie).status == 200
    ws.wait_closed()
    assert kept.run("print(2)").endswith("2\n")
    kept.close()

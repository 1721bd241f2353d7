"""What comes in by the link's websocket and is no good: refused, the session goes on, and nobody is somebody else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import websocket

from jupyter_cmdop.client.session import Session
from jupyter_cmdop.wire.link import FrameDecoder, encode_frame, unspill
from tests.faults.attacks import lengths
from tests.server.jupyter import TOKEN, UPGRADE, Server, Servers, cookie_of, raw_status
from tests.support import LIMIT_SECONDS, Closing, Sessions, run_cli, wait_for_status

HELLO = {"protocol": 1, "oldest": 1, "client": "raw"}


@pytest.fixture(scope="module")
def lone(module_session: Sessions) -> Session:
    return module_session("under-attack")


class RawSocket:
    """The websocket of a link, saying whatever it is told to."""

    def __init__(
        self,
        server: Server,
        name: str,
        token: str | None,
        *,
        hello: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        sent = {**({} if token is None else {"Authorization": f"token {token}"}), **(headers or {})}
        self.ws = websocket.WebSocket()
        self.ws.settimeout(LIMIT_SECONDS)
        self.ws.connect(
            f"ws://127.0.0.1:{server.port}/cmdop/api/sessions/{name}/link",
            header=[f"{key}: {value}" for key, value in sent.items()],
            suppress_origin=True,
            http_no_proxy=["127.0.0.1"],
        )
        self._decoder = FrameDecoder()
        self._frames: list[dict[str, Any]] = []
        self.close_code: int | None = None
        if hello is not None:
            self.send({"hello": {**HELLO, **hello}})

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self.ws.send_binary(encode_frame(header, payload))

    def receive(self) -> dict[str, Any] | None:
        """The next frame; None when the connection is closed."""
        while not self._frames:
            try:
                opcode, data = self.ws.recv_data()
            except (websocket.WebSocketException, OSError):
                return None
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                self.close_code = int.from_bytes(data[:2], "big")
                return None
            self._frames += [unspill(h, p) for h, p in self._decoder.feed(data)]
        return self._frames.pop(0)

    def ask(self, verb: str, **args: Any) -> dict[str, Any]:
        self.send({"id": 1, "verb": verb, "args": args})
        while True:
            frame = self.receive()
            assert frame is not None, f"closed with {self.close_code}"
            if "item" not in frame and "event" not in frame:
                return frame

    def close(self) -> None:
        self.ws.shutdown()


@pytest.fixture
def bob(lone: Session) -> str:
    token = lone.invite("bob").token
    assert token is not None
    return token


def test_nobody_says_who_he_is(server: Server, lone: Session, bob: str, closing: Closing) -> None:
    """A name, a token, a word of a server: whoever authenticated with one credential is that one."""
    other = lone.invite("other").token
    verified = {"id": lone.actor, "role": "owner", "grant": None}
    for claim in ({"actor": lone.actor}, {"actor": "other"}, {"token": other}, {"verified": verified}):
        raw = closing(RawSocket(server, lone.name, bob, hello=claim))
        frame = raw.receive()
        assert frame is not None, claim
        assert frame["refusal"]["code"] == "forbidden"
        assert raw.receive() is None
        assert raw.close_code == 1008
    for claim in ({"token": other}, {"verified": verified}):
        raw = closing(RawSocket(server, lone.name, TOKEN, hello=claim))
        frame = raw.receive()
        assert frame is not None
        assert frame["refusal"]["code"] == "forbidden"
    raw = closing(RawSocket(server, lone.name, bob, hello={"kind": "service", "rights": ["close"]}))
    frame = raw.receive()
    assert frame is not None
    assert frame["hello"]["actor"]["id"] == "bob"
    assert "lifecycle" not in frame["hello"]["rights"]


def test_verbs_of_servers_are_not_asked(server: Server, lone: Session, closing: Closing) -> None:
    raw = closing(RawSocket(server, lone.name, TOKEN, hello={}))
    assert "hello" in (raw.receive() or {})
    for verb in ("adopt", "renew", "drop", "activity", "no-such-verb"):
        assert raw.ask(verb)["refusal"]["code"] == "unsupported"
    assert raw.ask("invite", actor="mallory", held=True)["refusal"]["code"] == "forbidden"
    assert raw.ask("status")["result"]["id"] == lone.id
    assert raw.ask("run")["error"]["code"] == "bad_request"
    raw.send({"hello": {**HELLO, "actor": "other"}})
    assert (raw.receive() or {}).get("error", {}).get("code") == "bad_request"
    assert raw.ask("status")["result"]["id"] == lone.id


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 200,
        lengths(2**31, 0),
        lengths(20, 2**40),
        lengths(5, 0) + b"nojso",
        lengths(2, 0) + b"[]",
        encode_frame({"no": "hello"}),
        encode_frame({"hello": "no object"}),
        encode_frame({"hello": {"protocol": "x"}}),
        b"x" * (2 * 2**20),
    ],
    ids=[
        "garbage",
        "long header",
        "long payload",
        "no json",
        "no object",
        "other",
        "text",
        "types",
        "oversized",
    ],
)
def test_what_is_no_frame_ends_the_connection(
    server: Server, lone: Session, bob: str, closing: Closing, data: bytes
) -> None:
    raw = closing(RawSocket(server, lone.name, bob))
    raw.ws.send_binary(data)
    while raw.receive() is not None:
        pass
    greeted = closing(RawSocket(server, lone.name, bob, hello={}))
    assert "hello" in (greeted.receive() or {})
    greeted.ws.send_binary(lengths(2**31, 0))
    while greeted.receive() is not None:
        pass
    assert lone.run("1").status == "ok"
    wait_for_status(lone, lambda s: all(p.actor != "bob" for p in s.presence))


def test_text_is_no_link(server: Server, lone: Session, bob: str, closing: Closing) -> None:
    raw = closing(RawSocket(server, lone.name, bob))
    raw.ws.send(json.dumps({"hello": HELLO}))
    assert raw.receive() is None
    assert raw.close_code == 1003


def test_a_foreign_origin_needs_a_token_and_nobody_comes_without_one(server: Server, lone: Session) -> None:
    path = f"/cmdop/api/sessions/{lone.name}/link"
    base = {**UPGRADE, "Host": f"127.0.0.1:{server.port}"}
    assert raw_status(server, "GET", path, base) == 403
    for way in ("link", "channels"):
        in_url = f"/cmdop/api/sessions/{lone.name}/{way}?token={TOKEN}"
        assert raw_status(server, "GET", in_url, {**base, "Origin": "http://evil.example"}) == 400
    wrong = {**base, "Authorization": "token wrong"}
    assert raw_status(server, "GET", path, wrong) == 403
    plain = {"Host": base["Host"], "Authorization": f"token {TOKEN}"}
    assert raw_status(server, "GET", path, plain) == 400


def test_one_guest_does_not_take_all_places(server: Server, lone: Session, closing: Closing) -> None:
    token = str(lone.invite("many").token)
    raws = [closing(RawSocket(server, lone.name, token, hello={})) for _ in range(64)]
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        RawSocket(server, lone.name, token)
    assert refused.value.status_code == 429
    raws[0].close()
    owner = closing(RawSocket(server, lone.name, TOKEN, hello={}))
    assert "hello" in (owner.receive() or {})


def test_who_does_not_read_holds_nobody_up(server: Server, lone: Session, bob: str, closing: Closing) -> None:
    """A reader asks for everything and reads nothing; the others go on, and he is not served from memory."""
    lone.run("for n in range(100): print('z' * 500_000, end='', flush=True)")
    raw = closing(RawSocket(server, lone.name, bob, hello={}))
    for number in range(1, 9):
        raw.send({"id": number, "verb": "read", "args": {"follow": True}})
    for _ in range(3):
        assert lone.run("1").status == "ok"
    assert run_cli("status", lone.name).data["state"] == "open"
    assert server.get("/api/kernels").status == 200
    raw.close()
    wait_for_status(lone, lambda s: all(p.actor != "bob" for p in s.presence))


def test_no_credential_in_the_log(server: Server, bob: str, lone: Session, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(bob)
    run_cli("status", lone.name, "--url", server.url, "--grant-file", str(path))
    assert bob not in server.text()
    refused = run_cli("status", lone.name, "--url", f"{server.url}/?token={bob}", code=2)
    assert bob not in refused.err


PROVIDER = "--ServerApp.identity_provider_class=tests.server.providers.ExampleIdentityProvider"


def test_another_user_of_the_server_knows_the_sessions_that_it_shows(
    servers: Servers, lone: Session, closing: Closing
) -> None:
    """He bears the name of who vouches for him, whatever he says; a session of another directory is not there."""
    server = servers(PROVIDER, env={"PYTHONPATH": str(Path(__file__).resolve().parents[2])})
    kernel_id = server.start_kernel()
    alice = {"X-User": "alice"}
    raw = closing(RawSocket(server, kernel_id, None, hello={}, headers=alice))
    frame = raw.receive()
    assert frame is not None
    assert frame["hello"]["actor"]["id"] == "example:alice"
    assert raw.ask("close")["refusal"]["code"] == "forbidden"
    claiming = closing(RawSocket(server, kernel_id, None, hello={"actor": lone.actor}, headers=alice))
    assert (claiming.receive() or {})["refusal"]["code"] == "forbidden"
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        RawSocket(server, lone.name, None, headers=alice)
    assert refused.value.status_code == 404
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        RawSocket(server, "no-such-session", None, headers=alice)
    assert refused.value.status_code == 404
    owner = closing(RawSocket(server, lone.name, TOKEN, hello={}))
    assert (owner.receive() or {})["hello"]["actor"]["id"] == lone.actor
    with Session.open(kernel_id) as session:
        session.close(force=True)


def test_a_logout_closes_what_the_cookie_opened(server: Server, lone: Session, closing: Closing) -> None:
    answer = server.get(f"/login?token={TOKEN}", token=None)
    cookie = {"Cookie": cookie_of(answer)}
    raw = closing(RawSocket(server, lone.name, None, hello={}, headers=cookie))
    assert "hello" in (raw.receive() or {})
    assert server.get("/logout", token=None, headers=cookie).status == 200
    assert raw.receive() is None
    assert raw.close_code == 1008

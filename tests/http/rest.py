"""The API as a script sees it: paths below `cmdop/api`, and what came of them."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Mapping
from typing import Any

import websocket

from tests.server.jupyter import Answer, Server
from tests.support import LIMIT_SECONDS


def name() -> str:
    return f"http-{uuid.uuid4().hex[:8]}"


class Api:
    """Requests to a server's API, by default with the server's token."""

    def __init__(
        self, server: Server, *, token: str | None = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._token = token
        self._headers = dict(headers or {})

    def as_grant(self, session: str, actor: str = "bot", **options: Any) -> Api:
        made = self.post(f"sessions/{session}/grants", {"actor": actor, "kind": "agent", **options})
        assert made.status == 201, made
        return Api(self.server, token=made.data["token"])

    @property
    def token(self) -> str:
        return self.server.token if self._token == "" else str(self._token)

    def request(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        headers = {**self._headers, **options.pop("headers", {})}
        options.setdefault("timeout", LIMIT_SECONDS * 3)
        return self.server.request(
            method, f"/cmdop/api/{path}", body, **{"token": self._token, "headers": headers, **options}
        )

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request("POST", path, {} if body is None else body, **options)

    def make(self, **body: Any) -> str:
        answer = self.post("sessions", {"name": name(), **body})
        assert answer.status == 201, (answer, self.server.text()[-3000:])
        return str(answer.data["name"])

    def run(self, session: str, code: str, **body: Any) -> Any:
        answer = self.post(f"sessions/{session}/run", {"code": code, "wait_seconds": 30, **body})
        assert answer.status == 200, answer
        return answer.data

    def feed(self, path: str = "feed", *, after: str | None = None) -> Feed:
        return Feed(self, path, after)


class Feed:
    """A websocket of the feed."""

    def __init__(self, api: Api, path: str, after: str | None, *, receive_bytes: int = 0) -> None:
        query = "" if after is None else f"?after={after}"
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)] if receive_bytes else None
        self.ws = websocket.WebSocket(sockopt=small)
        self.ws.settimeout(LIMIT_SECONDS)
        self.ws.connect(
            f"{api.server.url.replace('http', 'ws', 1)}/cmdop/api/{path}{query}",
            header=[f"Authorization: token {api.token}"],
            suppress_origin=True,
            http_no_proxy=["127.0.0.1"],
        )
        self.close_code: int | None = None

    def receive(self) -> dict[str, Any]:
        """The next record; ConnectionError when the other side has closed, with its code in `close_code`."""
        while True:
            opcode, data = self.ws.recv_data()
            if opcode == websocket.ABNF.OPCODE_TEXT:
                return dict(json.loads(data))
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                self.close_code = int.from_bytes(data[:2], "big")
                raise ConnectionError(f"closed: {data!r}")

    def until(self, **fields: Any) -> list[dict[str, Any]]:
        """What arrives up to the first record with these values."""
        found: list[dict[str, Any]] = []
        while not found or any(found[-1].get(key) != value for key, value in fields.items()):
            found.append(self.receive())
        return found

    def until_closed(self) -> list[dict[str, Any]]:
        found = []
        try:
            while True:
                found.append(self.receive())
        except (ConnectionError, websocket.WebSocketConnectionClosedException):
            self.ws.shutdown()
        return found

    def cut(self) -> None:
        """Go away without a word."""
        self.ws.shutdown()

    close = cut

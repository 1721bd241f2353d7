"""Receive hooks, and run what they stand for in a session, as a service with a name of its own.

    jupyter cmdop invite NAME --as ci-hook --kind service --grant-file-out hook.grant
    python webhook.py --url http://localhost:8888/ --grant-file hook.grant --secret-file hook.secret

A hook is `POST /hook` with JSON, signed as GitHub does it: `X-Hub-Signature-256: sha256=<HMAC of the body>`. Its data
is given to one function that the session (of a Python kernel) has to have, `on_hook(data)`; code is never taken from a
hook. The delivery's id is the request id of the run, so a hook that is delivered again does not run again: it gets the
first result.

As long as this runs it follows the session's feed: others see it among those who are there, and it ends when the
session ends or its grant is taken back. It needs tornado, and nothing of jupyter_cmdop.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import os
import re
import stat
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

from tornado import httpclient, web, websocket

COME_AGAIN_SECONDS = 30
MARGIN_SECONDS = 1.5  # for an answer that was waited for until the last moment
BODY_BYTES = 1 << 20
TRANSIENT = (
    409,
    423,
    429,
    502,
    503,
    504,
    599,
)  # somebody drives, a journal is full, too often, nobody answers
ENDED = {4000: "the session has ended", 4403: "the grant has ended"}


def read_private(path: str) -> str:
    """The text of a file that nobody else may read."""
    with open(path, encoding="utf-8") as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            sys.exit(f"{path} is open to other users: chmod 600 {path}, and get a new secret")
        return file.read().strip()


@dataclass(frozen=True)
class Session:
    """The session that the grant opens, over HTTP."""

    url: str
    token: str = field(repr=False)
    patience_seconds: float

    def request(self, url: str, **options: Any) -> httpclient.HTTPRequest:
        headers = {
            "Authorization": f"token {self.token}",
            "User-Agent": "webhook",
            **options.pop("headers", {}),
        }
        return httpclient.HTTPRequest(url, headers=headers, **options)

    async def fetch(self, url: str, deadline: float, **options: Any) -> httpclient.HTTPResponse:
        left = max(0.0, deadline - time.monotonic()) + MARGIN_SECONDS
        request = self.request(url, request_timeout=left, follow_redirects=False, **options)
        try:
            return await httpclient.AsyncHTTPClient().fetch(request, raise_error=False)
        except (OSError, httpclient.HTTPError) as error:  # the server is away, or was on the way
            return httpclient.HTTPResponse(request, 599, reason=str(error))

    async def run(self, code: str, request_id: str) -> httpclient.HTTPResponse:
        """Run it once, whatever happens on the way; the last answer when time is up."""
        deadline = time.monotonic() + self.patience_seconds
        body = json.dumps({"code": code, "wait_seconds": self.patience_seconds / 2})
        headers = {"Content-Type": "application/json", "Idempotency-Key": request_id}
        while True:
            answer = await self.fetch(f"{self.url}/run", deadline, method="POST", body=body, headers=headers)
            while answer.code == 202 and time.monotonic() < deadline:  # it runs on: ask where we are told to
                left = round(max(0.0, deadline - time.monotonic()), 1)
                answer = await self.fetch(
                    urljoin(self.url, answer.headers["Location"]) + f"&wait_seconds={left}", deadline
                )
            told = answer.headers.get("Retry-After", "1")
            pause = float(told) if told.isdecimal() else COME_AGAIN_SECONDS  # a proxy may say a date
            if answer.code not in TRANSIENT or time.monotonic() + pause >= deadline:
                return answer
            await asyncio.sleep(pause)  # then the same under the same id: it never runs twice

    async def be_there(self) -> str:
        """Follow the feed until there is nothing more to come back for; why."""
        while True:
            try:
                request = self.request(self.url.replace("http", "ws", 1) + "/feed")
                feed = await websocket.websocket_connect(request, ping_interval=20)
                while await feed.read_message() is not None:
                    pass  # what happens in the session is not this program's business
                if feed.close_code in ENDED:
                    return ENDED[feed.close_code]
            except httpclient.HTTPClientError as error:
                if error.code in (403, 404, 410):
                    return f"the session has ended, or the grant has (HTTP {error.code})"
            except OSError:
                pass  # the server is away: sessions live on without it
            await asyncio.sleep(1)


class Hook(web.RequestHandler):
    def initialize(self, session: Session, secret: str) -> None:
        self.session, self.secret = session, secret

    def say(self, code: int, /, **data: Any) -> None:
        self.set_status(code)
        self.write(data)
        print(self.request.headers.get("X-GitHub-Delivery"), code, json.dumps(data), flush=True)

    async def post(self) -> None:
        wanted = hmac.new(self.secret.encode(), self.request.body, hashlib.sha256).hexdigest()
        given = self.request.headers.get("X-Hub-Signature-256", "")
        delivery = self.request.headers.get("X-GitHub-Delivery", "")
        if not hmac.compare_digest(given.encode(), f"sha256={wanted}".encode()):
            return self.say(401, error="the signature is not that of this hook")
        try:
            data = json.loads(self.request.body)
        except (ValueError, RecursionError):
            return self.say(400, error="the body is no JSON")
        if not re.fullmatch(r"[A-Za-z0-9-]{1,100}", delivery):
            return self.say(400, error="X-GitHub-Delivery: up to 100 letters, digits and hyphens")
        # What JSON can hold, Python writes as literals: whatever a hook says, it stays data.
        self.answer(await self.session.run(f"on_hook({data!r})", f"hook-{delivery}"))

    def answer(self, answer: httpclient.HTTPResponse) -> None:
        """What became of it, in words that make a sender deliver again only where that helps."""
        try:
            told = json.loads(answer.body or b"{}")
        except ValueError:  # a page of a proxy
            told = {}
        if answer.code in (200, 202):  # 202: delivered again, it gets the result
            keys = ("status", "operation", "text", "ename", "evalue")
            self.say(answer.code, **{key: told[key] for key in keys if told.get(key) is not None})
        elif answer.code in TRANSIENT and told.get("code") != "request_id_conflict":
            self.set_header("Retry-After", answer.headers.get("Retry-After", COME_AGAIN_SECONDS))
            self.say(503, code=told.get("code"), error=told.get("message") or "the session cannot be reached")
        else:
            self.say(502, code=told.get("code"), error=told.get("message") or f"HTTP {answer.code}")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Receive hooks and run on_hook(data) in a session.")
    parser.add_argument("--url", required=True, help="of the Jupyter server")
    parser.add_argument("--grant-file", required=True, help="what `jupyter cmdop invite` wrote")
    parser.add_argument("--secret-file", required=True, help="what the sender signs with")
    parser.add_argument("--port", type=int, default=8899)
    parser.add_argument(
        "--patience", type=float, default=8.0, help="seconds after which a sender is answered"
    )
    args = parser.parse_args()
    grant = json.loads(read_private(args.grant_file))["cmdop"]
    url = f"{args.url.rstrip('/')}/cmdop/api/sessions/{grant['session']}"
    session = Session(url, grant["token"], args.patience)
    options = {"session": session, "secret": read_private(args.secret_file)}
    application = web.Application([("/hook", Hook, options)])
    # TLS and the way from outside are the business of a proxy in front of it.
    server = application.listen(args.port, "127.0.0.1", max_body_size=BODY_BYTES)
    print(f"{grant['actor']} listens on http://127.0.0.1:{args.port}/hook", flush=True)
    why = await session.be_there()
    server.stop()
    await server.close_all_connections()
    sys.exit(f"{grant['actor']} ends: {why}")


if __name__ == "__main__":
    asyncio.run(main())

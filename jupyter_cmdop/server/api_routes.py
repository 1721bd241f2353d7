"""The table of the HTTP API: each route once. The server, the OpenAPI file, the reference and the tests read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join

from .api_base import ApiHandler, Verb, verb
from .api_feed import FeedHandler, SessionFeedHandler
from .api_sessions import GrantHandler, GrantsHandler, RestartHandler, SessionHandler, SessionsHandler
from .api_verbs import (
    AnswerHandler,
    ApproveHandler,
    FloorHandler,
    InterruptHandler,
    JournalHandler,
    NoteHandler,
    PolicyHandler,
    ReadHandler,
    ReviveHandler,
    RunHandler,
    SendHandler,
    SignalHandler,
    WaitHandler,
)

OPENAPI_FILE = Path(__file__).with_name("openapi.json")
"""Written by tools/reference.py from this table."""


class OpenApiHandler(ApiHandler):
    @verb(Verb("openapi", "This description of the API", {200: dict[str, Any]}))
    async def get(self) -> None:
        await self.finish(OPENAPI_FILE.read_bytes())


class UnknownHandler(ApiHandler):
    """Whatever else is asked below `cmdop/api/`: an error of the API and no page for people."""

    async def prepare(self, **options: Any) -> None:
        await super().prepare()
        self.send_error(404)


_SESSION = r"sessions/(?P<name>[^/]+)"

ROUTES: list[tuple[str, type[JupyterHandler]]] = [
    (r"sessions", SessionsHandler),
    (_SESSION, SessionHandler),
    (rf"{_SESSION}/floor", FloorHandler),
    (rf"{_SESSION}/policy", PolicyHandler),
    (rf"{_SESSION}/run", RunHandler),
    (rf"{_SESSION}/send", SendHandler),
    (rf"{_SESSION}/read", ReadHandler),
    (rf"{_SESSION}/wait", WaitHandler),
    (rf"{_SESSION}/answer", AnswerHandler),
    (rf"{_SESSION}/approve", ApproveHandler),
    (rf"{_SESSION}/interrupt", InterruptHandler),
    (rf"{_SESSION}/signal", SignalHandler),
    (rf"{_SESSION}/restart", RestartHandler),
    (rf"{_SESSION}/revive", ReviveHandler),
    (rf"{_SESSION}/note", NoteHandler),
    (rf"{_SESSION}/journal", JournalHandler),
    (rf"{_SESSION}/grants", GrantsHandler),
    (rf"{_SESSION}/grants/(?P<grant>[^/]+)", GrantHandler),
    (rf"{_SESSION}/feed", SessionFeedHandler),
    (r"feed", FeedHandler),
    (r"openapi\.json", OpenApiHandler),
]
"""Pattern below `<base_url>cmdop/api/` -> handler."""


def rules(base_url: str) -> list[tuple[str, type[JupyterHandler]]]:
    """The routes as tornado takes them."""
    return [(url_path_join(base_url, "cmdop", "api", pattern), handler) for pattern, handler in ROUTES]


def unknown(base_url: str) -> tuple[str, type[JupyterHandler]]:
    """What comes behind every other route."""
    return url_path_join(base_url, "cmdop", "api", ".*"), UnknownHandler

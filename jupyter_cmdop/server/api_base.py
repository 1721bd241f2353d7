"""What every handler of the HTTP API does: who asks, is the request whole, and what is answered, errors too.

A method is marked with `verb`, which says what it takes and gives; the OpenAPI file is made from the same marks. So a
route that is not described cannot be served, and one that takes something else than it says cannot be written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from tornado import web

from jupyter_cmdop.client.errors import ClientError
from jupyter_cmdop.core.actor import BadName

from .api_errors import ApiError, api_error, problem_of
from .api_reach import Api, session_id_of
from .identity import Person

BODY_BYTES = 64 * 1024 * 1024
"""As much as a keeper lets one actor have waiting."""

Action = Literal["read", "write", "execute"]
B = TypeVar("B", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Verb:
    """What a method of a route takes and gives.

    Attributes:
        answers: the type of each status' body.
        action: what the server's authorizer is asked about the resource `kernels`.
        files: content types other than JSON that it may answer with.
    """

    id: str
    summary: str
    answers: Mapping[int, Any]
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    action: Action = "read"
    is_limited: bool = False
    files: tuple[str, ...] = ()


Method = Callable[..., Awaitable[None]]


def verb(described: Verb) -> Callable[[Method], Method]:
    """Authenticate, authorise, count, decode, and translate what goes wrong."""

    def decorate(method: Method) -> Method:
        async def answer(self: ApiHandler, **path: str) -> None:
            if described.is_limited:
                self.api.limit.spend(self.person.actor.id)
            arguments: dict[str, Any] = dict(path)
            if described.query is not None:
                arguments["query"] = self.read_query(described.query)
            if described.body is not None:
                arguments["body"] = self.read_body(described.body)
            try:
                await method(self, **arguments)
            except ClientError as error:
                self.log.info("%s is answered with an error: %s", described.id, type(error).__name__)
                raise api_error(error) from error
            except BadName as error:
                raise ApiError("bad_name", str(error)) from error

        allowed: Method = authorized(action=described.action, resource="kernels")(answer)
        known = cast("Method", web.authenticated(allowed))
        known.__verb__ = described  # type: ignore[attr-defined]  # `verb_of` reads it
        return known

    return decorate


def verb_of(handler: type[Any], method: str) -> Verb | None:
    """How a handler's method is described; None when it has no such method."""
    return getattr(getattr(handler, method.lower(), None), "__verb__", None)


class Guarded(JupyterHandler):
    """What plain requests and websockets of the API have in common."""

    @property
    def api(self) -> Api:
        return cast("Api", self.settings["cmdop_api"])

    @property
    def person(self) -> Person:
        return self.api.people.of(self)

    @property
    def client(self) -> str:
        """What the journal says of the program that asked."""
        agent = self.request.headers.get("User-Agent", "")
        return f"http: {agent}"[:200] if agent else "http"

    def check_first(self) -> None:
        """What is refused whoever asks.

        Raises:
            ApiError: a token in the URL, which logs and histories keep, or a host that is not ours.
        """
        if "token" in self.request.query_arguments:
            raise ApiError("token_in_url", "a token in a URL gets into logs: it is not taken")
        if not self.check_host():
            self.current_user = self._jupyter_current_user = None
            raise ApiError("foreign_host", "this server is not known under the name that was asked for")

    def check_xsrf_cookie(self) -> None:
        try:
            super().check_xsrf_cookie()
        except ApiError:
            raise
        except web.HTTPError as error:
            if error.status_code == 404:
                raise _foreign() from error
            message = "a request with a login cookie must prove that it comes from a page of this server"
            raise ApiError("xsrf", message) from error

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        exc_info = kwargs.get("exc_info")
        error = exc_info[1] if exc_info else None
        if (
            status_code == 403
            and not isinstance(error, ApiError)
            and getattr(self, "_jupyter_current_user", None) is None
        ):
            error = ApiError("unauthenticated", "nobody is known by the credential of this request")
        problem = problem_of(status_code, error)
        self.set_header("Content-Type", "application/json")
        retry_after = (problem.get("refusal") or {}).get("retry_after")
        if retry_after is not None:
            self.set_header("Retry-After", str(max(1, round(retry_after))))
        if status_code == 405:
            self.set_header("Allow", ", ".join(allowed_methods(type(self))))
        self._finishing = self.finish(msgspec.json.encode(problem))

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """As tornado's, but for the query, which may be a place where somebody put a token."""
        request = f"{self.request.method} {self.request.path}"
        if isinstance(value, web.HTTPError):
            self.log.warning("%d %s: %s", value.status_code, request, value)
        else:
            self.log.error("Uncaught exception in %s", request, exc_info=value)

    def read_query(self, kind: type[B]) -> B:
        values = {}
        for name in self.request.query_arguments:
            found = self.get_query_arguments(name, strip=False)
            if len(found) != 1:
                raise ApiError("bad_request", f"{name!r} is given {len(found)} times in the query")
            values[name] = found[0]
        try:
            return msgspec.convert(values, kind, strict=False)
        except msgspec.ValidationError as error:
            raise ApiError("bad_request", f"the query: {error}") from error


class ApiHandler(Guarded, APIHandler):
    """A plain request; the answer is JSON."""

    async def prepare(self, **options: Any) -> None:
        self.check_first()
        await JupyterHandler.prepare(self)
        if not self.check_origin():
            raise _foreign()

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Cache-Control", "no-store")

    def read_body(self, kind: type[B]) -> B:
        """The body; none at all is an empty object."""
        raw = self.request.body or b"{}"
        if len(raw) > BODY_BYTES:
            raise ApiError("too_large", f"a body has at most {BODY_BYTES >> 20} MiB")
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            raise ApiError("bad_request", f"the body: {error}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError("bad_request", "the body is no JSON object in UTF-8") from error

    async def answer(self, shape: Any, *, status: int = 200) -> None:
        self.set_status(status)
        await self.finish(msgspec.json.encode(shape))


class OfOneSession(Guarded):
    """A route below `sessions/{name}`: what a grant for that session opens."""

    async def session_id_of_path(self) -> str | None:
        name = str((self.path_kwargs or {}).get("name", ""))
        return await self.api.in_thread(session_id_of, name)


def allowed_methods(handler: type[Any]) -> list[str]:
    return [name for name in ("GET", "POST", "PUT", "PATCH", "DELETE") if verb_of(handler, name)] + [
        "OPTIONS"
    ]


def _foreign() -> ApiError:
    return ApiError("foreign_origin", "a page of another origin may not ask this in somebody's name")

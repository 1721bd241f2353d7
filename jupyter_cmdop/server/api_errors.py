"""Errors of the HTTP API: a stable code, a sentence, what to do next; never a path, a traceback or a token.

Every answer that is no success has the shape of `ApiProblem`. What a session refuses has the code and the status of the
refusal (`core.refusal.HTTP_STATUS`); what HTTP itself can go wrong with has one of `HTTP_CODES`. The two never overlap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tornado import web

from jupyter_cmdop.client.errors import (
    ClientError,
    IdTaken,
    JournalProblem,
    KeeperGone,
    LinkTimeout,
    Refused,
    RequestFailed,
    SpawnFailed,
    UnknownSession,
)
from jupyter_cmdop.core.refusal import HTTP_STATUS

HTTP_CODES: Final[Mapping[str, int]] = {
    "bad_request": 400,
    "bad_name": 400,
    "unknown_kernel": 400,
    "token_in_url": 400,
    "unauthenticated": 403,
    "not_authorized": 403,
    "xsrf": 403,
    "foreign_host": 403,
    "foreign_origin": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "upgrade_required": 426,
    "internal": 500,
    "spawn_failed": 500,
    "journal_unreadable": 500,
    "keeper_gone": 503,
    "unavailable": 503,
    "timeout": 504,
}
"""Codes beside those of refusals, each with its status."""
STATUS_OF: Final[Mapping[str, int]] = {**HTTP_STATUS, **HTTP_CODES}

_NEXT: Final[Mapping[str, tuple[str, ...]]] = {
    "token_in_url": ("send the token in the header: Authorization: token <token>", "choose a new token"),
    "unauthenticated": ("send the header: Authorization: token <token>",),
    "xsrf": ("send the value of the cookie _xsrf in the header X-XSRFToken", "or use a token"),
    "foreign_host": ("use the address that the server listens on",),
    "foreign_origin": ("call it from a page of this server", "or use a token"),
    "unknown_session": ("GET cmdop/api/sessions",),
    "keeper_gone": ("ask again; a run with the same request_id never runs twice",),
    "timeout": ("ask again; a run with the same request_id never runs twice",),
    "unavailable": ("ask again in a moment",),
    "internal": ("the server's log says more",),
    "spawn_failed": ("the server's log says more", "jupyter cmdop doctor"),
    "upgrade_required": ("open it as a websocket",),
    "unknown_kernel": ("GET api/kernelspecs",),
}
_BY_STATUS: Final[Mapping[int, str]] = {
    400: "bad_request",
    403: "not_authorized",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    426: "upgrade_required",
    503: "unavailable",
}
# An absolute path; what comes before must not be part of a word, a URL or a path.
_PATH = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/'\",;:]+/)+[^\s/'\",;:]*")


class ApiError(web.HTTPError):
    """An answer that is no success.

    Attributes:
        refusal: the refusal as the session words it, when it was the session that said no.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        next: tuple[str, ...] | None = None,  # noqa: A002 (the word of the shape)
        refusal: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(STATUS_OF[code], message)
        self.code = code
        self.message = message
        self.next = _NEXT.get(code, ()) if next is None else next
        self.refusal = refusal

    def __str__(self) -> str:
        return f"HTTP {self.status_code}: {self.code}: {self.message}"


def refused(refusal: Mapping[str, Any]) -> ApiError:
    """From a refusal as data, of a code that is known here."""
    following = tuple(str(item) for item in refusal.get("next") or ())
    return ApiError(str(refusal["code"]), str(refusal["message"]), next=following, refusal=refusal)


def api_error(error: ClientError) -> ApiError:
    """What a failure of the client library is over HTTP. Words that may hold paths stay in the server's log."""
    match error:
        case Refused():
            return refused(error.refusal.to_dict())
        case UnknownSession():
            return ApiError("unknown_session", error.message)
        case KeeperGone():
            return ApiError("keeper_gone", error.message)
        case LinkTimeout():
            return ApiError("timeout", error.message)
        case IdTaken():
            return ApiError("request_id_conflict", error.message, next=("use another id",))
        case SpawnFailed():
            return ApiError("spawn_failed", "the session could not be started")
        case RequestFailed() if error.code == "unknown_verb":
            message = "the keeper of this session is older than this server, and does not know how"
            return ApiError("unsupported", message, next=("close it and make it again",))
        case JournalProblem():
            return ApiError("journal_unreadable", "the session's journal cannot be read")
        case RequestFailed() if error.code == "journal":
            return ApiError("journal_unreadable", "the session's journal cannot be read now")
        case RequestFailed():
            return ApiError("bad_request", error.message)
        case _:
            return ApiError("internal", f"this cannot be answered now ({error.code})")


def problem_of(status: int, error: BaseException | None) -> dict[str, Any]:
    """The body of an error answer."""
    if not isinstance(error, ApiError):
        error = _other(status, error)
    problem: dict[str, Any] = {
        "code": error.code,
        "message": without_paths(error.message),
        "next": [without_paths(item) for item in error.next],
    }
    if error.refusal is not None:
        problem["refusal"] = {**error.refusal, **{key: problem[key] for key in ("message", "next")}}
    return problem


def _other(status: int, error: BaseException | None) -> ApiError:
    """What tornado, Jupyter or a fault of ours raised."""
    code = _BY_STATUS.get(status, "bad_request" if 400 <= status < 500 else "internal")
    if isinstance(error, web.HTTPError) and code != "internal":
        return ApiError(code, _said(error) or code.replace("_", " "))
    return ApiError(
        code, "something went wrong in the server" if code == "internal" else code.replace("_", " ")
    )


def _said(error: web.HTTPError) -> str:
    text = error.log_message or ""
    return str(text % error.args) if error.args else str(text).replace("%%", "%")


def without_paths(text: str) -> str:
    """The text with every absolute path reduced to its last part: whoever asks over HTTP has no use for more."""
    return _PATH.sub(lambda found: "…/" + found[0].rstrip("/").rpartition("/")[2], text)

"""From what a keeper or the client library says to the answer that a web client gets."""

from __future__ import annotations

from tornado import web

from jupyter_cmdop.client.errors import (
    ClientError,
    IdTaken,
    KeeperGone,
    LinkTimeout,
    Refused,
    SpawnFailed,
    UnknownSession,
)
from jupyter_cmdop.core.refusal import HTTP_STATUS


def problem(status: int, message: str) -> web.HTTPError:
    """An error whose words reach the client.

    Jupyter's handlers send the message of an HTTPError as it stands, and do not fill in arguments.
    """
    return web.HTTPError(status, message)


def refuse_token_in_url(handler: web.RequestHandler) -> None:
    """Jupyter takes one, for the page that a browser opens; logs and histories keep it.

    Raises:
        HTTPError: 400, there is one.
    """
    if "token" in handler.request.query_arguments:
        raise problem(400, "a token in a URL gets into logs: send it in the header Authorization")


def http_error(error: ClientError) -> web.HTTPError:
    """A refusal has its own status; a session that does not answer is 503, which clients try again."""
    match error:
        case Refused():
            return problem(HTTP_STATUS[error.refusal.code], error.refusal.message)
        case UnknownSession():
            return problem(404, error.message)
        case KeeperGone() | LinkTimeout():
            return problem(503, error.message)
        case IdTaken():
            return problem(409, error.message)
        case SpawnFailed():
            lines = "\n".join((error.message, *error.log))
            return problem(500, lines)
        case _:
            return problem(500, error.message)

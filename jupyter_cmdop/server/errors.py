"""From what a keeper or the client library says to the answer that a web client gets."""

from __future__ import annotations

from tornado import web

from jupyter_cmdop.client.errors import ClientError, KeeperGone, LinkTimeout, Refused, SpawnFailed
from jupyter_cmdop.core.refusal import HTTP_STATUS


def http_error(error: ClientError) -> web.HTTPError:
    """A refusal has its own status; a session that does not answer is 503, which clients try again."""
    match error:
        case Refused():
            return web.HTTPError(HTTP_STATUS[error.refusal.code], "%s", error.refusal.message)
        case KeeperGone() | LinkTimeout():
            return web.HTTPError(503, "%s", error.message)
        case SpawnFailed():
            lines = "\n".join((error.message, *error.log))
            return web.HTTPError(500, "%s", lines)
        case _:
            return web.HTTPError(500, "%s", error.message)

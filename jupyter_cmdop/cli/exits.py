"""Exit codes of the command line, and what leads to each."""

from __future__ import annotations

from jupyter_cmdop.client.errors import (
    ClientError,
    KeeperGone,
    LinkTimeout,
    Refused,
    RequestFailed,
    UnknownSession,
)

DONE = 0
FAILED = 1
USAGE = 2
REFUSED = 3
NO_SESSION = 4
UNKNOWN = 5
STILL_RUNNING = 6
INTERRUPTED = 130
"""Ctrl-C, as a shell reports it."""
BROKEN_PIPE = 141
"""Nobody reads our output any more, as a shell reports it."""

EXPLANATION = """\
exit codes: 0 done, 1 the operation itself failed, 2 usage, 3 refused, 4 no such session, 5 unknown outcome,
6 still running, 130 ended by Ctrl-C
"""


def of_status(status: str) -> int:
    """The code for the status of a `RunResult`."""
    from jupyter_cmdop.core.operations import OUTCOMES

    if status in ("ok", "idle"):
        return DONE
    if status == "unknown":
        return UNKNOWN
    if status == "refused":
        return REFUSED
    return FAILED if status in OUTCOMES else STILL_RUNNING


def of_error(error: ClientError, *, reads_only: bool) -> int:
    """The code for an error; a verb that only reads has no outcome that could be unknown."""
    match error:
        case UnknownSession():
            return NO_SESSION
        case Refused():
            return NO_SESSION if error.refusal.code == "unknown_session" else REFUSED
        case RequestFailed():
            return USAGE
        case KeeperGone() | LinkTimeout() if error.asked and not reads_only:
            return UNKNOWN
        case _:
            return FAILED

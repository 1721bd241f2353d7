"""What can go wrong between a client and a session, as one tree of exceptions.

ClientError
 +-- PlaceError        a directory or file of ours is missing, foreign or unsafe; the message says what to do
 +-- UnknownSession    no live or past session bears this name
 +-- SpawnFailed       the keeper did not start; what was made for it has been removed
 +-- IdTaken           a session, live or past, has the id that was chosen for a new one
 +-- GrantFileError    the connection file that should name the caller cannot be used
 +-- Refused           the keeper understood and said no: a `core.refusal.Refusal` with what helps
 +-- KeeperGone        the link closed: what was asked and not answered has an unknown outcome
 +-- LinkTimeout       the keeper did not answer in time; the link is still open
 +-- ServerProblem    the Jupyter server at a URL cannot be reached, or does not answer as one with this extension
 +-- JournalProblem    the journal of a past session cannot be read
 +-- FellBehind        this reader was slower than its limit; it can resume from its cursor
 +-- BadAnswer         the other side does not speak the link protocol, or not this version of it
      +-- RequestFailed   the keeper says that the request itself makes no sense

Every exception has `next`: sentences or commands that help, for a person or a program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_cmdop.core.refusal import HTTP_STATUS, Refusal


class ClientError(Exception):
    """The root; `str()` is one line for a person."""

    code = "error"

    def __init__(
        self,
        message: str,
        *,
        next: tuple[str, ...] = (),  # noqa: A002 (the word of the shape)
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.next = next
        if code is not None:
            self.code = code


class PlaceError(ClientError):
    """A directory or file of ours cannot be trusted or used."""

    code = "place"

    def __init__(self, path: object, problem: str, advice: str) -> None:
        super().__init__(f"{path}: {problem}", next=(advice,))
        self.path = str(path)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; {self.advice}"


class UnknownSession(ClientError):
    code = "unknown_session"

    def __init__(self, name: str, *, reason: str = "", next: tuple[str, ...] = ()) -> None:  # noqa: A002
        super().__init__(reason or f"no session is called {name!r}", next=next)
        self.name = name


class SpawnFailed(ClientError):
    """The keeper's own message, and the last lines of its log when there are any."""

    code = "spawn_failed"

    def __init__(
        self,
        message: str,
        *,
        code: str = "spawn_failed",
        log: tuple[str, ...] = (),
        next: tuple[str, ...] = (),  # noqa: A002
    ) -> None:
        super().__init__(message, next=next)
        self.keeper_code = code
        self.log = log


class IdTaken(ClientError):
    """A session has or had the id that was chosen for a new one; its record is not written over."""

    code = "id_taken"


class GrantFileError(ClientError):
    code = "grant_file"


class Refused(ClientError):
    """The keeper said no.

    Attributes:
        refusal: the refusal as the core words it.
    """

    code = "refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, next=refusal.next)
        self.refusal = refusal
        self.code = refusal.code


class KeeperGone(ClientError):
    """The link closed, or nobody listens on it.

    Attributes:
        asked: whether a request was under way, so that its outcome is unknown.
    """

    code = "keeper_gone"

    def __init__(self, message: str, *, asked: bool = False, next: tuple[str, ...] = ()) -> None:  # noqa: A002
        super().__init__(message, next=next)
        self.asked = asked


class LinkTimeout(ClientError):
    """No answer in time; `asked` as in `KeeperGone`."""

    code = "timeout"

    def __init__(self, message: str, *, asked: bool = False, next: tuple[str, ...] = ()) -> None:  # noqa: A002
        super().__init__(message, next=next)
        self.asked = asked


class ServerProblem(ClientError):
    """A session was asked for at a URL, and the way to it is not there.

    Attributes:
        may_pass: whether the same may succeed in a moment.
    """

    code = "server"

    def __init__(self, message: str, *, may_pass: bool = False, next: tuple[str, ...] = ()) -> None:  # noqa: A002
        super().__init__(message, next=next)
        self.may_pass = may_pass


class JournalProblem(ClientError):
    code = "journal"


class FellBehind(ClientError):
    code = "fell_behind"


class BadAnswer(ClientError):
    code = "bad_answer"


class RequestFailed(BadAnswer):
    """The request itself makes no sense: the keeper's `error` answer, or what we can see before we ask."""

    code = "bad_request"

    def __init__(self, code: str, message: str, *, next: tuple[str, ...] = ()) -> None:  # noqa: A002
        super().__init__(message, next=next)
        self.code = code


def refusal_from(data: Mapping[str, Any]) -> Refusal:
    """Read a refusal that came over the link; a code that only a newer keeper knows becomes `forbidden`."""
    code = str(data.get("code", ""))
    message = str(data.get("message", "")) or "refused without a reason"
    if code not in HTTP_STATUS:
        code, message = "forbidden", f"{message} ({code or 'no code'})"
    following = data.get("next")
    return Refusal(
        code=code,
        message=message,
        driver=_text(data.get("driver")),
        since=_number(data.get("since")),
        generation=_integer(data.get("generation")),
        retry_after=_number(data.get("retry_after")),
        next=tuple(str(item) for item in following) if isinstance(following, list) else (),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None

"""Every shape that the link and `--json` carry, as types.

A shape only ever grows: new fields have defaults, unknown ones are ignored, so that a client reads what a keeper one
release older or newer says. Times are ISO 8601 in UTC; a number's unit is in its name.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from .errors import BadAnswer

T = TypeVar("T")
Time = str | float | int | None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all shapes: immutable, and tolerant of fields that it does not know."""


class Presence(Shape, frozen=True, kw_only=True):
    """One attachment that is there now."""

    actor: str
    kind: str = ""
    name: str = ""
    on_behalf_of: str | None = None
    role: str = ""
    transport: str = ""
    attachment: str = ""
    client: str = ""
    via: str | None = None
    since: Time = None


class Queued(Shape, frozen=True, kw_only=True):
    """An operation that waits for its turn."""

    operation: str
    actor: str
    adopted_by: str | None = None
    lane: str = ""
    since: Time = None
    status: str = "queued"
    message: str = ""
    preview: str = ""


class Running(Shape, frozen=True, kw_only=True):
    """An operation that the backend is executing."""

    operation: str
    actor: str
    adopted_by: str | None = None
    lane: str = ""
    since: Time = None
    status: str = "running"
    message: str = ""
    preview: str = ""


class Prompt(Shape, frozen=True, kw_only=True):
    """An `input()` that waits for its answer."""

    operation: str | None = None
    actor: str | None = None
    prompt: str = ""
    password: bool = False
    prompt_id: str | None = None
    since: Time = None


class Process(Shape, frozen=True, kw_only=True):
    pid: int
    name: str = ""
    parent: int | None = None


class JournalHead(Shape, frozen=True, kw_only=True):
    seq: int = 0
    hash: str = ""
    path: str | None = None
    unavailable: str | None = None


class Lease(Shape, frozen=True, kw_only=True):
    until_seconds: float | None = None


class LsItem(Shape, frozen=True, kw_only=True):
    """One session in `ls`.

    Attributes:
        state: what the keeper says, or `starting`, `unresponsive`, `lost`, `closed`.
        reason: why it is not simply alive, in words.
    """

    name: str
    id: str
    kind: str = "kernel"
    state: str = ""
    driver: str | None = None
    generation: int | None = None
    incarnation: int | None = None
    policy: str | None = None
    kernel_id: str | None = None
    spec: str | None = None
    group: str | None = None
    workspace: str | None = None
    execution_state: str | None = None
    running: int | None = None
    queued: int | None = None
    attached: int | None = None
    input_pending: bool | None = None
    created: str | None = None
    reason: str | None = None


class NewSession(Shape, frozen=True, kw_only=True):
    """What `new` made or, with `--if-exists attach`, found."""

    name: str
    id: str
    kind: str = "kernel"
    created: bool = True
    kernel_id: str | None = None
    pid: int | None = None
    spec: str | None = None


class Status(Shape, frozen=True, kw_only=True):
    name: str
    id: str
    kind: str = "kernel"
    state: str = ""
    driver: str | None = None
    since: Time = None
    generation: int | None = None
    incarnation: int | None = None
    policy: str | None = None
    kernel_id: str | None = None
    spec: str | None = None
    group: str | None = None
    execution_state: str | None = None
    presence: tuple[Presence, ...] = ()
    queue: tuple[Queued, ...] = ()
    running: tuple[Running, ...] = ()
    pending_input: Prompt | None = None
    processes: tuple[Process, ...] = ()
    journal: JournalHead | None = None
    lease: Lease | None = None
    iopub: Any = None
    level: str | None = None
    workspace: str | None = None
    cwd: str | None = None
    created: str | None = None
    reason: str | None = None


class Invite(Shape, frozen=True, kw_only=True):
    """A credential: the token is also in the file."""

    connection_file: str | None = None
    token: str | None = None
    actor: str = ""
    expires: str | None = None
    kind: str = ""
    role: str = ""
    grant: str = ""
    transport: str = ""
    held: bool = False


class GrantItem(Shape, frozen=True, kw_only=True):
    grant: str
    actor: str
    kind: str = ""
    role: str = ""
    rights: tuple[str, ...] = ()
    transport: str = ""
    expires: str | None = None
    created: Time = None
    connected: Any = None
    connection_file: str | None = None
    held: bool = False


class Grants(Shape, frozen=True, kw_only=True):
    grants: tuple[GrantItem, ...] = ()


class Revoked(Shape, frozen=True, kw_only=True):
    grant: Any = None
    actor: str | None = None


class Floor(Shape, frozen=True, kw_only=True):
    """Who drives after the floor was touched, and what became of the work that was under way."""

    driver: str | None = None
    generation: int | None = None
    policy: str | None = None
    since: Time = None
    superseded: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


class RefusalShape(Shape, frozen=True, kw_only=True):
    code: str
    message: str = ""
    driver: str | None = None
    since: Time = None
    generation: int | None = None
    retry_after: float | None = None
    next: tuple[str, ...] = ()


class Truncated(Shape, frozen=True, kw_only=True):
    """How much output was left out, and the cursor from which `read --after` gives it."""

    bytes: int = 0
    read_after: str | None = None


class OtherEntry(Shape, frozen=True, kw_only=True):
    """Something that another actor did while this operation was under way."""

    seq: int | None = None
    type: str = ""
    actor: str | None = None
    operation: str | None = None


class RunResult(Shape, frozen=True, kw_only=True):
    """What `run` and `wait` answer.

    Attributes:
        receipt: SEQ:HASH of the journal's end at this moment, for `verify --receipt`.
        status: an outcome (ok error interrupted aborted superseded withdrawn unknown); queued, awaiting_approval,
            running or awaiting_input when the wait ended first; refused; or idle, when nothing was waited for.
        reason: why it was interrupted or never ran, and `by` whom.
    """

    status: str
    operation: str | None = None
    request_id: str | None = None
    duplicate: bool = False
    generation: int | None = None
    incarnation: int | None = None
    cursor: str | None = None
    basis: str | None = None
    execution_count: int | None = None
    ename: str | None = None
    evalue: str | None = None
    traceback: tuple[str, ...] | None = None
    reason: str | None = None
    by: str | None = None
    outputs: tuple[dict[str, Any], ...] = ()
    text: str | None = None
    truncated: Truncated | None = None
    others: tuple[OtherEntry, ...] = ()
    receipt: str | None = None
    refusal: RefusalShape | None = None


class OutputItem(Shape, frozen=True, kw_only=True):
    """One output as `read` gives it: `output` is an output of the notebook format."""

    output: dict[str, Any]
    seq: int | None = None
    operation: str | None = None
    actor: str | None = None
    relation: str | None = None
    incarnation: int | None = None


class ReadResult(Shape, frozen=True, kw_only=True):
    items: tuple[OutputItem, ...] = ()
    cursor: str | None = None
    more: bool = False


class LogLine(Shape, frozen=True, kw_only=True):
    """One journal entry as `log` prints it; `data` holds what is particular to its type.

    Attributes:
        withheld: its body was a secret and was never recorded.
        pruned: its body was recorded and has been dropped since.
    """

    seq: int
    time: str | None = None
    type: str = ""
    actor: str | None = None
    operation: str | None = None
    generation: int | None = None
    incarnation: int | None = None
    on_behalf_of: str | None = None
    attachment: str | None = None
    grant: str | None = None
    request_id: str | None = None
    cause: str | None = None
    basis: str | None = None
    via: str | None = None
    hash: str | None = None
    withheld: bool = False
    pruned: bool = False
    data: Any = None


class VerifyReport(Shape, frozen=True, kw_only=True):
    ok: bool
    entries: int = 0
    head_seq: int | None = None
    head_hash: str | None = None
    first_bad: int | None = None
    problem: str | None = None
    pruned: int = 0


class Interrupted(Shape, frozen=True, kw_only=True):
    """What an interrupt met.

    Attributes:
        unresponsive: why the kernel may not take it, in words.
        next: what helps then.
    """

    interrupted: str | None = None
    withdrawn: tuple[str, ...] = ()
    unresponsive: str | None = None
    next: tuple[str, ...] = ()


class Answered(Shape, frozen=True, kw_only=True):
    operation: str | None = None
    prompt_id: str | None = None


class Noted(Shape, frozen=True, kw_only=True):
    """Where in the journal a note stands."""

    seq: int


class Renamed(Shape, frozen=True, kw_only=True):
    name: str


class Restarted(Shape, frozen=True, kw_only=True):
    incarnation: int | None = None


class Closed(Shape, frozen=True, kw_only=True):
    closed: bool = True
    ended: tuple[int, ...] = ()


class Check(Shape, frozen=True, kw_only=True):
    """One line of `doctor`.

    Attributes:
        level: ok, note (a fact worth knowing) or problem.
    """

    check: str
    level: str
    text: str
    advice: str | None = None


class DoctorReport(Shape, frozen=True, kw_only=True):
    checks: tuple[Check, ...] = ()
    problems: int = 0


class Problem(Shape, frozen=True, kw_only=True):
    code: str
    message: str
    next: tuple[str, ...] = ()


class Failure(Shape, frozen=True, kw_only=True):
    """What a verb with `--json` prints when it did not succeed; `refusal` is there when the session said no."""

    error: Problem
    refusal: RefusalShape | None = None


SCHEMAS: dict[str, Any] = {
    "ls": list[LsItem],
    "new": NewSession,
    "status": Status,
    "invite": Invite,
    "grants": Grants,
    "revoke": Revoked,
    "floor": Floor,
    "run": RunResult,
    "read": ReadResult,
    "interrupt": Interrupted,
    "answer": Answered,
    "log": LogLine,
    "verify": VerifyReport,
    "rename": Renamed,
    "restart": Restarted,
    "close": Closed,
    "doctor": DoctorReport,
    "failure": Failure,
}
"""File name in `jupyter_cmdop/schemas/` -> the type it describes."""


def read_as(shape: type[T], data: object) -> T:
    """Convert what came over the link.

    Raises:
        BadAnswer: it does not have this shape.
    """
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError as error:
        name = getattr(shape, "__name__", str(shape))
        raise BadAnswer(f"the keeper's answer is no {name}: {error}") from error


def to_json(shape: object) -> str:
    return msgspec.json.encode(shape).decode()

"""What the HTTP API takes and gives: bodies, queries and answers that are not shapes of the link already.

A body or a query with a field that is not known here is refused: a misspelt name must not be a silent default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from jupyter_cmdop.client.shapes import LogLine, LsItem, RefusalShape, Shape

WAIT_SECONDS = 60.0
"""The longest that one request waits; whoever wants to wait longer asks again."""
PAGE_ENTRIES = 1000
PAGE_BYTES = 8 * 1024 * 1024
"""The most that one page of a long answer holds; its first item is whole, however long."""

Wait = Annotated[
    float, Meta(ge=0, le=WAIT_SECONDS, description="How many seconds to wait for the end before a 202.")
]
RequestId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        description="Your own id of this input: the same again never runs twice.",
    ),
]
MaxBytes = Annotated[
    int, Meta(ge=0, le=PAGE_BYTES, description="How many bytes of outputs the answer may hold.")
]
Cursor = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]{1,18}:)?[0-9]{1,18}$",
        description="The `cursor` of an earlier answer: only what came later.",
    ),
]
OperationId = Annotated[str, Meta(min_length=1, max_length=64, description="Id of an operation.")]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of bodies and queries."""


class Create(Body, frozen=True, kw_only=True):
    """A new session."""

    name: Annotated[
        str, Meta(description="A letter or digit, then letters, digits, `.`, `_`, `-`: 64 at most.")
    ]
    kind: Annotated[
        Literal["kernel", "terminal"],
        Meta(description="This version has kernels only: a terminal is refused 501."),
    ] = "kernel"
    kernel: Annotated[
        str, Meta(description="Name of the kernel specification; the server's default if none.")
    ] = ""
    policy: Annotated[str, Meta(description="The policy at first; the owner's choice.")] | None = None
    cwd: Annotated[str, Meta(description="Where the kernel starts: a directory below the server's root.")] = (
        ""
    )
    attach: Annotated[
        bool, Meta(description="Whether a live session of this name is as good: 200 instead of `name_taken`.")
    ] = False


class Rename(Body, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="The new name.")]


class CloseQuery(Body, frozen=True, kw_only=True):
    force: Annotated[bool, Meta(description="Close also while somebody else's operation runs or waits.")] = (
        False
    )


class MoveFloor(Body, frozen=True, kw_only=True):
    """What to do with the floor."""

    action: Annotated[
        Literal["take", "hand_back", "release", "request", "allow", "not_now"],
        Meta(
            description="`request`, `allow` and `not_now` belong to a policy that this version has not: 501."
        ),
    ]
    reason: Annotated[str, Meta(max_length=2000, description="`take`: why, for whoever drove.")] | None = None
    running: Annotated[
        Literal["let", "interrupt"], Meta(description="`take`: what becomes of what runs.")
    ] = "let"
    queue: Annotated[Literal["drop", "adopt"], Meta(description="`take`: what becomes of what waits.")] = (
        "drop"
    )
    lease_seconds: (
        Annotated[float, Meta(gt=0, le=600, description="`take`: for how long without an act.")] | None
    ) = None
    to: (
        Annotated[str, Meta(max_length=128, description="`hand_back`: to whom, if not to whom it was.")]
        | None
    ) = None
    note: Annotated[str, Meta(max_length=2000, description="`hand_back`: a word with it.")] | None = None


class SetPolicy(Body, frozen=True, kw_only=True):
    policy: Annotated[str, Meta(max_length=64, description="`open`, `turns` or `readonly`.")]


class Run(Body, frozen=True, kw_only=True):
    """Code to execute."""

    code: str
    request_id: RequestId | None = None
    generation: (
        Annotated[int, Meta(ge=0, le=2**53 - 1, description="Refuse it unless this generation is in force.")]
        | None
    ) = None
    silent: bool = False
    stop_on_error: bool = True
    if_busy: Annotated[Literal["queue", "refuse"], Meta(description="`refuse`: not behind others.")] = "queue"
    wait_seconds: Wait = 10.0
    max_bytes: MaxBytes | None = None


class Send(Body, frozen=True, kw_only=True):
    """Input that nobody waits for; for a kernel, code."""

    text: Annotated[str, Meta(description="What to send.")] | None = None
    keys: Annotated[list[str], Meta(description="Keys for a terminal; a kernel has none: 501.")] | None = None
    request_id: RequestId | None = None
    generation: (
        Annotated[int, Meta(ge=0, le=2**53 - 1, description="Refuse it unless this generation is in force.")]
        | None
    ) = None


class ReadQuery(Body, frozen=True, kw_only=True):
    view: Annotated[
        Literal["outputs", "stream", "screen"],
        Meta(
            description="`outputs` of the notebook format, or their text as a `stream`. A kernel has no screen: 501."
        ),
    ] = "outputs"
    after: Cursor | None = None
    limit_bytes: Annotated[int, Meta(ge=1, le=PAGE_BYTES, description="About how much a page holds.")] = (
        1024 * 1024
    )


class WaitQuery(Body, frozen=True, kw_only=True):
    """Without `operation` and `request_id`: wait until nothing runs."""

    operation: OperationId | None = None
    request_id: RequestId | None = None
    wait_seconds: Wait = 30.0
    max_bytes: MaxBytes | None = None


class Interrupt(Body, frozen=True, kw_only=True):
    operation: OperationId | None = None


class Answer(Body, frozen=True, kw_only=True):
    """A line for a pending `input()`."""

    text: Annotated[str, Meta(max_length=1024 * 1024)]
    prompt_id: (
        Annotated[str, Meta(max_length=256, description="Which one; the pending one if none.")] | None
    ) = None


class Note(Body, frozen=True, kw_only=True):
    """A remark for the record."""

    text: Annotated[str, Meta(min_length=1, max_length=16 * 1024)]


class JournalQuery(Body, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=2**53 - 1, description="Only entries behind this `seq`.")] = 0
    limit: Annotated[int, Meta(ge=1, le=PAGE_ENTRIES, description="How many entries a page holds.")] = 200
    types: Annotated[str, Meta(max_length=1000, description="Entry types, separated by commas.")] | None = (
        None
    )
    actor: Annotated[str, Meta(max_length=128)] | None = None
    operation: OperationId | None = None
    format: Annotated[
        Literal["json", "jsonl"],
        Meta(
            description="`jsonl`: everything behind `after` as a file to keep, an entry a line, without pages."
        ),
    ] = "json"


class MakeGrant(Body, frozen=True, kw_only=True):
    """An invitation."""

    actor: (
        Annotated[str, Meta(max_length=128, description="Under which name; one is made up if none.")] | None
    ) = None
    kind: Literal["human", "agent", "service", "device"] | None = None
    role: Literal["peer", "observer"] = "peer"
    expires_seconds: Annotated[float, Meta(gt=0, le=366 * 86_400)] | None = None
    transport: Literal["ipc", "tcp"] = "ipc"


class Nothing(Body, frozen=True, kw_only=True):
    """A body without fields."""


class FeedQuery(Body, frozen=True, kw_only=True):
    after: (
        Annotated[
            str,
            Meta(
                max_length=64 * 1024,
                description="The `cursor` of the last record that you have; from now on if none.",
            ),
        ]
        | None
    ) = None


class Approval(Body, frozen=True, kw_only=True):
    operation: OperationId
    verdict: Literal["approve", "reject"] = "approve"


class Signal(Body, frozen=True, kw_only=True):
    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    signal: Annotated[str, Meta(max_length=16)] = "TERM"


# ---------------------------------------------------------------------- answers


class SessionList(Shape, frozen=True, kw_only=True):
    sessions: tuple[LsItem, ...] = ()


class JournalPage(Shape, frozen=True, kw_only=True):
    """Some entries, oldest first.

    Attributes:
        after: the `after` of the next page.
    """

    entries: tuple[LogLine, ...] = ()
    after: int = 0
    more: bool = False


class ApiProblem(Shape, frozen=True, kw_only=True):
    """Every answer that is no success.

    Attributes:
        code: stable; a refusal's, or one of the HTTP API's own.
        next: what helps.
        refusal: the whole refusal, when it was the session that said no.
    """

    code: str
    message: str
    next: tuple[str, ...] = ()
    refusal: RefusalShape | None = None


FeedKind = Literal[
    "hello", "session", "presence", "floor", "request", "operation", "input-waiting", "refusal", "note", "gap"
]


class FeedRecord(Shape, frozen=True, kw_only=True):
    """One message of the feed.

    Attributes:
        type: the journal's word for what happened; of a `session` record also `ended`, the last of its session.
        cursor: what to give as `after` to go on behind this record.
    """

    kind: FeedKind
    type: str
    cursor: str
    session: str | None = None
    id: str | None = None
    seq: int | None = None
    time: str | None = None
    actor: str | None = None
    on_behalf_of: str | None = None
    operation: str | None = None
    generation: int | None = None
    incarnation: int | None = None
    request_id: str | None = None
    grant: str | None = None
    data: dict[str, Any] | None = None

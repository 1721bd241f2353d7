"""One request on the link: the arguments each verb takes, and the answer that is owed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ..clocks import session_seconds
from ..core.actor import Actor
from ..core.operations import MAIN_LANE
from ..core.refusal import Refusal
from .journal_desk import Item
from .kernel_requests import expiry

if TYPE_CHECKING:
    from .link_endpoint import LinkConnection


class BadArguments(ValueError):
    """The arguments of a verb are not of its form; the message says what it takes."""


# As on the kernel protocol: ids are kept in tables and shown to people.
RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class RunArgs(msgspec.Struct, forbid_unknown_fields=False):
    code: str
    request_id: RequestId | None = None
    generation: int | None = None
    silent: bool = False
    store_history: bool = True
    stop_on_error: bool = True
    lane: Annotated[str, msgspec.Meta(max_length=256)] = MAIN_LANE
    if_busy: Literal["queue", "refuse"] = "queue"
    wait_seconds: float | None = None
    stream: bool = False
    max_bytes: int | None = None


class WaitArgs(msgspec.Struct):
    operation: str | None = None
    request_id: str | None = None
    wait_seconds: float | None = None
    stream: bool = False
    max_bytes: int | None = None


class InviteArgs(msgspec.Struct):
    actor: str | None = None
    kind: str | None = None
    name: str = ""
    role: Literal["observer", "peer", "owner"] = "peer"
    expires_seconds: float | None = None
    transport: Literal["ipc", "tcp"] = "ipc"
    held: bool = False
    """A Jupyter server's, for a client inside it: it ends with this link, is no presence, and speaks for the user
    whom the server has verified, not on the owner's behalf."""


class RevokeArgs(msgspec.Struct):
    grant: str


class TakeArgs(msgspec.Struct):
    reason: str | None = None
    running: Literal["let", "interrupt"] = "let"
    queue: Literal["drop", "adopt"] = "drop"
    lease_seconds: float | None = None


class HandBackArgs(msgspec.Struct):
    to: str | None = None
    note: str | None = None


class PolicyArgs(msgspec.Struct):
    policy: str


class InterruptArgs(msgspec.Struct):
    operation: str | None = None


class AnswerArgs(msgspec.Struct):
    text: str
    prompt_id: str | None = None


class NoteArgs(msgspec.Struct):
    text: str


class ReadArgs(msgspec.Struct):
    view: Literal["outputs", "stream"] = "outputs"
    after: str | None = None
    limit_bytes: int | None = None
    follow: bool = False


class LogArgs(msgspec.Struct):
    after: int | None = None
    actor: str | None = None
    operation: str | None = None
    types: list[str] | None = None
    limit: int | None = None
    follow: bool = False


class VerifyArgs(msgspec.Struct):
    receipt: str | list[Any] | None = None


class RenameArgs(msgspec.Struct):
    name: str


class CloseArgs(msgspec.Struct):
    force: bool = False


class RenewArgs(msgspec.Struct):
    attachment: str
    valid_until_seconds: float | None = None


class DropArgs(msgspec.Struct):
    attachment: str | None = None
    actor: str | None = None
    grant: str | None = None
    reason: str = "its credential has ended"


class NoArgs(msgspec.Struct):
    pass


@dataclass(slots=True)
class Call:
    """One request on a link connection, until it has been answered.

    Attributes:
        descriptor: what came beside its frame, as long as nobody has taken it.
    """

    connection: LinkConnection
    number: int
    payload: bytes = b""
    descriptor: int | None = None
    done: bool = False

    @property
    def attachment(self) -> str:
        if self.connection.attachment is None:
            raise AssertionError("a verb comes after the hello")
        return self.connection.attachment.id

    @property
    def actor(self) -> Actor:
        if self.connection.attachment is None:
            raise AssertionError("a verb comes after the hello")
        return self.connection.attachment.actor

    def item(self, item: Item) -> None:
        if not self.done:
            self.connection.send({"id": self.number, "item": item})

    def long_item(self, raw: bytes) -> None:
        """An item that is JSON already."""
        if not self.done:
            self.connection.send_long({"id": self.number}, "item", raw)

    def result(self, result: Item) -> None:
        self._finish({"id": self.number, "result": result})

    def refuse(self, refusal: Refusal) -> None:
        self._finish({"id": self.number, "refusal": refusal_data(refusal)})

    def fail(self, code: str, message: str) -> None:
        self._finish({"id": self.number, "error": {"code": code, "message": message}})

    def _finish(self, frame: dict[str, Any]) -> None:
        if not self.done:
            self.done = True
            self.connection.send(frame)


def parse_receipt(receipt: str | list[Any] | None) -> tuple[int, str] | None:
    """Read `SEQ:HASH` or `[seq, hash]`.

    Raises:
        BadArguments: it is neither.
    """
    if receipt is None:
        return None
    parts = receipt.split(":") if isinstance(receipt, str) else receipt
    if len(parts) == 2:
        seq, digest = parts
        if isinstance(seq, str) and seq.isdecimal() and len(seq) <= 100:
            seq = int(seq)
        if isinstance(seq, int) and seq >= 0 and isinstance(digest, str):
            return int(seq), digest
    raise BadArguments("a receipt is SEQ:HASH, as `log` and `status` give it")


def refusal_data(refusal: Refusal) -> Item:
    """A refusal as JSON; the session clock's `since` becomes a time that others know."""
    since = None if refusal.since is None else expiry(refusal.since - session_seconds())
    return {**refusal.to_dict(), "since": since}

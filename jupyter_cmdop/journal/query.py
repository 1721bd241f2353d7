"""Read a journal, live or closed, without ever writing: entries, the story of an operation, the lines of `log`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.kernel import decode_as
from jupyter_cmdop.wire.websocket import decode_v1

from .entry import WITHHELD, Envelope, decode_envelope
from .errors import JournalDamaged, JournalUnavailable
from .layout import FORMAT_VERSION, SQLITE_ERRORS, Head, from_sqlite, head_from_rows
from .reading import COLUMNS, HEAD, META, ROWS_A_READ, Bodies, connect, locate
from .verify import VerifyReport, verify

__all__ = [
    "Head",
    "JournalDamaged",
    "JournalReader",
    "JournalUnavailable",
    "StoredEntry",
    "VerifyReport",
    "log_line",
    "message_type",
    "story",
    "verify",
]

MAX_SEQ: Final = 2**63 - 1

# One statement for every combination of filters; SQLite evaluates each `:x IS NULL` once.
_FILTER: Final = """(:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
    AND (:actor IS NULL OR actor = :actor) AND (:operation IS NULL OR operation = :operation)"""
_ENTRIES: Final = f"""
    SELECT {COLUMNS} FROM entries WHERE seq > :after AND seq <= :until AND {_FILTER}
    ORDER BY seq LIMIT :limit"""  # noqa: S608 - made of constants
_LAST: Final = f"SELECT {COLUMNS} FROM entries WHERE {_FILTER} ORDER BY seq DESC LIMIT :limit"  # noqa: S608 - same

_OTHERS: Final = """
    SELECT seq, type, actor, operation FROM entries WHERE seq > :after AND seq <= :until AND actor IS NOT NULL
    AND actor NOT IN (SELECT value FROM json_each(:actors)) AND type NOT IN (SELECT value FROM json_each(:types))
    ORDER BY seq DESC LIMIT :limit"""


def _query(types: Collection[str] | None, actor: str | None, operation: str | None) -> dict[str, object]:
    return {
        "types": None if types is None else json.dumps(sorted(types)),
        "actor": actor,
        "operation": operation,
    }


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it was recorded.

    Attributes:
        envelope: all that was recorded of it beside the body; the keys are the fields of `entry.Entry`, and times are
            decimal strings.
        salt: of the body; None when the body was dropped or withheld.
        body: None when it was dropped or withheld.
        hash: hex.
    """

    seq: int
    type: str
    actor: str | None
    operation: str | None
    envelope: Envelope
    salt: bytes | None
    body: bytes | None
    hash: str


class JournalReader:
    """Reads the journal in a directory, also while its keeper writes.

    Raises:
        JournalUnavailable: there is none, or it cannot be opened.
        JournalDamaged: it cannot be read. Every method may raise this; `verify` says more and never raises.
    """

    def __init__(self, directory: Path) -> None:
        journal, bodies = locate(directory)
        try:
            self._connection = connect(journal)
        except SQLITE_ERRORS as error:
            raise from_sqlite(error) from error
        self._bodies = Bodies(bodies)
        try:
            self.log_id = self._identity()
        except BaseException:
            self.close()
            raise

    def head(self) -> Head:
        """Where the journal ends now."""
        return head_from_rows(self._all(HEAD, {}))

    def entries(
        self,
        after: int = 0,
        *,
        types: Collection[str] | None = None,
        actor: str | None = None,
        operation: str | None = None,
        limit: int | None = None,
        until: int | None = None,
    ) -> Iterator[StoredEntry]:
        """Entries in their order, up to the end that the journal has at the first step.

        Args:
            after: the seq behind which to begin.
            types: only these.
            actor: only of this actor.
            operation: only of this operation.
            limit: how many at most.
            until: the last seq, inclusive.
        """
        head = self.head().seq
        end = head if until is None else min(until, head)
        left = MAX_SEQ if limit is None else limit
        after = max(after, 0)  # a number that SQLite does not know is no place in a journal either
        query = _query(types, actor, operation)
        while after < end and left > 0:
            size = min(left, ROWS_A_READ)
            rows = self._all(_ENTRIES, query | {"after": after, "until": end, "limit": size})
            for row in rows:
                yield self._entry(row)
            if len(rows) < size:
                return
            after, left = rows[-1][0], left - len(rows)

    def last(
        self,
        n: int,
        *,
        types: Collection[str] | None = None,
        actor: str | None = None,
        operation: str | None = None,
    ) -> list[StoredEntry]:
        """The last `n` entries that match, in their order."""
        rows = self._all(_LAST, _query(types, actor, operation) | {"limit": max(n, 0)})
        return [self._entry(row) for row in reversed(rows)]

    def last_of_others(
        self, n: int, *, after: int, until: int, actors: Collection[str], types: Collection[str]
    ) -> list[tuple[int, str, str, str | None]]:
        """The last `n` entries of anybody but `actors`, leaving out `types`: (seq, type, actor, operation), in order.

        SQLite passes over the others without their bodies: an operation may have waited behind thousands of entries.
        """
        rows = self._all(
            _OTHERS,
            {
                "after": after,
                "until": until,
                "actors": json.dumps(sorted(actors)),
                "types": json.dumps(sorted(types)),
                "limit": max(n, 0),
            },
        )
        return [tuple(row) for row in reversed(rows)]

    def close(self) -> None:
        """Close; a second time does nothing."""
        self._connection.close()
        self._bodies.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _identity(self) -> str:
        rows = self._all(META, {})
        if len(rows) != 1 or not isinstance(rows[0][0], str):
            raise JournalDamaged("the journal does not say whose it is")
        log_id, version = rows[0]
        if version != FORMAT_VERSION:
            raise JournalDamaged(f"the journal has format {version}, this program reads {FORMAT_VERSION}")
        return str(log_id)

    def _all(self, sql: str, parameters: Mapping[str, object]) -> list[Any]:
        try:
            return self._connection.execute(sql, parameters).fetchall()
        except SQLITE_ERRORS as error:
            raise from_sqlite(error) from error
        except MemoryError as error:  # a damaged record claims to be larger than there is memory
            raise JournalDamaged("the database asks for more memory than there is") from error

    def _entry(self, row: Any) -> StoredEntry:
        seq, kind, operation, actor, envelope, digest, salt, body, offset, length = row
        try:
            fields = decode_envelope(envelope)
            if body is None and offset is not None:
                body = b"".join(self._bodies.read(offset, length))
            if not isinstance(body, bytes | None) or not isinstance(salt, bytes | None):
                raise TypeError("its body or salt is of another type")
            if not isinstance(kind, str) or not all(
                isinstance(text, str | None) for text in (actor, operation)
            ):
                raise TypeError("its type, actor or operation is no text")
            return StoredEntry(seq, kind, actor, operation, fields, salt, body, digest.hex())
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise JournalDamaged(f"entry {seq} cannot be read: {error}") from error


def story(reader: JournalReader, operation: str) -> list[StoredEntry]:
    """Everything recorded of one operation, in its order."""
    return list(reader.entries(operation=operation))


# ---------------------------------------------------------------------- the lines of `log`

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN: Final = (
    "on_behalf_of",
    "attachment",
    "grant",
    "request_id",
    "cause",
    "basis",
    "via",
)


class _MessageType(msgspec.Struct):
    msg_type: str = ""


_MESSAGE_TYPE: Final = msgspec.json.Decoder(_MessageType)


def log_line(entry: StoredEntry) -> dict[str, Any]:
    """The JSON object that `log` prints for an entry.

    `data` holds the body: its keys when it is JSON, `{"message": type}` when it is a kernel message. Instead of it
    stands `"withheld": true` for a secret, `"pruned": true` for a body that was dropped.
    """
    envelope = entry.envelope
    line: dict[str, Any] = {
        "seq": entry.seq,
        "time": _iso(envelope.get("time_ns")),
        "type": entry.type,
        "actor": entry.actor,
    }
    if entry.operation is not None:
        line["operation"] = entry.operation
    line["generation"] = envelope.get("generation")
    line["incarnation"] = envelope.get("incarnation")
    line.update((key, envelope[key]) for key in _SHOWN if key in envelope)
    line["hash"] = entry.hash
    if envelope.get("bh") == WITHHELD:
        line["withheld"] = True
    elif entry.body is None:
        line["pruned"] = True
    elif (data := _data(str(envelope.get("form")), entry.body)) is not None:
        line["data"] = data
    return line


def _iso(nanoseconds: int | str | None) -> str | None:
    if nanoseconds is None:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=int(nanoseconds) // 1000)
    except (ValueError, OverflowError):
        return str(nanoseconds)  # no moment that a calendar knows; the number says more than nothing
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _data(form: str, body: bytes) -> dict[str, Any] | None:
    if form == "v1":
        return {"message": message_type(body)}
    if form != "json" or not body:
        return None
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return {"unreadable": len(body)}
    return data if isinstance(data, dict) else {"value": data}


def message_type(body: bytes) -> str:
    """The type of the kernel message in a body of the form v1; empty when it cannot be read."""
    try:
        return decode_as(_MESSAGE_TYPE, decode_v1(body).header, what="header").msg_type
    except WireError:
        return ""

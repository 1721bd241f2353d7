"""Check a whole journal against its own chain: what is missing, changed, moved or unreadable, from which entry on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .entry import GENESIS, WITHHELD, Envelope, admission_digest, check_body, check_envelope
from .errors import JournalDamaged, JournalUnavailable
from .layout import FORMAT_VERSION, Head, head_from_rows
from .reading import COLUMNS, HEAD, META, ROWS_A_READ, Bodies, connect, locate

_WALK: Final = f"SELECT {COLUMNS} FROM entries WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"  # noqa: S608 - constants
_REQUEST: Final = "SELECT digest, operation FROM requests WHERE actor = ? AND request_id = ?"
_END: Final = """
    SELECT head.seq, (SELECT max(seq) FROM entries), (SELECT min(seq) FROM entries),
        (SELECT count(*) FROM requests) FROM head"""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        ok: everything recorded is there, unchanged and in its order.
        entries: how many are good; those behind the first bad one are not looked at.
        head_seq: of the last good entry. head_hash: its hash, hex; None when there is no good entry.
        first_bad: seq of the first entry that is missing, changed or cannot be read; None when all are good, or
            when the problem is not with an entry.
        problem: one sentence; None when ok.
        pruned: bodies that were dropped, whose commitments still verify.
    """

    ok: bool
    entries: int
    head_seq: int
    head_hash: str | None
    first_bad: int | None
    problem: str | None
    pruned: int


class _Bad(Exception):
    """Ends a verification: the problem, and the entry that has it."""

    def __init__(self, problem: str, first_bad: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.first_bad = first_bad


# What a database can do to its reader when any of its bytes may be wrong.
_DAMAGE: Final = (sqlite3.Error, OSError, ValueError, TypeError, OverflowError, MemoryError, RecursionError)


def verify(directory: Path, receipt: tuple[int, str] | None = None) -> VerifyReport:
    """Check a journal from its first entry to its end; what is wrong is in the report, nothing is raised for it.

    A live journal is checked up to the end that it has at the beginning. Memory does not grow with the journal.

    Args:
        directory: of the journal, or the path of its database file.
        receipt: (seq, hash in hex) that was handed out once. Without one a cut tail cannot be seen: what is left
            is whole.
    """
    walk = _Walk()
    try:
        journal, bodies = locate(directory)
        connection = connect(journal)
    except (*_DAMAGE, JournalUnavailable) as error:
        return walk.report(f"the journal cannot be opened: {error}", None)
    stored = Bodies(bodies)
    try:
        walk.run(connection, stored, receipt)
    except _Bad as bad:
        return walk.report(bad.problem, bad.first_bad)
    finally:
        stored.close()
        connection.close()
    return walk.report(None, None)


class _Walk:
    """One pass over a journal: what has been found good so far."""

    def __init__(self) -> None:
        self.seq = 0
        self.hash = GENESIS
        self.generation = 0
        self.incarnation = 0
        self.pruned = 0
        self.requests = 0

    def report(self, problem: str | None, first_bad: int | None) -> VerifyReport:
        digest = self.hash.hex() if self.seq else None
        return VerifyReport(problem is None, self.seq, self.seq, digest, first_bad, problem, self.pruned)

    def run(self, connection: sqlite3.Connection, bodies: Bodies, receipt: tuple[int, str] | None) -> None:
        log_id, head = self._begin(connection)
        claims = [(head.seq, head.hash, "the head says")]
        if receipt is not None:
            claims.append((receipt[0], receipt[1].lower(), "the receipt is for"))
        for row in self._rows(connection, head.seq):
            self._take(connection, bodies, log_id, row, claims)
        if self.seq != head.seq:
            raise _Bad(f"entry {self.seq + 1} is missing", self.seq + 1)
        if self.generation > head.generation or self.incarnation > head.incarnation:
            raise _Bad("the head has a lower generation or incarnation than an entry")
        if receipt is not None and receipt[0] > self.seq:
            problem = f"the journal ends at {self.seq}, but there is a receipt for {receipt[0]}: its tail is cut off"
            raise _Bad(problem, self.seq + 1)
        self._end(connection, head.seq)

    def _begin(self, connection: sqlite3.Connection) -> tuple[str, Head]:
        try:
            ((log_id, version),) = connection.execute(META).fetchall()
            head = head_from_rows(connection.execute(HEAD).fetchall())
        except (*_DAMAGE, JournalDamaged) as error:
            raise _Bad(f"the journal cannot be read: {error}") from error
        if version != FORMAT_VERSION:
            raise _Bad(f"the journal has format {version!r}, this program knows {FORMAT_VERSION}")
        return str(log_id), head

    def _rows(self, connection: sqlite3.Connection, end: int) -> Iterator[Any]:
        """The rows in their order; after the first error one by one, so that the first unreadable one has a name.

        (A cursor meets the error of a row while it hands out the row before, and loses that one.)
        """
        size = ROWS_A_READ
        while self.seq < end:
            try:
                rows = connection.execute(_WALK, (self.seq, end, size)).fetchall()
            except _DAMAGE as error:
                if size == 1:
                    raise _Bad(f"entry {self.seq + 1} cannot be read: {error}", self.seq + 1) from error
                size = 1
                continue
            if not rows:
                return
            yield from rows

    def _take(
        self,
        connection: sqlite3.Connection,
        bodies: Bodies,
        log_id: str,
        row: Any,
        claims: list[tuple[int, str, str]],
    ) -> None:
        seq = self.seq + 1
        if row[0] != seq:
            raise _Bad(f"entry {seq} is missing", seq)
        try:
            self._check(connection, bodies, log_id, row)
        except _DAMAGE as error:
            raise _Bad(f"entry {seq}: {error}", seq) from error
        for claimed, digest, who in claims:
            if claimed == seq and digest != row[5].hex():
                raise _Bad(f"entry {seq} is whole, but {who} another one", seq)
        self.seq, self.hash = seq, row[5]

    def _check(self, connection: sqlite3.Connection, bodies: Bodies, log_id: str, row: Any) -> None:
        seq, kind, operation, actor, envelope, digest, salt, body, offset, length = row
        for value, wanted in ((envelope, bytes), (digest, bytes), (salt, bytes | None), (body, bytes | None)):
            if not isinstance(value, wanted):
                raise ValueError("a column is not of its type")
        fields = check_envelope(log_id, seq, self.hash, envelope, digest)
        if (kind, operation, actor) != (fields["type"], fields.get("operation"), fields.get("actor")):
            raise ValueError("its type, operation or actor is not the recorded one")
        generation, incarnation = fields["generation"], fields["incarnation"]
        if not (isinstance(generation, int) and isinstance(incarnation, int)):
            raise ValueError("its generation or incarnation is not a number")
        if generation < self.generation:
            raise ValueError("its generation is lower than that of the entry before")
        self._check_body(bodies, fields, salt, body, offset, length)
        if kind == "admitted" and "request_id" in fields:
            self._check_request(connection, fields, body)
        self.generation, self.incarnation = generation, max(self.incarnation, incarnation)

    def _check_body(
        self,
        bodies: Bodies,
        fields: Envelope,
        salt: bytes | None,
        body: bytes | None,
        offset: int | None,
        length: int | None,
    ) -> None:
        if offset is not None or length is not None:
            if body is not None or length != fields.get("size"):
                raise ValueError("its body is not where it was recorded")
            check_body(fields, salt, bodies.read(offset, length))
            return
        check_body(fields, salt, None if body is None else (body,))
        if body is None and fields["bh"] != WITHHELD:
            self.pruned += 1

    def _check_request(self, connection: sqlite3.Connection, fields: Envelope, body: bytes | None) -> None:
        """The table by which requests are found again must say what the chain says."""
        key = (fields.get("actor"), fields["request_id"])
        row = connection.execute(_REQUEST, key).fetchone()
        recorded = admission_digest(body) if body is not None and fields["form"] == "json" else None
        if row is None or row[1] != fields.get("operation") or recorded not in (None, row[0]):
            raise ValueError("the index of requests says something else")
        self.requests += 1

    def _end(self, connection: sqlite3.Connection, end: int) -> None:
        """Nothing may stand behind the head, and no request without its admission."""
        try:
            (row,) = connection.execute(_END).fetchall()
        except _DAMAGE as error:
            raise _Bad(f"the journal's end cannot be read: {error}") from error
        head, last, first, requests = row
        if (last or 0) != head:
            raise _Bad(f"the head is entry {head}, but the last entry is {last}", end + 1)
        if first is not None and first != 1:
            raise _Bad(f"there is an entry {first}, before the first", first)
        if head == end and requests != self.requests:
            raise _Bad(f"{requests} requests are indexed, but {self.requests} were admitted")

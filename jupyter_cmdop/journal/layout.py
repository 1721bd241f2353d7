"""What a journal's directory holds: file names, tables, the head, and how SQLite's errors read as ours."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .entry import GENESIS
from .errors import JournalDamaged, JournalError, JournalUnavailable

JOURNAL_FILE: Final = "journal.sqlite"
BODIES_FILE: Final = "bodies.bin"
LOCK_FILE: Final = "lock"
WAL_SUFFIX: Final = "-wal"
ROLLBACK_SUFFIX: Final = "-journal"

FORMAT_VERSION: Final = 1
INLINE_BYTES: Final = 64 * 1024  # a longer body goes to BODIES_FILE
BUSY_SECONDS: Final = 5.0  # only without WAL do readers and the writer wait for each other

# No index beside the primary keys. One on `entries(operation)` costs 1 us an output in a batch of 64 and nearly doubles
# a commit of one entry (25 -> 44 us), while a scan for one operation passes 100,000 entries in 35 ms without one.
SCHEMA: Final = (
    """CREATE TABLE entries(
        seq INTEGER PRIMARY KEY, type TEXT, operation TEXT, actor TEXT,
        envelope BLOB, hash BLOB, salt BLOB, body BLOB, blob_offset INTEGER, blob_length INTEGER)""",
    """CREATE TABLE requests(
        actor TEXT NOT NULL, request_id TEXT NOT NULL, digest TEXT NOT NULL, operation TEXT,
        PRIMARY KEY (actor, request_id)) WITHOUT ROWID""",
    """CREATE TABLE head(
        seq INTEGER, hash BLOB, generation INTEGER, incarnation INTEGER, blob_end INTEGER)""",
    "CREATE TABLE meta(log_id TEXT, format INTEGER)",
)


@dataclass(frozen=True, slots=True)
class Head:
    """Where a journal ends.

    Attributes:
        seq: of the last entry, 0 when there is none.
        hash: of the last entry, hex; with `seq` it is a receipt for everything before.
        generation: the highest that has written; a lower one is refused.
        incarnation: the highest recorded.
    """

    seq: int = 0
    hash: str = GENESIS.hex()
    generation: int = 0
    incarnation: int = 0


def head_from_rows(rows: Sequence[Any]) -> Head:
    """Read the table `head`, whose first four columns are those of `Head`.

    Raises:
        JournalDamaged: there is not one row, or a column is of another type.
    """
    if len(rows) != 1:
        raise JournalDamaged(f"there are {len(rows)} heads")
    seq, digest, generation, incarnation = rows[0][:4]
    if not isinstance(digest, bytes) or not all(isinstance(n, int) for n in (seq, generation, incarnation)):
        raise JournalDamaged("the head cannot be read")
    return Head(seq, digest.hex(), generation, incarnation)


_UNAVAILABLE: Final = {
    sqlite3.SQLITE_FULL: ("the disk is full", errno.ENOSPC),
    sqlite3.SQLITE_IOERR: ("the disk reports an error", errno.EIO),
    sqlite3.SQLITE_CANTOPEN: ("the journal's files cannot be opened", errno.EACCES),
    sqlite3.SQLITE_READONLY: ("the journal cannot be written", errno.EROFS),
    sqlite3.SQLITE_PERM: ("access to the journal is not permitted", errno.EACCES),
    sqlite3.SQLITE_BUSY: ("the journal is in use", errno.EBUSY),
    sqlite3.SQLITE_LOCKED: ("the journal is in use", errno.EBUSY),
    sqlite3.SQLITE_NOMEM: ("there is no memory for it", errno.ENOMEM),
}

# What the module `sqlite3` raises: it also fails to decode its own message when that quotes damaged text.
SQLITE_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)


def from_sqlite(error: Exception) -> JournalError:
    """Say an error of SQLite in this package's words; what is not a shortage or a fault of the disk is damage."""
    code: int | None = getattr(error, "sqlite_errorcode", None)  # absent when the module itself raised
    if code is None or code & 0xFF not in _UNAVAILABLE:
        return JournalDamaged(f"the database cannot be read: {error}")
    reason, number = _UNAVAILABLE[code & 0xFF]
    return JournalUnavailable(f"{reason} ({getattr(error, 'sqlite_errorname', code)})", number)


def is_failed_sync(error: Exception) -> bool:
    """Whether an fsync failed: then nobody knows what is on disk, and a second fsync may wrongly say all is well."""
    code = getattr(error, "sqlite_errorcode", None)
    return code in {sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC}

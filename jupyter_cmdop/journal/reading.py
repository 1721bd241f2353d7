"""Open a journal's files for reading: live or closed, in a directory that may be read-only."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .errors import JournalUnavailable
from .layout import BODIES_FILE, BUSY_SECONDS, JOURNAL_FILE, ROLLBACK_SUFFIX, WAL_SUFFIX

# Each read is a transaction of its own, so that a slow reader holds up no checkpoint and no writer.
ROWS_A_READ: Final = 64
SLICE_BYTES: Final = 1024 * 1024  # of a long body at a time

COLUMNS: Final = "seq, type, operation, actor, envelope, hash, salt, body, blob_offset, blob_length"
HEAD: Final = "SELECT seq, hash, generation, incarnation FROM head"
META: Final = "SELECT log_id, format FROM meta"


class Bodies:
    """The file of long bodies, opened when the first is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def read(self, offset: int | None, length: int | None) -> Iterator[bytes]:
        """A body in slices.

        Raises:
            ValueError: the file is missing or ends before the body does.
        """
        if not (isinstance(offset, int) and isinstance(length, int)):
            raise ValueError("the place of its body cannot be read")
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise ValueError(f"its body is in {self._path.name}, which is missing") from None
        end = offset + length
        while offset < end:
            part = os.pread(self._descriptor, min(SLICE_BYTES, end - offset), offset)
            if not part:
                raise ValueError(f"{self._path.name} ends before its body does")
            offset += len(part)
            yield part

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def locate(directory: Path) -> tuple[Path, Path]:
    """The database and the file of long bodies; `directory` may name the database itself.

    Raises:
        JournalUnavailable: there is no journal.
    """
    journal = directory if directory.is_file() else directory / JOURNAL_FILE
    if not journal.is_file():
        raise JournalUnavailable(f"there is no journal in {directory}", errno.ENOENT)
    return journal, journal.parent / BODIES_FILE


def connect(journal: Path) -> sqlite3.Connection:
    """Connect read-only.

    A database in WAL mode needs files beside it. Where the directory cannot be written they cannot be made, and a
    journal that was closed needs none: it is then opened as immutable. Never one with a WAL or a rollback journal that
    holds something: what the database says is not the whole truth then. (And never a live one: an immutable
    connection that closes takes the locks of this process with it.)

    Without WAL, a writer that was killed leaves half a transaction in the database. The first who opens it undoes it;
    that is SQLite's recovery and the only case in which reading writes.

    Raises:
        sqlite3.Error: it cannot be opened, or is no database.
        JournalUnavailable: it was not closed, and only somebody who may write can read it.
    """
    try:
        return _open(journal, "mode=ro")
    except sqlite3.OperationalError as error:
        code: int = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF not in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}:
            raise
        try:
            if code == sqlite3.SQLITE_READONLY_ROLLBACK:
                return _open(journal, "mode=rw")
            beside = [journal.with_name(journal.name + suffix) for suffix in (WAL_SUFFIX, ROLLBACK_SUFFIX)]
            if not any(path.exists() and path.stat().st_size for path in beside):
                return _open(journal, "mode=ro&immutable=1")
        except sqlite3.OperationalError as second:
            if getattr(second, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_READONLY:
                raise
        reason = f"{journal} was not closed and cannot be written: copy its directory and read that"
        raise JournalUnavailable(reason, errno.EROFS) from error


def _open(journal: Path, options: str) -> sqlite3.Connection:
    # One user at a time, in whichever thread.
    connection = sqlite3.connect(
        f"{journal.absolute().as_uri()}?{options}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_SECONDS,
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()  # opens the files at last
    except BaseException:
        connection.close()
        raise
    return connection

"""The journal's one writer: append in one transaction, make durable, keep the files in order.

One SQLite database a session. With a WAL, `append` commits without any sync (SQLite's `synchronous=NORMAL`) and `sync`
is our own fdatasync of the WAL: a whole turn of the keeper costs one, from whichever thread. The traps:

- Closing any descriptor of the database or its -shm drops the POSIX locks of the whole process. So nothing here opens
  those two by hand; the WAL carries no locks.
- The last connection that closes deletes the WAL. So one stays open, and `sync` compares inodes.
- A checkpoint in a commit syncs twice. So SQLite's own is off, and `maintenance` does it from a helper thread.

After a failed sync nobody knows what is on disk, and the next one may wrongly succeed: the store then refuses for good.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .entry import GENESIS, SALT_BYTES, Entry, admission_digest, commit_to, seal
from .errors import DuplicateRequest, JournalDamaged, JournalError, JournalLocked, JournalUnavailable
from .files import (
    WAL_BYTES,
    check_identity,
    checkpoint,
    connect,
    create,
    detect_network_fs,
    from_os,
    inode,
    lock,
    make_directory,
    open_file,
    set_journal_mode,
    sync_directory,
    sync_file,
)
from .layout import (
    BODIES_FILE,
    INLINE_BYTES,
    JOURNAL_FILE,
    LOCK_FILE,
    SQLITE_ERRORS,
    WAL_SUFFIX,
    Head,
    from_sqlite,
    head_from_rows,
    is_failed_sync,
)

__all__ = [
    "Conflict",
    "DuplicateRequest",
    "Head",
    "JournalDamaged",
    "JournalError",
    "JournalLocked",
    "JournalStore",
    "JournalUnavailable",
    "Prepared",
    "detect_network_fs",
]

SLICE_BYTES: Final = 8 * 1024 * 1024  # of a body that is written ahead

_INSERT: Final = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_REQUEST: Final = "INSERT INTO requests VALUES (?, ?, ?, ?)"
_FIND_REQUEST: Final = "SELECT operation, digest FROM requests WHERE actor = ? AND request_id = ?"
_MOVE_HEAD: Final = """
    UPDATE head SET seq = ?, hash = ?, generation = ?, incarnation = ?, blob_end = ?
    WHERE seq = ? AND hash = ? AND generation <= ?"""
_READ_HEAD: Final = "SELECT seq, hash, generation, incarnation, blob_end FROM head"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Nothing was written: the journal is elsewhere than the writer believes, or under a higher generation."""

    head: Head


@dataclass(frozen=True, slots=True)
class Prepared:
    """A long body that is in its file already, and on disk; no entry names it yet."""

    salt: bytes
    commitment: str
    offset: int


class JournalStore:
    """The writer of one journal. `append`, `find_request` and `close` belong to the thread that opened it."""

    def __init__(
        self,
        directory: Path,
        log_id: str,
        connection: sqlite3.Connection,
        *,
        wal: bool,
        bodies_fd: int,
    ) -> None:
        """Use `open`."""
        self.directory = directory
        self.log_id = log_id
        self.wal = wal
        self._connection = connection
        self._cursor = connection.cursor()
        self._resources = ExitStack()  # filled by `open` when nothing can fail any more
        self._bodies_fd = bodies_fd
        self._bodies_synced = -1
        self._wal_path = os.fspath(directory / (JOURNAL_FILE + WAL_SUFFIX))
        self._wal_fd = -1
        self._wal_inode: tuple[int, int] | None = None
        self._synced = -1  # what an earlier keeper left in the WAL may never have been synced
        self._failure: JournalUnavailable | None = None
        self._sync_lock = threading.Lock()
        self._maintenance_lock = threading.Lock()
        self._closed = False
        self._head, self._blob_end = self._read_head()

    @classmethod
    def open(cls, directory: Path, log_id: str, *, wal: bool | None = None) -> Self:
        """Open the journal in `directory`, or make a new one there.

        Only the end is checked: the head is the last entry. `journal.query.verify` checks the rest.

        Args:
            directory: made with mode 0700 if it is missing; all files in it get 0600.
            log_id: the session's; part of every hash.
            wal: None decides by `detect_network_fs`.

        Raises:
            JournalLocked: another process is its writer.
            JournalDamaged: it is not a journal, that of another session, or its end is not what the head says.
            JournalUnavailable: the disk does not let us.
        """
        with ExitStack() as resources:
            try:
                return cls._open(directory, log_id, wal, resources)
            except SQLITE_ERRORS as error:
                raise from_sqlite(error) from error
            except OSError as error:
                raise from_os(error) from error

    @classmethod
    def _open(cls, directory: Path, log_id: str, wal: bool | None, resources: ExitStack) -> Self:
        make_directory(directory)
        lock_fd = open_file(directory / LOCK_FILE)
        resources.callback(os.close, lock_fd)
        lock(lock_fd)
        path = directory / JOURNAL_FILE
        if not path.exists():
            create(directory, log_id)
        bodies_fd = open_file(directory / BODIES_FILE)
        resources.callback(os.close, bodies_fd)
        path.chmod(0o600)
        connection = connect(path)
        resources.callback(connection.close)
        check_identity(connection, log_id)
        wal = not detect_network_fs(directory) if wal is None else wal
        wal = set_journal_mode(connection, wal=wal)
        store = cls(directory, log_id, connection, wal=wal, bodies_fd=bodies_fd)
        resources.callback(store._close_wal)
        store._check_end()
        # What a crash left behind the last recorded body is nobody's.
        if os.fstat(bodies_fd).st_size > store._blob_end:
            os.ftruncate(bodies_fd, store._blob_end)
        store._find_wal()
        store._resources = resources.pop_all()
        return store

    @property
    def head(self) -> Head:
        """Where the journal ends; moves with each `append`."""
        return self._head

    @property
    def durable_seq(self) -> int:
        """The last entry that is known to be on disk; -1 until the first `sync`."""
        return self._synced

    @property
    def failure(self) -> str | None:
        """Why a sync has failed, wherever: then it refuses for good, and only a new session has a record again."""
        failure = self._failure
        return None if failure is None else failure.reason

    def prepare(self, bodies: Sequence[bytes]) -> list[Prepared]:
        """Write long bodies ahead of their entries; any thread, while nobody appends.

        What takes long (the hash, the file, the disk) is done here, so that the append behind it is quick. The next
        `append` must name all of them in this order, or none.

        Raises:
            JournalUnavailable: the disk does not let us; when a sync has failed the store refuses from now on.
        """
        self._check_usable()
        offset = self._blob_end
        prepared: list[Prepared] = []
        try:
            for body in bodies:
                salt = os.urandom(SALT_BYTES)
                self._write_body(body, offset, slices=True)
                prepared.append(Prepared(salt, commit_to(salt, body), offset))
                offset += len(body)
        except OSError as error:
            raise from_os(error) from error
        return prepared

    def append(
        self,
        expected_seq: int,
        generation: int,
        entries: Sequence[Entry],
        prepared: Mapping[int, Prepared] | None = None,
    ) -> Head | Conflict:
        """Write entries behind the one with `expected_seq`, all or none; `sync` makes them durable.

        Args:
            expected_seq: of the head, as the writer knows it.
            generation: under which the writer acts.
            entries: of no lower generation than the head, and in a rising order of generations.
            prepared: what `prepare` has returned, by the index of its entry.

        Returns:
            The new head; or a conflict, and then nothing was written.

        Raises:
            DuplicateRequest: an admission repeats a request id; nothing was written.
            JournalUnavailable: a full disk or an I/O error; nothing was written, and the same call may succeed later
                unless a sync has failed.
            JournalDamaged: the database contradicts itself; nothing was written.
        """
        self._check_usable()
        head = self._head
        if expected_seq != head.seq or generation < head.generation:
            return Conflict(head)
        if not entries:
            return head
        seq, highest, incarnation, blob_end = head.seq, head.generation, head.incarnation, self._blob_end
        previous = before = bytes.fromhex(head.hash)
        salts = os.urandom(SALT_BYTES * len(entries))
        rows: list[tuple[object, ...]] = []
        large: list[tuple[int, bytes]] = []
        admitted: list[Entry] = []
        for index, entry in enumerate(entries):
            if entry.generation < highest:
                return Conflict(head)
            highest = entry.generation
            incarnation = max(incarnation, entry.incarnation)
            seq += 1
            at = index * SALT_BYTES
            salt = salts[at : at + SALT_BYTES]
            ready = None if prepared is None else prepared.get(index)
            if ready is not None and ready.offset == blob_end:
                salt, commitment = ready.salt, ready.commitment
            else:
                ready = commitment = None
            _, _, envelope, previous, salt = seal(self.log_id, seq, previous, entry, salt, commitment)
            body: bytes | None = entry.body
            offset = length = None
            if entry.withheld:
                body = None
            elif len(entry.body) > INLINE_BYTES:
                body, offset, length = None, blob_end, len(entry.body)
                if ready is None:
                    large.append((offset, entry.body))
                blob_end += length
            rows.append(
                (
                    seq,
                    entry.type,
                    entry.operation,
                    entry.actor,
                    envelope,
                    previous,
                    salt or None,
                    body,
                    offset,
                    length,
                )
            )
            if entry.request_id is not None and entry.type == "admitted":
                admitted.append(entry)
        moved = Head(seq, previous.hex(), max(highest, generation), incarnation)
        try:
            requests = self._requests(admitted) if admitted else []
            for offset, long in large:
                self._write_body(long, offset)
            if not self._commit(moved, blob_end, head, before, rows, requests):
                return Conflict(self._head)
        except SQLITE_ERRORS as error:
            raise self._recover(error) from error
        except OSError as error:
            raise from_os(error) from error
        # In this order: `sync`, in another thread, reads them the other way round.
        self._blob_end = blob_end
        self._head = moved
        if self.wal and self._wal_fd < 0:
            self._find_wal()
        return moved

    def find_request(self, actor: str, request_id: str) -> tuple[str | None, str] | None:
        """The operation and digest that an actor's request id was first admitted with, whenever that was.

        Raises:
            JournalUnavailable: it cannot be read now.
            JournalDamaged: it cannot be read.
        """
        try:
            row = self._cursor.execute(_FIND_REQUEST, (actor, request_id)).fetchone()
        except SQLITE_ERRORS as error:
            raise from_sqlite(error) from error
        return None if row is None else (row[0], row[1])

    def sync(self) -> None:
        """Return when everything appended before this call is on disk. Any thread may call it, also after `close`.

        Raises:
            JournalUnavailable: the disk failed; the store refuses from now on.
        """
        with self._sync_lock:
            if self._closed and self._failure is None:
                return  # `close` has done it; a helper thread may be late
            self._check_usable()
            target = self._head.seq
            if target == self._synced:
                return
            try:
                self._sync_bodies()
                self._sync_wal()
            except OSError as error:
                self._failure = from_os(error, "the journal could not be made durable")
                raise self._failure from error
            self._synced = target

    def maintenance(self) -> bool:
        """Move the WAL's content into the database when it has grown; for a helper thread, every second or so.

        Returns:
            Whether a checkpoint emptied the WAL.

        Raises:
            JournalUnavailable: the disk is full (nothing is lost, the WAL keeps growing) or failed.
            JournalDamaged: the database contradicts itself; what was appended is in the WAL.
        """
        with self._maintenance_lock:
            if not self.wal or self._closed or self._failure is not None:
                return False
            try:
                if os.stat(self._wal_path).st_size <= WAL_BYTES:
                    return False
                self.sync()  # bodies first: the checkpoint makes the rows that name them durable
                return checkpoint(self.directory / JOURNAL_FILE)
            except SQLITE_ERRORS as error:
                raise self._translate(error) from error
            except OSError as error:
                raise from_os(error) from error

    def close(self) -> None:
        """Make everything durable, close and unlock. A failed store is closed without an error.

        Raises:
            JournalUnavailable: the last sync failed.
        """
        with self._maintenance_lock:
            if self._closed:
                return
            try:
                if self._failure is None:
                    self.sync()
            finally:
                with self._sync_lock:
                    self._closed = True
                    self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ the parts of an append

    def _requests(self, admitted: Sequence[Entry]) -> list[tuple[str, str, str, str | None]]:
        rows: dict[tuple[str, str], tuple[str, str, str, str | None]] = {}
        for entry in admitted:
            if entry.actor is None or entry.request_id is None:
                raise ValueError("an admission with a request id needs an actor")
            known = self._cursor.execute(_FIND_REQUEST, (entry.actor, entry.request_id)).fetchone()
            key = (entry.actor, entry.request_id)
            if known is not None or key in rows:
                raise DuplicateRequest(*key, None if known is None else known[0])
            digest = "" if entry.withheld or entry.form != "json" else admission_digest(entry.body)
            rows[key] = (*key, digest, entry.operation)
        return list(rows.values())

    def _write_body(self, body: bytes, offset: int, *, slices: bool = False) -> None:
        """Write over what a failed append may have left there.

        Args:
            slices: bring each slice to the disk before the next: a sync of something else then finds little to do.
        """
        rest = memoryview(body)
        while rest:
            written = os.pwrite(self._bodies_fd, rest[:SLICE_BYTES] if slices else rest, offset)
            offset += written
            rest = rest[written:]
            if slices:
                self._sync_slice()

    def _sync_slice(self) -> None:
        try:
            sync_file(self._bodies_fd)
        except OSError as error:  # it may be about other bodies, which count as on disk or soon will
            self._failure = from_os(error, "the journal could not be made durable")
            raise self._failure from error

    def _commit(
        self,
        moved: Head,
        blob_end: int,
        head: Head,
        before: bytes,
        rows: Sequence[tuple[object, ...]],
        requests: Sequence[tuple[str, str, str, str | None]],
    ) -> bool:
        cursor, digest = self._cursor, bytes.fromhex(moved.hash)
        cursor.execute("BEGIN IMMEDIATE")
        try:
            to = (moved.seq, digest, moved.generation, moved.incarnation, blob_end)
            cursor.execute(_MOVE_HEAD, (*to, head.seq, before, moved.generation))
            if cursor.rowcount != 1:
                cursor.execute("ROLLBACK")
                self._head, self._blob_end = self._read_head()
                return False
            cursor.executemany(_INSERT, rows)
            if requests:
                cursor.executemany(_INSERT_REQUEST, requests)
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite itself has rolled back after some errors
                cursor.execute("ROLLBACK")
            raise
        return True

    def _recover(self, error: Exception) -> JournalError:
        """Learn again where the journal ends, after a transaction that failed and was rolled back."""
        failure = self._translate(error)
        try:
            self._head, self._blob_end = self._read_head()
        except (*SQLITE_ERRORS, JournalError) as second:
            reason = f"the journal's end cannot be read after an error: {second}"
            self._failure = JournalUnavailable(reason, errno.EIO)
        return failure

    def _translate(self, error: Exception) -> JournalError:
        failure = from_sqlite(error)
        if is_failed_sync(error) and isinstance(failure, JournalUnavailable):
            self._failure = failure
        return failure

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise JournalUnavailable(self._failure.reason, self._failure.errno)
        if self._closed:
            raise ValueError("the journal is closed")

    # ------------------------------------------------------------------ reading the end

    def _read_head(self) -> tuple[Head, int]:
        rows = self._cursor.execute(_READ_HEAD).fetchall()
        head, blob_end = head_from_rows(rows), rows[0][4]
        if not isinstance(blob_end, int) or blob_end < 0:
            raise JournalDamaged("the head does not say where the long bodies end")
        return head, blob_end

    def _check_end(self) -> None:
        row = self._cursor.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
        seq, digest = (0, GENESIS) if row is None else row
        if seq != self._head.seq:
            raise JournalDamaged(f"the head is entry {self._head.seq}, but the last entry is {seq}")
        if not isinstance(digest, bytes) or digest.hex() != self._head.hash:
            raise JournalDamaged(f"the head has another hash than entry {seq}, the last one")

    # ------------------------------------------------------------------ durability

    def _close_wal(self) -> None:
        if self._wal_fd >= 0:
            os.close(self._wal_fd)
            self._wal_fd = -1

    def _find_wal(self) -> None:
        """Open the WAL for `sync`, as soon as it exists; its name is made durable once."""
        if not self.wal:
            return
        try:
            self._wal_fd = os.open(self._wal_path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            self._failure = from_os(error, "the write-ahead log cannot be opened")
            raise self._failure from error
        self._wal_inode = inode(os.fstat(self._wal_fd))
        sync_directory(self.directory)

    def _sync_bodies(self) -> None:
        end = self._blob_end
        if end != self._bodies_synced:
            sync_file(self._bodies_fd)
            self._bodies_synced = end

    def _sync_wal(self) -> None:
        if self._wal_fd < 0:  # without WAL every commit is durable; with one, nothing was appended yet
            return
        if inode(os.stat(self._wal_path)) != self._wal_inode:
            raise OSError(errno.ESTALE, "somebody has replaced the write-ahead log")
        sync_file(self._wal_fd)

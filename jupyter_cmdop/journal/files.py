"""Make, lock, connect and sync the files of a journal that is written, with our own modes and in a safe order."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import sys
from pathlib import Path
from typing import Final

from .entry import GENESIS
from .errors import JournalDamaged, JournalLocked, JournalUnavailable
from .layout import (
    BODIES_FILE,
    BUSY_SECONDS,
    FORMAT_VERSION,
    JOURNAL_FILE,
    ROLLBACK_SUFFIX,
    SCHEMA,
    WAL_SUFFIX,
)

# From here on a checkpoint is made; it is also what a restarted WAL keeps.
WAL_BYTES: Final = 16 * 1024 * 1024


def from_os(error: OSError, what: str = "the journal cannot be written") -> JournalUnavailable:
    return JournalUnavailable(f"{what}: {error.strerror or error}", error.errno)


def inode(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def make_directory(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        path.chmod(0o700)  # the umask may have taken our own bits away


def open_file(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).strip()
        raise JournalLocked(int(holder) if holder.isdigit() else None) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)


if sys.platform == "darwin":

    def sync_file(descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync stops at the drive's cache there

else:

    def sync_file(descriptor: int) -> None:
        os.fdatasync(descriptor)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------- SQLite


def connect(path: Path) -> sqlite3.Connection:
    """Connect to what exists; SQLite must not make it, it would take the umask."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS
    )
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def create(directory: Path, log_id: str) -> None:
    """Make an empty journal under another name first: under its own name there is a whole one or none.

    So a database without tables is never the rest of a crash at the beginning; it is damage, and is treated so.
    """
    for name in (JOURNAL_FILE + WAL_SUFFIX, JOURNAL_FILE + ROLLBACK_SUFFIX, BODIES_FILE):
        left = directory / name
        if left.exists() and left.stat().st_size:
            raise JournalDamaged(f"{JOURNAL_FILE} is missing beside {name}")
    new = directory / (JOURNAL_FILE + ".new")
    for left in (new, directory / (new.name + ROLLBACK_SUFFIX)):
        left.unlink(missing_ok=True)
    descriptor = open_file(new)
    try:
        connection = connect(new)
        try:
            connection.execute("PRAGMA synchronous = OFF")  # synced below, once
            connection.execute("BEGIN")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO head VALUES (0, ?, 0, 0, 0)", (GENESIS,))
            connection.execute("INSERT INTO meta VALUES (?, ?)", (log_id, FORMAT_VERSION))
            connection.execute("COMMIT")
        finally:
            connection.close()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)  # no connection is open to it: no lock is dropped
    new.rename(directory / JOURNAL_FILE)
    sync_directory(directory)
    sync_directory(directory.parent)


def check_identity(connection: sqlite3.Connection, log_id: str) -> None:
    rows = connection.execute("SELECT log_id, format FROM meta").fetchall()
    if len(rows) != 1:
        raise JournalDamaged("the journal does not say whose it is")
    found, version = rows[0]
    if version != FORMAT_VERSION:
        raise JournalDamaged(f"the journal has format {version}, this program writes {FORMAT_VERSION}")
    if found != log_id:
        raise JournalDamaged(f"this is the journal of {found}, not of {log_id}")


def set_journal_mode(connection: sqlite3.Connection, *, wal: bool) -> bool:
    """Choose how commits are made safe.

    Returns:
        Whether there is a WAL; a file system without shared memory has none, whatever was asked.
    """
    if wal and connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        # A restarted WAL is cut to this size, so a larger one holds as much that is not in the database yet.
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        return True
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    # Below FULL the last step of a commit, emptying the rollback journal, is not synced.
    connection.execute("PRAGMA synchronous = FULL")
    return False


def checkpoint(path: Path) -> bool:
    """Checkpoint without waiting for anybody, on a connection of its own.

    Returns:
        Whether everything was moved; a reader may still need a part.
    """
    connection = connect(path)
    try:
        _, in_wal, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    finally:
        connection.close()
    return bool(in_wal == moved)


# ---------------------------------------------------------------------- network file systems

# SQLite's WAL needs memory that all its processes share, which a file system over a network cannot give.
_NETWORK: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "smb3",
        "smbfs",
    }
)
_LOCAL_FUSE: Final = frozenset(
    {"fuse.fuse-overlayfs", "fuse.bindfs", "fuse.gocryptfs", "fuse.encfs", "fuse.mergerfs"}
)


def detect_network_fs(path: Path, *, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether `path` is on a network file system, as far as the system's table of mounts says; without one: no."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return False
    target = os.path.realpath(path)
    longest, kind = "", ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        below = target == point or target.startswith(point.rstrip("/") + "/")
        if below and len(point) >= len(longest):  # a later mount hides an earlier one at the same place
            longest, kind = point, fields[2]
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)

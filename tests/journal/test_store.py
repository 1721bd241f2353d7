"""The one writer: compare-and-set, request ids, long bodies, durability, full disks, modes, locks."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from jupyter_cmdop.journal import files
from jupyter_cmdop.journal import store as module
from jupyter_cmdop.journal.entry import GENESIS, Entry
from jupyter_cmdop.journal.query import JournalReader, verify
from jupyter_cmdop.journal.store import (
    Conflict,
    DuplicateRequest,
    Head,
    JournalDamaged,
    JournalLocked,
    JournalStore,
    JournalUnavailable,
    detect_network_fs,
)
from tests.journal.making import LARGE, LOG, admitted, entry, story_entries, stream, tamper, write


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JournalStore]:
    with JournalStore.open(tmp_path / "s", LOG) as store:
        yield store


def appended(store: JournalStore, *entries: Entry, generation: int | None = None) -> Head:
    generation = store.head.generation if generation is None else generation
    head = store.append(store.head.seq, generation, entries)
    assert isinstance(head, Head)
    return head


# ---------------------------------------------------------------------- append


def test_a_new_journal_is_empty(store: JournalStore) -> None:
    assert store.head == Head(0, GENESIS.hex(), 0, 0)
    assert store.append(0, 0, []) == store.head


def test_append_moves_the_head_and_survives_reopening(tmp_path: Path, store: JournalStore) -> None:
    first = appended(store, *story_entries())
    second = appended(store, entry(generation=2, incarnation=4), generation=3)
    assert (first.seq, first.generation) == (6, 0)
    assert (second.seq, second.generation, second.incarnation) == (7, 3, 4)
    store.close()
    with JournalStore.open(tmp_path / "s", LOG) as again:
        assert again.head == second
        assert appended(again, entry(generation=3)).incarnation == 4
    assert verify(tmp_path / "s", (second.seq, second.hash)).ok


@pytest.mark.parametrize(
    ("seq", "generation", "generations"),
    [
        (0, 5, [5]),  # somebody has written since
        (2, 5, [5]),  # never was
        (1, 4, [5]),  # the writer's generation is over
        (1, 5, [4]),  # the entry's is
        (1, 5, [5, 6, 5]),  # falls within the batch
        (0, 5, []),
        (1, 4, []),
    ],
)
def test_conflict_writes_nothing(
    store: JournalStore, seq: int, generation: int, generations: list[int]
) -> None:
    head = appended(store, entry(generation=5), generation=5)
    conflict = store.append(seq, generation, [entry(generation=number) for number in generations])
    assert conflict == Conflict(head)
    assert store.head == head
    assert appended(store, entry(generation=5)).seq == 2


def test_the_comparison_is_with_the_database_not_with_our_memory(tmp_path: Path, store: JournalStore) -> None:
    """A file lock may not hold across hosts; the head row does."""
    appended(store, entry())
    with closing(sqlite3.connect(tmp_path / "s" / "journal.sqlite", isolation_level=None)) as other:
        other.execute("UPDATE head SET generation = 9")
    conflict = store.append(1, 0, [entry()])
    assert isinstance(conflict, Conflict)
    assert conflict.head.generation == store.head.generation == 9
    assert appended(store, entry(generation=9)).seq == 2


def test_a_caller_s_mistake_leaves_no_transaction_behind(store: JournalStore) -> None:
    with pytest.raises(OverflowError):
        store.append(0, 2**70, [entry()])
    assert appended(store, entry()).seq == 1


# ---------------------------------------------------------------------- request ids


def test_request_ids_are_found_after_reopening(tmp_path: Path, store: JournalStore) -> None:
    appended(store, admitted("r-1", operation="op-1", digest="d1"))
    appended(store, admitted("r-1", operation="op-2", digest="d2", actor="bob"), entry(request_id="r-9"))
    store.close()
    with JournalStore.open(tmp_path / "s", LOG) as again:
        assert again.find_request("ada", "r-1") == ("op-1", "d1")
        assert again.find_request("bob", "r-1") == ("op-2", "d2")
        assert again.find_request("ada", "r-2") is None
        assert again.find_request("ada", "r-9") is None, "only an admission uses up a request id"


def test_a_request_is_admitted_once(store: JournalStore) -> None:
    head = appended(store, admitted("r-1"))
    with pytest.raises(DuplicateRequest) as caught:
        store.append(1, 0, [entry(), admitted("r-1", operation="op-2")])
    assert caught.value.operation == "op-1"
    assert "op-1" in str(caught.value)
    with pytest.raises(DuplicateRequest):
        store.append(1, 0, [admitted("r-2"), admitted("r-2")])
    assert store.head == head
    assert store.find_request("ada", "r-2") is None


def test_an_admission_without_an_actor_is_a_bug(store: JournalStore) -> None:
    with pytest.raises(ValueError, match="actor"):
        store.append(0, 0, [entry("admitted", request_id="r", data={})])


# ---------------------------------------------------------------------- bodies


def test_long_bodies_go_to_the_side_file(tmp_path: Path, store: JournalStore) -> None:
    exact, longer, longest = b"a" * (len(LARGE) - 1), LARGE, b"b" * 300_000
    appended(store, *(entry(body=body, form="none") for body in (exact, longer)))
    appended(store, entry(body=longest, form="none"), entry(body=LARGE, withheld=True))
    store.sync()
    assert (tmp_path / "s" / "bodies.bin").stat().st_size == len(longer) + len(longest)
    with JournalReader(tmp_path / "s") as reader:
        assert [stored.body for stored in reader.entries()] == [exact, longer, longest, None]
    assert verify(tmp_path / "s").ok


def test_a_torn_tail_of_the_side_file_is_nobody_s(tmp_path: Path) -> None:
    """Bodies are written before the commit, so a crash leaves bytes that no entry names."""
    write(tmp_path, [[entry(body=LARGE, form="none")]])
    with (tmp_path / "bodies.bin").open("ab") as side:
        side.write(b"torn")
    assert verify(tmp_path).ok
    write(tmp_path, [[entry(body=LARGE + b"2", form="none")]])
    assert (tmp_path / "bodies.bin").stat().st_size == 2 * len(LARGE) + 1
    assert verify(tmp_path).ok


def test_a_secret_is_nowhere_on_disk(tmp_path: Path) -> None:
    secret = b"correct horse battery staple"
    write(tmp_path, [[entry("input", body=secret, withheld=True), entry(body=LARGE + secret, withheld=True)]])
    for path in tmp_path.iterdir():
        assert secret not in path.read_bytes()
    with JournalReader(tmp_path) as reader:
        first = next(reader.entries())
    assert (first.body, first.salt, first.envelope["bh"]) == (None, None, "-")
    assert "size" not in first.envelope


# ---------------------------------------------------------------------- durability


def test_sync_covers_both_files_and_only_when_something_is_new(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def record(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        os.fdatasync(descriptor)

    monkeypatch.setattr(module, "sync_file", record)
    store.sync()
    synced.clear()
    appended(store, entry())
    store.sync()
    store.sync()
    assert synced == ["journal.sqlite-wal"]
    appended(store, entry(body=LARGE))
    store.sync()
    assert synced == ["journal.sqlite-wal", "bodies.bin", "journal.sqlite-wal"]
    assert store.durable_seq == 2


def test_what_an_earlier_keeper_left_unsynced_is_synced(tmp_path: Path, store: JournalStore) -> None:
    """Its entries answer `find_request`; they must be on disk before anybody relies on them."""
    appended(store, entry())
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.sqlite", "journal.sqlite-wal"):  # as after SIGKILL: nobody closed it
        (copy / name).write_bytes((tmp_path / "s" / name).read_bytes())
    with JournalStore.open(copy, LOG) as again:
        assert (again.head.seq, again.durable_seq) == (1, -1)
        again.sync()
        assert again.durable_seq == 1


def test_after_a_failed_sync_nothing_is_promised_any_more(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second fdatasync may succeed although the pages of the first are gone."""

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    appended(store, entry())
    with monkeypatch.context() as patch:
        patch.setattr(module, "sync_file", broken)
        with pytest.raises(JournalUnavailable) as caught:
            store.sync()
        assert caught.value.errno == errno.EIO
    for call in (store.sync, lambda: store.append(1, 0, [entry()])):
        with pytest.raises(JournalUnavailable, match="durable"):
            call()
    assert store.maintenance() is False
    store.close()


def test_a_wal_that_was_replaced_is_noticed(tmp_path: Path, store: JournalStore) -> None:
    appended(store, entry())
    wal = tmp_path / "s" / "journal.sqlite-wal"
    content = wal.read_bytes()
    wal.unlink()
    wal.write_bytes(content)
    with pytest.raises(JournalUnavailable, match="replaced"):
        store.sync()


def test_sync_and_appends_from_two_threads(store: JournalStore) -> None:
    done = threading.Event()
    errors: list[BaseException] = []

    def syncing() -> None:
        try:
            while not done.is_set():
                store.sync()
        except BaseException as error:
            errors.append(error)

    helper = threading.Thread(target=syncing)
    helper.start()
    try:
        for _ in range(100):
            appended(store, entry(body=b"z" * 200), entry(body=LARGE))
    finally:
        done.set()
        helper.join()
    assert errors == []
    store.sync()
    assert store.durable_seq == store.head.seq == 200


def test_a_closed_store(store: JournalStore) -> None:
    appended(store, entry())
    store.close()
    store.close()
    store.sync()  # a helper thread may be late
    assert store.maintenance() is False
    with pytest.raises(ValueError, match="closed"):
        store.append(1, 0, [entry()])


def test_maintenance_empties_a_grown_wal(
    tmp_path: Path, store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 128 * 1024
    monkeypatch.setattr(module, "WAL_BYTES", limit)
    store._connection.execute(f"PRAGMA journal_size_limit = {limit}")
    wal = tmp_path / "s" / "journal.sqlite-wal"
    results: list[bool] = []

    def maintain() -> None:
        helper = threading.Thread(target=lambda: results.append(store.maintenance()))
        helper.start()
        helper.join()

    appended(store, entry())
    maintain()
    while wal.stat().st_size <= limit:
        appended(store, entry(body=b"q" * 5000))
    maintain()
    assert results == [False, True]
    appended(store, entry())  # begins the WAL anew and cuts it
    assert wal.stat().st_size == limit
    assert store.maintenance() is False
    store.sync()
    assert verify(tmp_path / "s").ok


# ---------------------------------------------------------------------- full disks


def fill(store: JournalStore, body: bytes) -> None:
    """Append until it fails; each failure must leave the head where it was."""
    for _ in range(100):
        before = store.head
        try:
            appended(store, entry(body=body, form="none"))
        except JournalUnavailable:
            assert store.head == before
            raise


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("body", [b"w" * 40_000, LARGE], ids=["wal", "side file"])
def test_a_file_that_may_not_grow_and_then_may(tmp_path: Path, store: JournalStore, body: bytes) -> None:
    appended(store, entry())
    with file_size_limit(200_000), pytest.raises(JournalUnavailable):
        fill(store, body)
    head = store.head
    assert appended(store, entry(body=body, form="none")).seq == head.seq + 1
    store.sync()
    assert verify(tmp_path / "s").ok


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "disk"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(point)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a full disk needs the right to mount a small tmpfs")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize("body", [b"w" * 40_000, LARGE], ids=["wal", "side file"])
def test_a_full_disk_stops_appends_until_there_is_room(small_disk: Path, body: bytes) -> None:
    directory = small_disk / "s"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(500_000))
    with JournalStore.open(directory, LOG) as store:
        appended(store, admitted("r-0"))
        with pytest.raises(JournalUnavailable) as caught:
            fill(store, body)
        assert caught.value.errno == errno.ENOSPC
        head = store.head
        with pytest.raises(JournalUnavailable):
            appended(store, entry(body=body, form="none"))
        store.sync()  # what was recorded before can still be made durable
        assert store.find_request("ada", "r-0") == ("op-1", "d1")
        filler.unlink()
        assert appended(store, entry(body=body, form="none")).seq == head.seq + 1
        store.sync()
    assert verify(directory).ok


# ---------------------------------------------------------------------- opening


@pytest.mark.parametrize("umask", [0, 0o777])
def test_modes_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with JournalStore.open(tmp_path / "a" / "s", LOG) as store:
            appended(store, entry(body=LARGE))
            made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "s").iterdir()}
    finally:
        os.umask(before)
    assert set(made.values()) == {0o600}
    assert set(made) == {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "bodies.bin", "lock"}
    for directory in (tmp_path / "a", tmp_path / "a" / "s"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_second_writer_is_told_who_the_first_is(tmp_path: Path, store: JournalStore) -> None:
    with pytest.raises(JournalLocked) as caught:
        JournalStore.open(tmp_path / "s", LOG)
    assert caught.value.pid == os.getpid()
    assert str(os.getpid()) in str(caught.value)
    store.close()
    JournalStore.open(tmp_path / "s", LOG).close()


def test_a_refused_open_leaves_no_descriptor_behind(tmp_path: Path, store: JournalStore) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(JournalLocked):
            JournalStore.open(tmp_path / "s", LOG)
    store.close()
    for _ in range(3):
        with pytest.raises(JournalDamaged):
            JournalStore.open(tmp_path / "s", "another")
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE head SET seq = 5", "the last entry is 6"),
        ("UPDATE head SET hash = zeroblob(32)", "another hash"),
        ("UPDATE head SET hash = 'text'", "head cannot be read"),
        ("DELETE FROM head", "0 heads"),
        ("UPDATE head SET blob_end = -1", "long bodies"),
        ("DELETE FROM entries WHERE seq = 6", "the last entry is 5"),
        ("DELETE FROM entries", "the last entry is 0"),
        ("DROP TABLE entries", "no such table"),
        ("DELETE FROM meta", "whose it is"),
        ("UPDATE meta SET format = 2", "format 2"),
        ("UPDATE meta SET log_id = 'x'", "journal of x"),
    ],
)
def test_a_damaged_end_is_not_written_to(tmp_path: Path, statement: str, problem: str) -> None:
    write(tmp_path, [story_entries()])
    tamper(tmp_path, statement)
    with pytest.raises(JournalDamaged, match=problem):
        JournalStore.open(tmp_path, LOG)


@pytest.mark.parametrize("content", [b"", b"garbage", b"g" * 9000])
def test_what_is_not_a_database_is_not_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.sqlite").write_bytes(content)
    with pytest.raises(JournalDamaged):
        JournalStore.open(tmp_path, LOG)
    assert (tmp_path / "journal.sqlite").read_bytes() == content


@pytest.mark.parametrize("name", ["bodies.bin", "journal.sqlite-wal"])
def test_a_lost_database_is_not_begun_again(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"rest")
    with pytest.raises(JournalDamaged, match="missing beside"):
        JournalStore.open(tmp_path, LOG)


def test_a_crash_while_the_journal_is_made_is_made_good(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite.new").write_bytes(b"half")
    (tmp_path / "journal.sqlite.new-journal").write_bytes(b"half")
    assert write(tmp_path, [[entry()]]).seq == 1
    assert not (tmp_path / "journal.sqlite.new").exists()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalUnavailable):
        JournalStore.open(tmp_path / "file" / "s", LOG)


def test_a_symbolic_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalUnavailable) as caught:
        JournalStore.open(tmp_path, LOG)
    assert caught.value.errno == errno.ELOOP


# ---------------------------------------------------------------------- network file systems


def test_without_wal_everything_works_the_same(tmp_path: Path) -> None:
    with JournalStore.open(tmp_path, LOG, wal=False) as store:
        assert store.wal is False
        appended(store, *story_entries(), entry(body=LARGE))
        store.sync()
        assert store.maintenance() is False
        assert verify(tmp_path).ok
        with JournalReader(tmp_path) as reader:
            entries = reader.entries()
            next(entries)
            assert appended(store, stream("more")).seq == 8, "a reader between two reads holds up nobody"
        assert not (tmp_path / "journal.sqlite-wal").exists()
    with JournalStore.open(tmp_path, LOG, wal=True) as store:
        assert store.wal is True
        appended(store, entry())
    with JournalStore.open(tmp_path, LOG, wal=False) as store:
        assert appended(store, entry()).seq == 10
    assert verify(tmp_path).ok


def test_detect_network_fs(tmp_path: Path) -> None:
    home = tmp_path / "with space"
    home.mkdir()
    mounts = tmp_path / "mounts"
    escaped = str(home).replace(" ", "\\040")

    def table(*lines: str) -> bool:
        mounts.write_text("\n".join(("/dev/vda / ext4 rw 0 0", "short", *lines)))
        return detect_network_fs(home / "s", mounts=mounts)

    assert table() is False
    assert table(f"server:/x {escaped} nfs4 rw 0 0") is True
    assert table(f"server:/x {escaped} nfs4 rw 0 0", f"/dev/vdb {escaped} xfs rw 0 0") is False
    assert table(f"server:/x {escaped}/s/deeper nfs4 rw 0 0", f"server:/x {escaped}-2 nfs4 rw 0 0") is False
    assert table(f"host:/x {tmp_path} fuse.sshfs rw 0 0") is True
    assert table(f"x {tmp_path} fuse.fuse-overlayfs rw 0 0") is False
    assert detect_network_fs(home, mounts=tmp_path / "none") is False


def test_open_decides_by_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "detect_network_fs", lambda path: True)
    with JournalStore.open(tmp_path, LOG) as store:
        assert store.wal is False


def test_a_full_sync_error_of_sqlite_itself_ends_the_store(
    store: JournalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint syncs too; its failure is the same promise broken."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"

    def broken(path: Path) -> bool:
        raise error

    monkeypatch.setattr(module, "WAL_BYTES", 0)
    monkeypatch.setattr(module, "checkpoint", broken)
    appended(store, entry())
    with pytest.raises(JournalUnavailable, match="SQLITE_IOERR_FSYNC"):
        store.maintenance()
    with pytest.raises(JournalUnavailable):
        store.append(1, 0, [entry()])


def test_checkpoint_uses_a_connection_of_its_own(tmp_path: Path, store: JournalStore) -> None:
    appended(store, *(entry() for _ in range(10)))
    assert files.checkpoint(tmp_path / "s" / "journal.sqlite") is True
    assert appended(store, entry()).seq == 11

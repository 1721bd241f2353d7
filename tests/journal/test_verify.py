"""Whatever is done to a journal's files: the report names the first bad entry, and nothing raises."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_cmdop.journal.entry import DOMAIN, canonical, decode_envelope
from jupyter_cmdop.journal.query import (
    JournalDamaged,
    JournalReader,
    JournalUnavailable,
    VerifyReport,
    log_line,
    verify,
)
from jupyter_cmdop.journal.store import Head, JournalStore
from tests.journal.making import LARGE, LOG, admitted, entry, story_entries, stream, tamper, tampering, write


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original")
    write(directory, [[*story_entries(), entry(body=LARGE, form="none")], [stream("late\n")]])
    return directory


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    """A copy of a closed journal of eight entries; the seventh has a long body."""
    return Path(shutil.copytree(original, tmp_path / "s"))


def receipt(directory: Path, seq: int) -> tuple[int, str]:
    with JournalReader(directory) as reader:
        return next((stored.seq, stored.hash) for stored in reader.entries(seq - 1))


def test_a_good_journal(directory: Path) -> None:
    report = verify(directory)
    assert report == VerifyReport(True, 8, *receipt(directory, 8), None, None, 0)
    assert verify(directory / "journal.sqlite") == report


def test_an_empty_journal(tmp_path: Path) -> None:
    write(tmp_path, [])
    assert verify(tmp_path) == VerifyReport(True, 0, 0, None, None, None, 0)


# ---------------------------------------------------------------------- changed rows


def flip(directory: Path, column: str, *, every: bool) -> None:
    """Flip each bit of a column, or one of each byte."""
    write(directory, [[admitted("r-1"), stream("2\n"), entry("input", withheld=True)]])
    with tampering(directory) as connection:
        read = f"SELECT seq, {column} FROM entries WHERE {column} IS NOT NULL"
        change = f"UPDATE entries SET {column} = ? WHERE seq = ?"
        for seq, good in connection.execute(read).fetchall():
            for bit in range(8 * len(good)):
                index = bit // 8
                if not every and bit % 8 != index % 8:
                    continue
                bad = bytearray(good)
                bad[index] ^= 1 << bit % 8
                connection.execute(change, (bytes(bad), seq))
                report = verify(directory)
                assert (report.ok, report.first_bad, report.entries) == (False, seq, seq - 1)
                assert f"entry {seq}" in str(report.problem)
            connection.execute(change, (good, seq))
    assert verify(directory).ok


COLUMNS = ["envelope", "hash", "salt", "body"]


@pytest.mark.parametrize("column", COLUMNS)
def test_every_byte_of_every_row_counts(tmp_path: Path, column: str) -> None:
    flip(tmp_path, column, every=False)


@pytest.mark.soak
@pytest.mark.parametrize("column", COLUMNS)
def test_every_bit_of_every_row_counts(tmp_path: Path, column: str) -> None:
    flip(tmp_path, column, every=True)


def test_every_removal_and_every_swap_is_located(directory: Path) -> None:
    """Whichever entry is taken out, with or without the rest moving up, and whichever two change places."""
    last = verify(directory).entries
    for seq in range(1, last + 1):
        for move_up in (False, True):
            copy = shutil.copytree(directory, directory.parent / f"removed-{seq}-{move_up}")
            tamper(copy, f"DELETE FROM entries WHERE seq = {seq}")
            if move_up:
                tamper(copy, f"UPDATE entries SET seq = seq - 1 WHERE seq > {seq}")
            report = verify(copy)
            assert (report.ok, report.first_bad, report.entries) == (False, seq, seq - 1)
        for other in range(seq + 1, last + 1):
            with tampering(directory) as connection:
                for old, new in ((seq, -1), (other, seq), (-1, other)):
                    connection.execute(move(old, new))
                report = verify(directory)
                assert (report.ok, report.first_bad, report.entries) == (False, seq, seq - 1)
                for old, new in ((seq, -1), (other, seq), (-1, other)):
                    connection.execute(move(old, new))
    assert verify(directory).ok


def test_every_cut_tail_is_located_with_every_later_receipt(directory: Path) -> None:
    last = verify(directory).entries
    receipts = [receipt(directory, seq) for seq in range(1, last + 1)]
    for kept in range(1, last):
        copy = shutil.copytree(directory, directory.parent / f"cut-{kept}")
        cut(copy, kept)
        if kept < 2:  # the second is an admission: who cuts well takes it out of the index, too
            tamper(copy, "DELETE FROM requests")
        assert verify(copy).ok
        for held in receipts:
            report = verify(copy, held)
            expected = (True, None) if held[0] <= kept else (False, kept + 1)
            assert (report.ok, report.first_bad) == expected


def move(old: int, new: int) -> str:
    return f"UPDATE entries SET seq = {new} WHERE seq = {old}"


def copy(old: int, new: int) -> str:
    columns = "type, operation, actor, envelope, hash, salt, body, blob_offset, blob_length"
    return f"INSERT INTO entries SELECT {new}, {columns} FROM entries WHERE seq = {old}"


@pytest.mark.parametrize(
    ("statement", "first_bad"),
    [
        ("DELETE FROM entries WHERE seq = 3", 3),
        ("DELETE FROM entries WHERE seq = 1", 1),
        ("DELETE FROM entries WHERE seq > 5", 6),
        ("DELETE FROM entries", 1),
        # one is taken out and the rest moves up
        ("DELETE FROM entries WHERE seq = 3; UPDATE entries SET seq = seq - 1 WHERE seq > 3", 3),
        # two change places
        (f"{move(3, -3)}; {move(4, 3)}; {move(-3, 4)}", 3),
        # one stands there twice, in the middle and at the end
        (f"DELETE FROM entries WHERE seq = 4; {copy(3, 4)}", 4),
        (copy(8, 9), 9),
        (copy(8, -1), -1),
        # what a reader filters by is not what was recorded
        ("UPDATE entries SET type = 'output' WHERE seq = 2", 2),
        ("UPDATE entries SET actor = 'bob' WHERE seq = 2", 2),
        ("UPDATE entries SET operation = NULL WHERE seq = 4", 4),
        # of another type, or nothing
        ("UPDATE entries SET envelope = CAST(envelope AS TEXT) WHERE seq = 4", 4),
        ("UPDATE entries SET body = CAST(body AS TEXT) WHERE seq = 1", 1),
        ("UPDATE entries SET body = 5 WHERE seq = 1", 1),
        ("UPDATE entries SET hash = NULL WHERE seq = 5", 5),
        ("UPDATE entries SET envelope = NULL WHERE seq = 5", 5),
        ("UPDATE entries SET salt = NULL WHERE seq = 2", 2),
        ("UPDATE entries SET body = x'61' WHERE seq = 5", 5),  # withheld
        ("UPDATE entries SET actor = CAST(x'ff' AS TEXT) WHERE seq = 6", 6),  # no UTF-8
        # the place of the long body
        ("UPDATE entries SET blob_offset = 1 WHERE seq = 7", 7),
        ("UPDATE entries SET blob_offset = -1 WHERE seq = 7", 7),
        ("UPDATE entries SET blob_offset = 'x' WHERE seq = 7", 7),
        ("UPDATE entries SET blob_offset = 9223372036854775807 WHERE seq = 7", 7),
        ("UPDATE entries SET blob_length = blob_length - 1 WHERE seq = 7", 7),
        ("UPDATE entries SET blob_length = 9223372036854775807 WHERE seq = 7", 7),
        ("UPDATE entries SET body = x'61' WHERE seq = 7", 7),
        # the head
        ("UPDATE head SET seq = 7", 7),
        ("UPDATE head SET seq = 9", 9),
        ("UPDATE head SET seq = 7, hash = (SELECT hash FROM entries WHERE seq = 7)", 8),
        ("UPDATE head SET hash = zeroblob(32)", 8),
        ("UPDATE head SET generation = -1", None),
        ("UPDATE head SET generation = 1, incarnation = -1", None),
        ("UPDATE head SET hash = 'x'", None),
        ("INSERT INTO head SELECT * FROM head", None),
        ("DELETE FROM head", None),
        ("UPDATE meta SET log_id = 'another'", 1),
        ("UPDATE meta SET format = 2", None),
        ("DROP TABLE meta", None),
        ("DROP TABLE entries", 1),
        ("DROP TABLE requests", 2),
        # the index of requests
        ("DELETE FROM requests", 2),
        ("UPDATE requests SET operation = 'op-2'", 2),
        ("UPDATE requests SET digest = 'd2'", 2),
        ("INSERT INTO requests VALUES ('ada', 'r-2', 'd', 'op-1')", None),
    ],
)  # fmt: skip
def test_what_can_be_done_to_the_tables(directory: Path, statement: str, first_bad: int | None) -> None:
    tamper(directory, *statement.split(";"))
    report = verify(directory)
    assert report.ok is False
    assert report.first_bad == first_bad
    assert report.problem
    assert report.entries == report.head_seq <= 8
    assert first_bad is None or report.entries == max(first_bad - 1, 0) or first_bad < 0


def test_a_falling_generation_is_not_possible(directory: Path) -> None:
    """Even in a chain that was hashed anew by somebody who can compute hashes."""
    with tampering(directory) as connection:
        for seq, generation in ((7, 5), (8, 4)):
            raw, previous = connection.execute(
                "SELECT envelope, (SELECT hash FROM entries WHERE seq = ?) FROM entries WHERE seq = ?",
                (seq - 1, seq),
            ).fetchone()
            envelope = canonical(decode_envelope(raw) | {"generation": generation, "prev": previous.hex()})
            digest = hashlib.sha256(DOMAIN + envelope).digest()
            connection.execute(
                "UPDATE entries SET envelope = ?, hash = ? WHERE seq = ?", (envelope, digest, seq)
            )
        connection.execute("UPDATE head SET generation = 5, hash = (SELECT hash FROM entries WHERE seq = 8)")
    report = verify(directory)
    assert (report.first_bad, report.entries) == (8, 7)
    assert "generation" in str(report.problem)


# ---------------------------------------------------------------------- receipts


def cut(directory: Path, seq: int) -> None:
    """Cut the tail off as somebody would who wants nobody to see it."""
    tamper(
        directory,
        f"DELETE FROM entries WHERE seq > {seq}",
        f"UPDATE head SET seq = {seq}, hash = (SELECT hash FROM entries WHERE seq = {seq})",
    )


def test_a_cut_tail_is_seen_by_whoever_holds_a_receipt(directory: Path) -> None:
    held = receipt(directory, 7)
    cut(directory, 5)
    assert verify(directory).ok, "nothing in the file itself can tell"
    report = verify(directory, held)
    assert (report.ok, report.first_bad, report.head_seq) == (False, 6, 5)
    assert "cut off" in str(report.problem)


def test_a_receipt_for_what_is_there(directory: Path) -> None:
    for seq in (1, 5, 8):
        number, digest = receipt(directory, seq)
        assert verify(directory, (number, digest.upper())).ok
    cut(directory, 5)
    assert verify(directory, receipt(directory, 5)).ok


def test_a_journal_that_was_written_anew(tmp_path: Path, directory: Path) -> None:
    """The same entries again: other salts, so other hashes."""
    held = receipt(directory, 4)
    write(tmp_path / "anew", [story_entries()])
    report = verify(tmp_path / "anew", held)
    assert (report.ok, report.first_bad) == (False, 4)
    assert "receipt" in str(report.problem)


# ---------------------------------------------------------------------- dropped bodies


def test_dropped_bodies_verify_and_are_counted(directory: Path) -> None:
    tamper(
        directory,
        "UPDATE entries SET body = NULL, salt = NULL, blob_offset = NULL, blob_length = NULL"
        " WHERE seq IN (2, 4, 7)",
        "UPDATE entries SET body = NULL WHERE seq = 8",
    )
    report = verify(directory)
    assert (report.ok, report.entries, report.pruned) == (True, 8, 4)
    (directory / "bodies.bin").unlink()
    assert verify(directory).ok


# ---------------------------------------------------------------------- the side file


def test_every_part_of_the_side_file_counts(directory: Path) -> None:
    side = directory / "bodies.bin"
    good = side.read_bytes()
    for index in (0, 1, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[index] ^= 1
        side.write_bytes(bad)
        assert verify(directory).first_bad == 7
    for length in (0, 1, len(good) - 1):
        side.write_bytes(good[:length])
        report = verify(directory)
        assert report.first_bad == 7
        assert "ends before" in str(report.problem)
    side.unlink()
    assert "missing" in str(verify(directory).problem)
    side.mkdir()
    assert verify(directory).first_bad == 7


# ---------------------------------------------------------------------- the database file


def same_or_bad(report: VerifyReport, good: VerifyReport) -> None:
    assert report == good or (not report.ok and report.problem)


def test_every_prefix_of_the_database_is_survived(directory: Path) -> None:
    path = directory / "journal.sqlite"
    whole = path.read_bytes()
    good = verify(directory)
    pages = {size + more for size in range(0, len(whole), 4096) for more in (-1, 0, 1) if size + more > 0}
    for length in sorted({0, *pages, *range(1, len(whole), 127)}):
        path.write_bytes(whole[:length])
        report = verify(directory)
        assert not report.ok
        assert report.problem
    path.write_bytes(whole)
    assert verify(directory) == good


def test_a_flipped_byte_anywhere_in_the_database_is_survived(directory: Path) -> None:
    """It is found, or it was a byte that carries nothing: then the report is that of the good journal.

    A reader, which verifies nothing, raises this package's errors only.
    """
    path = directory / "journal.sqlite"
    whole = path.read_bytes()
    good = verify(directory)
    with path.open("r+b", buffering=0) as file:
        for index in (*range(0, 112, 5), *range(112, len(whole), 127)):
            file.seek(index)
            file.write(bytes([whole[index] ^ 0xFF]))
            same_or_bad(verify(directory), good)
            try:
                with JournalReader(directory) as reader:
                    for stored in reader.entries():
                        log_line(stored)
            except (JournalDamaged, JournalUnavailable):
                pass  # and nothing else
            file.seek(index)
            file.write(whole[index : index + 1])
    assert verify(directory) == good


def test_an_unreadable_page_is_named_by_its_first_entry(tmp_path: Path) -> None:
    write(tmp_path, [[stream(f"line {number}\n") for number in range(200)]])
    path = tmp_path / "journal.sqlite"
    whole = path.read_bytes()
    with JournalReader(tmp_path) as reader:
        hashes = [bytes.fromhex(stored.hash) for stored in reader.entries()]
    for number in (30, 90, 150):
        page = whole.index(hashes[number]) // 4096 * 4096
        first = min(seq for seq, digest in enumerate(hashes, 1) if digest in whole[page : page + 4096])
        path.write_bytes(whole[:page] + random.Random(number).randbytes(4096) + whole[page + 4096 :])
        report = verify(tmp_path)
        assert report.first_bad == first
        assert report.entries == first - 1
        assert str(first) in str(report.problem)


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(8192), b"SQLite format 3\0" + bytes(4000)])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.sqlite").write_bytes(content)
    report = verify(tmp_path)
    assert (report.ok, report.entries, report.first_bad) == (False, 0, None)
    assert report.problem


def test_no_journal(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "none" / "journal.sqlite"):
        assert "no journal" in str(verify(path).problem)
    (tmp_path / "journal.sqlite").mkdir()
    assert "no journal" in str(verify(tmp_path).problem)


# ---------------------------------------------------------------------- a live journal


@pytest.fixture
def live(tmp_path: Path) -> Iterator[JournalStore]:
    with JournalStore.open(tmp_path / "live", LOG) as store:
        yield store


def test_verify_while_the_keeper_writes(live: JournalStore) -> None:
    done = threading.Event()
    reports: list[VerifyReport] = []

    def verifying() -> None:
        while not done.is_set():
            reports.append(verify(live.directory))

    helper = threading.Thread(target=verifying)
    helper.start()
    try:
        for number in range(150):
            entries = [stream("x\n"), entry(body=LARGE)] if number % 10 == 0 else story_entries()[2:]
            assert isinstance(live.append(live.head.seq, 0, entries), Head)
    finally:
        done.set()
        helper.join()
    assert reports
    assert [report for report in reports if not report.ok] == []
    assert verify(live.directory).entries == live.head.seq


def test_the_rest_of_a_crash_is_read_with_its_wal(tmp_path: Path, live: JournalStore) -> None:
    live.append(0, 0, story_entries())
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("journal.sqlite", "journal.sqlite-wal", "bodies.bin"):
        shutil.copyfile(live.directory / name, copy / name)
    assert verify(copy).entries == 6
    (copy / "journal.sqlite-shm").unlink()
    wal = copy / "journal.sqlite-wal"
    whole = wal.read_bytes()
    for length in range(0, len(whole), 509):  # a commit is there or it is not
        wal.write_bytes(whole[:length])
        (copy / "journal.sqlite-shm").unlink(missing_ok=True)
        report = verify(copy)
        assert report.ok
        assert report.entries in (0, 6)
        if report.entries == 0:
            assert not verify(copy, (live.head.seq, live.head.hash)).ok

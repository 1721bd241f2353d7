"""Reading: filters, ends, places where nothing can be written, and the lines of `log`."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.journal.query import (
    JournalDamaged,
    JournalReader,
    JournalUnavailable,
    StoredEntry,
    log_line,
    message_type,
    story,
    verify,
)
from jupyter_cmdop.journal.reading import ROWS_A_READ
from jupyter_cmdop.journal.store import Head, JournalStore
from tests.journal.making import LARGE, LOG, admitted, entry, message, story_entries, stream, tamper, write


def numbered(count: int) -> list[Any]:
    """Entries whose type, actor and operation follow from their seq."""
    return [
        entry(
            ["output", "refused", "taken"][seq % 3],
            actor=["ada", "bot"][seq % 2],
            operation=None if seq % 5 == 0 else f"op-{seq % 5}",
            data={"n": seq},
        )
        for seq in range(1, count + 1)
    ]


COUNT = 3 * ROWS_A_READ + 5


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal")
    write(path, [numbered(COUNT)])
    return path


@pytest.fixture
def reader(directory: Path) -> Iterator[JournalReader]:
    with JournalReader(directory) as reader:
        yield reader


def seqs(entries: Any) -> list[int]:
    return [stored.seq for stored in entries]


def test_everything_in_its_order(reader: JournalReader) -> None:
    entries = list(reader.entries())
    assert seqs(entries) == list(range(1, COUNT + 1))
    assert [json.loads(stored.body or b"") for stored in entries] == [{"n": seq} for seq in seqs(entries)]
    assert reader.log_id == LOG
    head = reader.head()
    assert (head.seq, head.hash) == (COUNT, entries[-1].hash)
    assert entries[-1].envelope["prev"] == entries[-2].hash


def test_bounds(reader: JournalReader) -> None:
    for after, until, limit in product(
        [0, 1, ROWS_A_READ, COUNT - 1, COUNT, COUNT + 1],
        [None, 0, 1, ROWS_A_READ + 1, COUNT + 9],
        [None, 0, 1, ROWS_A_READ, ROWS_A_READ + 1],
    ):
        expected = list(range(after + 1, min(COUNT, COUNT if until is None else until) + 1))[:limit]
        assert seqs(reader.entries(after, until=until, limit=limit)) == expected


def test_filters(reader: JournalReader) -> None:
    recorded = list(enumerate(numbered(COUNT), 1))
    for types, actor, operation in product(
        [None, ["taken"], {"taken", "output"}, []], [None, "ada", "nobody"], [None, "op-2"]
    ):
        expected = [
            seq
            for seq, entry in recorded
            if (types is None or entry.type in types)
            and (actor is None or entry.actor == actor)
            and (operation is None or entry.operation == operation)
        ]
        filters: dict[str, Any] = {"types": types, "actor": actor, "operation": operation}
        assert seqs(reader.entries(**filters)) == expected
        assert seqs(reader.entries(10, limit=3, **filters)) == [seq for seq in expected if seq > 10][:3]
        assert seqs(reader.last(7, **filters)) == expected[-7:]
        assert reader.last(0, **filters) == []


def test_the_story_of_an_operation(tmp_path: Path) -> None:
    late = stream("from a thread\n", operation="op-1")
    write(tmp_path, [story_entries(), [admitted("r-2", operation="op-2")], [late]])
    with JournalReader(tmp_path) as reader:
        told = story(reader, "op-1")
        assert [stored.type for stored in told] == [
            "admitted",
            "delivered",
            "output",
            "input",
            "ended",
            "output",
        ]
        assert story(reader, "op-3") == []


def test_reading_while_the_keeper_writes(tmp_path: Path) -> None:
    """An iteration ends where the journal ended when it began; the next one goes on from there."""
    with JournalStore.open(tmp_path, LOG) as store, JournalReader(tmp_path) as reader:
        assert reader.head() == store.head
        seen: list[int] = []
        for _ in range(5):
            store.append(store.head.seq, 0, [stream("x")] * (ROWS_A_READ + 3))
            end = store.head.seq
            for stored in reader.entries(seen[-1] if seen else 0):
                seen.append(stored.seq)
                if len(seen) % 10 == 0:
                    store.append(store.head.seq, 0, [stream("y")])
            assert seen[-1] == end
        assert seen == list(range(1, len(seen) + 1))
        assert reader.head() == store.head


def test_another_process_reads_a_live_journal(tmp_path: Path) -> None:
    script = """
import json, sys
from pathlib import Path
from jupyter_cmdop.journal.query import JournalReader, verify
with JournalReader(Path(sys.argv[1])) as reader:
    report = verify(Path(sys.argv[1]))
    print(json.dumps([[entry.type for entry in reader.entries()], reader.head().hash, report.ok, report.entries]))
"""
    with JournalStore.open(tmp_path, LOG) as store:
        store.append(0, 0, story_entries())
        found = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, timeout=30
        ).stdout
        types = [recorded.type for recorded in story_entries()]
        assert json.loads(found) == [types, store.head.hash, True, 6]
        assert isinstance(store.append(6, 0, [entry()]), Head), "the writer keeps its locks"


# ---------------------------------------------------------------------- where nothing can be written


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere; for a moment, be somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that others can enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        yield Path(place)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    for path in directory.iterdir():
        path.chmod(0o444)
    directory.chmod(0o555)
    try:
        with unprivileged():
            yield
    finally:
        directory.chmod(0o755)


def test_a_closed_journal_in_a_read_only_directory(open_place: Path) -> None:
    directory = open_place / "with # and ? and %41"
    write(directory, [story_entries(), [entry(body=LARGE, form="none")]])
    before = sorted(directory.iterdir())
    with read_only(directory):
        with JournalReader(directory) as reader:
            entries = list(reader.entries())
        report = verify(directory, (7, entries[-1].hash))
    assert len(entries) == 7
    assert entries[-1].body == LARGE
    assert report.ok
    assert sorted(directory.iterdir()) == before


def test_a_wal_that_cannot_be_used_is_not_passed_over(open_place: Path) -> None:
    """The last entries are in there; what the database says alone is an older state."""
    directory = open_place / "s"
    write(directory, [story_entries()])
    (directory / "journal.sqlite-wal").write_bytes(b"something")
    with read_only(directory):
        assert "was not closed" in str(verify(directory).problem)
        with pytest.raises(JournalUnavailable, match="copy its directory"):
            JournalReader(directory)


def killed_without_wal(place: Path) -> Path:
    """A copy of a journal in the middle of a transaction of the kind that a network file system gets."""
    batch = [stream("x" * 3000)] * 40
    with JournalStore.open(place / "live", LOG, wal=False) as store:
        store.append(0, 0, batch)
    with closing(sqlite3.connect(place / "live" / "journal.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("UPDATE entries SET body = zeroblob(3000)")
        shutil.copytree(place / "live", place / "killed")
        connection.execute("ROLLBACK")
    return place / "killed"


def test_half_a_transaction_is_undone_before_reading(open_place: Path) -> None:
    directory = killed_without_wal(open_place)
    with read_only(directory):
        assert "was not closed" in str(verify(directory).problem)
    for path in directory.iterdir():
        path.chmod(0o600)
    with JournalReader(directory) as reader:
        assert len(list(reader.entries())) == 40
    assert verify(directory).ok


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalUnavailable, match="no journal in"):
        JournalReader(tmp_path)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    write(tmp_path, [[entry(body=LARGE, form="none")]])
    before = len(os.listdir("/proc/self/fd"))
    with JournalReader(tmp_path) as reader:
        assert len(list(reader.entries())) == 1
    reader.close()
    verify(tmp_path)
    tamper(tmp_path, "DELETE FROM meta")
    with pytest.raises(JournalDamaged):
        JournalReader(tmp_path)
    verify(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET envelope = x'00' WHERE seq = 2",
        "UPDATE entries SET envelope = NULL WHERE seq = 2",
        "UPDATE entries SET hash = NULL WHERE seq = 2",
        "UPDATE entries SET body = NULL, blob_offset = 99999, blob_length = 4 WHERE seq = 2",
        "UPDATE entries SET body = NULL, blob_offset = 0 WHERE seq = 2",
        "UPDATE entries SET type = CAST(x'ff' AS TEXT) WHERE seq = 2",
        "DROP TABLE entries",
        "UPDATE entries SET body = 5 WHERE seq = 2",
        "UPDATE entries SET salt = 'x' WHERE seq = 2",
        "UPDATE head SET hash = 5",
        "UPDATE head SET seq = 'x'",
        "DELETE FROM head",
    ],
)
def test_a_reader_says_what_it_cannot_read(tmp_path: Path, statement: str) -> None:
    write(tmp_path, [story_entries()])
    tamper(tmp_path, statement)
    with JournalReader(tmp_path) as reader, pytest.raises(JournalDamaged):
        list(reader.entries())


@pytest.mark.parametrize("content", [b"", b"garbage" * 100])
def test_garbage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal.sqlite").write_bytes(content)
    with pytest.raises(JournalDamaged):
        JournalReader(tmp_path)


# ---------------------------------------------------------------------- the lines of `log`


def lines(tmp_path: Path, *entries: Any) -> list[dict[str, Any]]:
    write(tmp_path, [list(entries)])
    with JournalReader(tmp_path) as reader:
        return [log_line(stored) for stored in reader.entries()]


def test_the_line_of_an_admission_has_the_code(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, admitted("r-1"))
    assert line == {
        "seq": 1,
        "time": "2025-11-30T17:23:54.123456Z",
        "type": "admitted",
        "actor": "ada",
        "operation": "op-1",
        "generation": 0,
        "incarnation": 0,
        "request_id": "r-1",
        "basis": "intended",
        "hash": line["hash"],
        "data": {"message": "execute_request", "class": "explicit", "code": "1+1", "digest": "d1"},
    }
    assert len(line["hash"]) == 64


def test_a_line_says_who_through_what_and_why(tmp_path: Path) -> None:
    said = {"on_behalf_of": "ada", "attachment": "a3", "grant": "g1", "cause": "op-1", "via": "op-1"}
    (line,) = lines(tmp_path, entry("taken", actor="bot", data={"reason": "help"}, **said))
    assert line.items() >= said.items()
    assert line["data"] == {"reason": "help"}


def test_a_kernel_message_is_named_by_its_type(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, stream("secret?"))
    assert line["data"] == {"message": "stream"}
    assert line["actor"] is None
    assert "operation" not in line


def test_a_secret_and_a_dropped_body_are_marked(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, entry("input", actor="ada", body=b"hunter2", withheld=True))
    assert (line["withheld"], "data" in line) == (True, False)
    tamper(tmp_path, "UPDATE entries SET body = CAST('\"hunter2\"' AS BLOB) WHERE seq = 1")
    with JournalReader(tmp_path) as reader:
        assert "hunter2" not in json.dumps(log_line(reader.last(1)[0])), "whatever somebody puts there later"
    (tmp_path / "2").mkdir()
    write(tmp_path / "2", [[stream("gone")]])
    tamper(tmp_path / "2", "UPDATE entries SET body = NULL, salt = NULL")
    with JournalReader(tmp_path / "2") as reader:
        line = log_line(reader.last(1)[0])
    assert (line["pruned"], "data" in line) == (True, False)


@pytest.mark.parametrize(
    ("form", "body", "data"),
    [
        ("none", b"", None),
        ("json", b"", None),
        ("json", b"[1]", {"value": [1]}),
        ("json", b"{", {"unreadable": 1}),
        ("json", b"[" * 100_000, {"unreadable": 100_000}),
        ("v1", b"", {"message": ""}),
        ("v1", message("x", {})[:-4], {"message": ""}),
    ],
)
def test_bodies_that_are_not_what_they_should_be(form: str, body: bytes, data: object) -> None:
    stored = StoredEntry(1, "x", None, None, {"form": form, "bh": "0", "time_ns": "1"}, b"s", body, "h")
    line = log_line(stored)
    assert line.get("data") == data
    assert line["time"] == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("time_ns", ["", "x", "9" * 30, "9" * 5000])
def test_times_outside_the_calendar(time_ns: str) -> None:
    stored = StoredEntry(1, "x", None, None, {"time_ns": time_ns}, None, None, "h")
    assert log_line(stored)["time"] == time_ns


def test_message_type() -> None:
    assert message_type(message("execute_reply", {}, channel="shell")) == "execute_reply"

"""A keeper that is killed: everything it announced is there, the chain is good, and the next one goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_cmdop.journal.query import JournalReader, verify
from jupyter_cmdop.journal.store import Head, JournalLocked, JournalStore
from tests.journal.making import LARGE, LOG, admitted, entry, stream

WRITER = """
import sys, threading
from pathlib import Path
from jupyter_cmdop.journal import store as module
from jupyter_cmdop.journal.store import JournalStore
from tests.journal.making import LARGE, LOG, admitted, stream

module.WAL_BYTES = 200_000
store = JournalStore.open(Path(sys.argv[1]), LOG)

def maintain():
    while True:
        store.maintenance()

threading.Thread(target=maintain, daemon=True).start()
number = 0
while True:
    number += 1
    batch = [admitted(f"r-{number}", operation=f"op-{number}")]
    batch += [stream("x" * 300, operation=f"op-{number}")] * (number % 9)
    if number % 7 == 0:
        batch.append(stream(LARGE.decode()))
    head = store.append(store.head.seq, 0, batch)
    store.sync()
    print(head.seq, head.hash, number, flush=True)
"""


def test_all_that_was_announced_survives_kill_9(tmp_path: Path) -> None:
    """Three writers at a time, each killed a random number of announcements after it began."""
    rng = random.Random()
    writers: list[tuple[Path, subprocess.Popen[str]]] = []
    try:
        for number in range(3):
            directory = tmp_path / str(number)
            command = [sys.executable, "-c", WRITER, str(directory)]
            writers.append((directory, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
        for directory, writer in writers:
            assert writer.stdout is not None
            line = ""
            for _ in range(rng.randrange(5, 120)):
                line = writer.stdout.readline()
            with pytest.raises(JournalLocked) as locked:
                JournalStore.open(directory, LOG)
            assert locked.value.pid == writer.pid
            os.kill(writer.pid, signal.SIGKILL)
            # Through the same buffer as the lines before: what `communicate` returns may begin in the middle of one.
            rest = writer.stdout.read()
            writer.wait(timeout=20)
            announced = [*line.splitlines(), *rest.splitlines()]
            last = announced[-1] if rest.endswith("\n") or not rest else announced[-2]
            check(directory, *last.split())
    finally:
        for _, writer in writers:
            writer.kill()
            writer.communicate()


def check(directory: Path, seq: str, digest: str, number: str) -> None:
    report = verify(directory, (int(seq), digest))
    assert report.ok, report
    assert report.entries >= int(seq)
    with JournalStore.open(directory, LOG) as store:
        assert store.head.seq == report.head_seq
        assert store.find_request("ada", f"r-{number}") == (f"op-{number}", "d1")
        assert isinstance(store.append(store.head.seq, 0, [admitted("after"), entry()]), Head)
        store.sync()
    report = verify(directory, (int(seq), digest))
    assert report.ok
    with JournalReader(directory) as reader:
        assert sum(1 for _ in reader.entries()) == report.entries


# ---------------------------------------------------------------------- torn writes

FRAME_BYTES = 24 + 4096  # of the WAL: a header and a page (sqlite.org/fileformat.html)


def torn_at(size: int, before: int, *, every: bool) -> list[int]:
    """Lengths of a WAL whose last commit is not complete: around each frame's header each byte, else some."""
    lengths = range(before, size)
    if every:
        return list(lengths)
    return [n for n in lengths if (n - 32 + 2) % FRAME_BYTES < 28 or n % 211 == 0]


def tear(tmp_path: Path, *, every: bool) -> None:
    """A write-ahead log that ends anywhere within its last commit, and one whose last part is not what was written."""
    with JournalStore.open(tmp_path / "live", LOG) as store:
        first = store.append(0, 0, [admitted("r-1", operation="op-1"), stream("one\n")])
        assert isinstance(first, Head)
        wal = store.directory / "journal.sqlite-wal"
        before = wal.stat().st_size
        second = store.append(first.seq, 0, [admitted("r-2", operation="op-2"), entry(body=LARGE)])
        assert isinstance(second, Head)
        files = {
            name: (store.directory / name).read_bytes()
            for name in ("journal.sqlite", "journal.sqlite-wal", "bodies.bin")
        }
    whole = files["journal.sqlite-wal"]
    torn = tmp_path / "torn"
    torn.mkdir()
    lengths = torn_at(len(whole), before, every=every)
    for number, length in enumerate((*lengths, len(whole))):
        for name in ("journal.sqlite", "bodies.bin"):
            (torn / name).write_bytes(files[name])
        # What is missing: nothing at all, or the zeros of a file that had grown when its content had not.
        rest = bytes(len(whole) - length) if number % 2 else b""
        content = whole[:length] + rest
        (torn / "journal.sqlite-wal").write_bytes(content)
        (torn / "journal.sqlite-shm").unlink(missing_ok=True)
        is_whole = content == whole
        with JournalStore.open(torn, LOG) as again:
            assert again.head == (second if is_whole else first), length
            assert (torn / "bodies.bin").stat().st_size == (len(LARGE) if is_whole else 0)
            assert (again.find_request("ada", "r-2") is not None) == is_whole
            assert isinstance(again.append(again.head.seq, 0, [admitted("r-3"), entry(body=LARGE)]), Head)
        assert verify(torn, (first.seq, first.hash)).ok, length
        report = verify(torn, (second.seq, second.hash))
        assert report.ok == is_whole, "whoever was told of the second has a receipt for it"
        assert is_whole or report.first_bad == second.seq or report.first_bad == first.seq + 1


def test_a_torn_commit_never_was(tmp_path: Path) -> None:
    tear(tmp_path, every=False)


@pytest.mark.soak
def test_a_commit_torn_at_every_byte_never_was(tmp_path: Path) -> None:
    tear(tmp_path, every=True)


def test_a_torn_body_is_nobodys(tmp_path: Path) -> None:
    """Bodies are written before the entries that name them: a crash between leaves bytes that nothing points to."""
    with JournalStore.open(tmp_path / "live", LOG) as store:
        first = store.append(0, 0, [stream("kept" + LARGE.decode())])
        assert isinstance(first, Head)
        files = {
            name: (store.directory / name).read_bytes()
            for name in ("journal.sqlite", "journal.sqlite-wal", "bodies.bin")
        }
    recorded = len(files["bodies.bin"])
    torn = tmp_path / "torn"
    torn.mkdir()
    for extra in (0, 1, 4095, 4096, 4097, len(LARGE)):
        for name, content in files.items():
            (torn / name).write_bytes(content + bytes(extra) if name == "bodies.bin" else content)
        (torn / "journal.sqlite-shm").unlink(missing_ok=True)
        assert verify(torn).ok
        with JournalStore.open(torn, LOG) as again:
            assert again.head == first
            assert (torn / "bodies.bin").stat().st_size == recorded
            assert isinstance(again.append(first.seq, 0, [stream("next" + LARGE.decode())]), Head)
        assert verify(torn, (first.seq, first.hash)).ok

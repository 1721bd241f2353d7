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
from tests.journal.making import LOG, admitted, entry

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

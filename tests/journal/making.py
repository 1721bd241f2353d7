"""Entries, kernel messages and small journals for the tests of the journal."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from jupyter_cmdop.journal.entry import Entry
from jupyter_cmdop.journal.layout import INLINE_BYTES
from jupyter_cmdop.journal.store import Head, JournalStore
from jupyter_cmdop.wire.websocket import encode_v1

LOG = "0b0cf1f4-7c4e-4f0e-9a56-0a4c5d3b1e2f"
LARGE = b"x" * (INLINE_BYTES + 1)


def entry(type: str = "output", *, data: object = None, **fields: Any) -> Entry:
    """An entry at a fixed time; `data` becomes its JSON body."""
    if data is not None:
        fields["body"] = json.dumps(data).encode()
    fields = {"time_ns": 1_764_523_434_123_456_789, "mono_ns": 5_000_000_001} | fields
    return Entry(type=type, **fields)


def message(kind: str, content: object, *, buffers: Iterable[bytes] = (), channel: str = "iopub") -> bytes:
    """A kernel message as the journal keeps it."""
    header = json.dumps({"msg_id": "m1", "msg_type": kind, "session": "k", "version": "5.3"}).encode()
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return encode_v1(channel, header, b"{}", b"{}", raw, list(buffers))


def stream(text: str, name: str = "stdout", **fields: Any) -> Entry:
    return entry(form="v1", body=message("stream", {"name": name, "text": text}), **fields)


def admitted(request_id: str, *, operation: str = "op-1", actor: str = "ada", digest: str = "d1") -> Entry:
    return entry(
        "admitted",
        actor=actor,
        operation=operation,
        request_id=request_id,
        basis="intended",
        data={"message": "execute_request", "class": "explicit", "code": "1+1", "digest": digest},
    )


def story_entries() -> list[Entry]:
    """One operation, with one of each form: JSON, a kernel message, nothing, a secret."""
    return [
        entry("opened", actor="ada", data={"name": "analysis"}),
        admitted("r-1"),
        entry("delivered", operation="op-1", actor="ada", form="none", basis="attempted"),
        stream("2\n", operation="op-1"),
        entry("input", actor="ada", operation="op-1", body=b"hunter2", withheld=True),
        entry("ended", operation="op-1", actor="ada", data={"outcome": "ok", "execution_count": 1}),
    ]


def write(directory: Path, batches: Iterable[list[Entry]]) -> Head:
    """Write a journal, one append a batch, and close it."""
    with JournalStore.open(directory, LOG) as store:
        for batch in batches:
            assert isinstance(store.append(store.head.seq, 0, batch), Head)
        return store.head


@contextmanager
def tampering(directory: Path) -> Iterator[sqlite3.Connection]:
    """A connection that writes around the store, each statement at once and without a sync."""
    with closing(sqlite3.connect(directory / "journal.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        yield connection


def tamper(directory: Path, *statements: str) -> None:
    with tampering(directory) as connection:
        for statement in statements:
            connection.execute(statement)

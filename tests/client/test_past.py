"""Journals of sessions that have ended are read without their keeper."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_cmdop.client import past
from jupyter_cmdop.client.errors import JournalProblem, RequestFailed
from jupyter_cmdop.journal.entry import Entry
from jupyter_cmdop.journal.store import JournalStore
from jupyter_cmdop.wire.websocket import encode_v1


def output(text: str, operation: str) -> Entry:
    header = json.dumps({"msg_id": "m", "msg_type": "stream"}).encode()
    content = json.dumps({"name": "stdout", "text": text}).encode()
    body = encode_v1("iopub", header, b"{}", b"{}", content, [])
    return entry("output", operation=operation, body=body, form="v1")


def entry(kind: str, **fields: Any) -> Entry:
    return Entry(
        type=kind, time_ns=time.time_ns(), mono_ns=time.monotonic_ns(), incarnation=1, generation=1, **fields
    )


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """opened, admitted, two outputs, ended."""
    directory = tmp_path / "session"
    directory.mkdir(mode=0o700)
    store = JournalStore.open(directory, "12345678-1234-1234-1234-123456789abc")
    entries = [
        entry("opened", actor="alice", body=b'{"name": "analysis"}'),
        entry("admitted", actor="bot", operation="o1", body=b'{"code": "print(1)"}'),
        output("1\n", "o1"),
        output("2\n", "o1"),
        entry("ended", operation="o1", body=b'{"outcome": "ok"}'),
    ]
    store.append(store.head.seq, 1, entries)
    store.close()
    return directory


def test_log_of_the_past(journal: Path) -> None:
    lines = list(past.log(journal))
    assert [line["type"] for line in lines] == ["opened", "admitted", "output", "output", "ended"]
    assert lines[1]["data"] == {"code": "print(1)"}
    assert [line["seq"] for line in past.log(journal, actor="bot")] == [lines[1]["seq"]]
    assert [line["type"] for line in past.log(journal, types=("ended",))] == ["ended"]
    assert len(list(past.log(journal, operation="o1", after=lines[1]["seq"]))) == 3


def test_outputs_of_the_past_and_the_place_to_go_on(journal: Path) -> None:
    items = list(past.outputs(journal))
    assert [item.output["text"] for item in items] == ["1\n", "2\n"]
    assert [(item.operation, item.incarnation) for item in items] == [("o1", 1)] * 2
    rest = list(past.outputs(journal, after=f"1:{items[0].seq}"))
    assert [item.output["text"] for item in rest] == ["2\n"]


@pytest.mark.parametrize("cursor", ["x", "1:", "1:x", ":"])
def test_cursor_that_is_none(journal: Path, cursor: str) -> None:
    with pytest.raises(RequestFailed, match="no cursor"):
        list(past.outputs(journal, after=cursor))


def test_whole_journal_and_its_receipt(journal: Path) -> None:
    report = past.verify(journal)
    assert report.ok
    assert past.verify(journal, f"{report.head_seq}:{report.head_hash}").ok
    assert not past.verify(journal, f"{report.head_seq}:{'0' * 64}").ok
    assert not past.verify(journal, f"{(report.head_seq or 0) + 5}:{report.head_hash}").ok


@pytest.mark.parametrize("receipt", ["", "5", "5:", "x:aa", "5:xyz", "-1:aa"])
def test_receipt_that_is_none(journal: Path, receipt: str) -> None:
    with pytest.raises(RequestFailed, match="no receipt"):
        past.verify(journal, receipt)


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalProblem, match="cannot be read"):
        list(past.log(tmp_path))
    assert not past.verify(tmp_path).ok


def test_damaged_journal_is_a_problem_and_no_crash(journal: Path) -> None:
    database = journal / "journal.sqlite"
    raw = bytearray(database.read_bytes())
    raw[5000:7000] = bytes(2000)
    database.write_bytes(raw)
    assert not past.verify(journal).ok
    with pytest.raises(JournalProblem):
        list(past.log(journal))

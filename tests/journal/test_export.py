"""JSON lines for other programs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from jupyter_cmdop.journal.export import to_jsonl
from jupyter_cmdop.journal.query import JournalReader, log_line
from tests.journal.making import entry, message, story_entries, stream, tamper, write


def exported(directory: Path) -> list[dict[str, Any]]:
    file = io.StringIO()
    with JournalReader(directory) as reader:
        count = to_jsonl(reader, file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert count == len(lines)
    return lines


def test_one_line_an_entry_with_what_log_says(tmp_path: Path) -> None:
    write(tmp_path, [story_entries()])
    lines = exported(tmp_path)
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5, 6]
    with JournalReader(tmp_path) as reader:
        for line, stored in zip(lines, reader.entries(), strict=True):
            assert (
                line.items()
                >= {key: value for key, value in log_line(stored).items() if key != "data"}.items()
            )
    assert lines[1]["data"]["code"] == "1+1"
    assert lines[3]["data"] == {
        "message": "stream",
        "channel": "iopub",
        "content": {"name": "stdout", "text": "2\n"},
    }
    assert lines[4]["withheld"] is True


def test_text_stays_text_and_buffers_are_counted(tmp_path: Path) -> None:
    body = message("comm_msg", {"data": "é\n"}, buffers=[b"\0" * 8, b"\1"])
    write(tmp_path, [[entry(form="v1", body=body), entry(form="v1", body=b"?"), stream("gone")]])
    tamper(tmp_path, "UPDATE entries SET body = NULL, salt = NULL WHERE seq = 3")
    first, second, third = exported(tmp_path)
    assert first["data"]["content"] == {"data": "é\n"}
    assert first["data"]["buffers"] == 2
    assert "unreadable" in second["data"]
    assert third["pruned"] is True
    assert "data" not in third

"""Write a journal out as JSON lines, for other programs."""

from __future__ import annotations

import json
from typing import IO, Any

from jupyter_cmdop.wire.errors import WireError
from jupyter_cmdop.wire.kernel import decode_json
from jupyter_cmdop.wire.websocket import decode_v1

from .query import JournalReader, StoredEntry, log_line


def to_jsonl(reader: JournalReader, file: IO[str]) -> int:
    """Write every entry as one line: what `log` prints, and the content of kernel messages in `data.content`.

    Binary buffers of messages are left out; how many there were is in `data.buffers`.

    Returns:
        The number of lines.

    Raises:
        JournalDamaged: an entry cannot be read; the lines before it are written.
    """
    count = 0
    for entry in reader.entries():
        json.dump(_line(entry), file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
        count += 1
    return count


def _line(entry: StoredEntry) -> dict[str, Any]:
    line = log_line(entry)
    if entry.body is not None and "data" in line and entry.envelope.get("form") == "v1":
        try:
            message = decode_v1(entry.body)
            line["data"]["channel"] = message.channel
            line["data"]["content"] = decode_json(message.content)
        except WireError as error:
            line["data"]["unreadable"] = str(error)
        else:
            if message.buffers:
                line["data"]["buffers"] = len(message.buffers)
    return line

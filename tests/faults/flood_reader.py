"""A reader of a session in a process of its own: `python -m tests.faults.flood_reader WAY TARGET SESSION`.

WAY is `zmq` (TARGET: a connection file), `websocket` (TARGET: HOST:PORT) or `link` (TARGET: its name for itself). It
says `ready`, and then one line of JSON for each flood that it has read to its end. A process can be stopped, and what
one reader makes of its messages keeps no other from reading.
"""

from __future__ import annotations

import hashlib
import json
import queue
import re
import sys
from collections.abc import Iterator
from typing import Any

from jupyter_cmdop.client import calls
from jupyter_cmdop.client.session import Session

END = "FLOOD-END\n"
_AFTER = re.compile(r"--after (\d+:\d+)")


class Count:
    """What one flood has brought."""

    def __init__(self) -> None:
        self.text = hashlib.sha256()
        self.characters = 0
        self.displays = 0
        self.in_order = True
        self.buffers = 0
        self._tail = ""

    def stream(self, text: str) -> bool:
        """Take a piece of text; whether the flood has ended."""
        self.text.update(text.encode())
        self.characters += len(text)
        self._tail = (self._tail + text)[-len(END) :]
        return self._tail == END

    def display(self, text: str, buffers: int) -> None:
        self.in_order = self.in_order and text == f"{self.displays};"
        self.displays += 1
        self.buffers += buffers

    def summary(self) -> dict[str, Any]:
        return {
            "text": self.text.hexdigest(),
            "characters": self.characters,
            "displays": self.displays,
            "in_order": self.in_order,
            "buffers": self.buffers,
        }


Seen = tuple[str, dict[str, Any], int]
"""Type, content, and the bytes of its buffers."""


def from_zmq(connection_file: str, session: str) -> Iterator[Seen]:
    from tests.support import connect_client

    client = connect_client(connection_file)
    say({"ready": True})
    caught_up = 0
    while True:
        try:
            message = client.get_iopub_msg(timeout=3600)
        except queue.Empty:
            return
        content = message["content"]
        if message["msg_type"] == "stream" and (marker := _AFTER.search(content["text"][-2000:])):
            for seq, seen in _missed(session, marker.group(1)):
                caught_up = seq
                yield seen
        elif (
            message["metadata"]["cmdop"]["seq"] > caught_up
        ):  # else it has been read beside, because it was slow
            yield message["msg_type"], content, sum(map(len, message["buffers"]))


def _missed(session: str, cursor: str) -> Iterator[tuple[int, Seen]]:
    """What a marker stands for, and what has come since."""
    with Session.open(session) as made, made.start(calls.read(after=cursor)) as stream:
        for item in stream:
            yield item.data["seq"], _of_item(item.data["output"])


def from_websocket(address: str, session: str) -> Iterator[Seen]:
    from tests.websocket.viewer import Viewer

    host, port = address.rsplit(":", 1)
    viewer = Viewer((host, int(port)), f"client-{sys.argv[4]}", actor="dan")
    viewer.catch_up()
    say({"ready": True})
    while True:
        viewer.received.clear()
        message = viewer.next(limit_seconds=3600)
        if message["channel"] == "iopub":
            yield message["msg_type"], message["content"], sum(map(len, message["buffers"]))


def from_link(name: str, session: str) -> Iterator[Seen]:
    with Session.open(session) as made:
        with made.start(calls.read(follow=True)) as stream:
            say({"ready": True})
            for item in stream:
                yield _of_item(item.data["output"])


def _of_item(output: dict[str, Any]) -> Seen:
    return output["output_type"], output, 0


def say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    way, target, session = sys.argv[1:4]
    count = Count()
    for kind, content, buffers in {"zmq": from_zmq, "websocket": from_websocket, "link": from_link}[way](
        target, session
    ):
        if kind == "display_data":
            count.display(content["data"]["text/plain"], buffers)
        elif kind == "stream" and content["name"] == "stdout" and count.stream(content["text"]):
            say(count.summary())
            count = Count()


if __name__ == "__main__":
    main()

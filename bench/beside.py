"""A helper in a process of its own, so that what it does is not slowed by the measuring process, nor slows it.

    beside.py status SESSION       ask a session for its status again and again
    beside.py flood zmq FILE       let a kernel print, and read all of it, through a connection file
    beside.py flood ws URL TOKEN   the same through a websocket

It says `ready`, works until its standard input ends, and `status` then writes when each call began and what it took.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.doors import Door, WebsocketDoor, ZmqDoor  # noqa: E402 (the path first)


def _until_told() -> threading.Event:
    told = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        told.set()

    threading.Thread(target=wait, daemon=True).start()
    print("ready", flush=True)
    return told


def ask_for_status(session: str) -> None:
    from jupyter_cmdop.client.session import Session

    calls: list[tuple[float, float]] = []
    with Session.open(session) as link:
        link.status()
        told = _until_told()
        while not told.is_set():
            begin = time.monotonic()
            link.status()
            calls.append((begin, time.monotonic() - begin))
            told.wait(0.005)
    print(json.dumps(calls))


def print_and_read(door: Door) -> None:
    told = _until_told()
    while not told.is_set():
        door.execute("flood 500 200", seconds=10)
    door.close()


if __name__ == "__main__":
    if sys.argv[1] == "status":
        ask_for_status(sys.argv[2])
    elif sys.argv[2] == "zmq":
        print_and_read(ZmqDoor("noise", sys.argv[3]).ready())
    else:
        print_and_read(WebsocketDoor("noise", sys.argv[3], sys.argv[4]).ready())

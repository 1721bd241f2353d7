"""A kernel that does almost nothing, so that the cost of what is before it is visible.

It speaks the Jupyter wire protocol, signed, and answers an execute_request at once. Its code is a command:

    pass                  busy, (execute_input), reply, idle
    flood COUNT SIZE      COUNT stream messages of SIZE characters
    pace COUNT SIZE MS    the same, one every MS milliseconds; each begins with CLOCK_MONOTONIC's nanoseconds
    burst COUNT SIZE      COUNT stamped stream messages without a pause
    comm COUNT SIZE       COUNT comm_msg messages with one buffer of SIZE bytes
    big SIZE              one stream message with SIZE characters
    display SIZE          one display_data whose text/plain has SIZE characters

With `--hwm 0` its iopub socket queues without limit; ZMQ's default is 1,000 messages, past which messages to a slow
subscriber are lost without a word.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import zmq

DELIMITER = b"<IDS|MSG>"
INFO = {
    "status": "ok",
    "protocol_version": "5.4",
    "implementation": "benchnull",
    "implementation_version": "1",
    "language_info": {"name": "text", "version": "1", "mimetype": "text/plain", "file_extension": ".txt"},
    "banner": "",
    "help_links": [],
}


class NullKernel:
    """Binds the sockets of a connection file and answers until it is told to shut down."""

    def __init__(self, info: dict[str, Any], hwm: int | None) -> None:
        self._key = info["key"].encode()
        self._session = uuid.uuid4().hex
        self._messages = self._executions = 0
        self._context = zmq.Context()
        between = "-" if info["transport"] == "ipc" else ":"

        def bind(kind: int, port: str) -> zmq.Socket[bytes]:
            made = self._context.socket(kind)
            made.linger = 500
            if kind == zmq.PUB and hwm is not None:
                made.sndhwm = hwm
            made.bind(f"{info['transport']}://{info['ip']}{between}{info[port]}")
            return made

        self._shell = bind(zmq.ROUTER, "shell_port")
        self._control = bind(zmq.ROUTER, "control_port")
        self._stdin = bind(zmq.ROUTER, "stdin_port")
        self._iopub = bind(zmq.PUB, "iopub_port")
        heartbeat = bind(zmq.ROUTER, "hb_port")
        threading.Thread(target=self._beat, args=(heartbeat,), daemon=True).start()

    def _beat(self, heartbeat: zmq.Socket[bytes]) -> None:
        while True:
            heartbeat.send_multipart(heartbeat.recv_multipart())

    def _send(
        self,
        channel: zmq.Socket[bytes],
        identities: list[bytes],
        kind: str,
        parent: bytes,
        content: bytes,
        buffers: tuple[bytes, ...] = (),
    ) -> None:
        self._messages += 1
        header = {
            "msg_id": f"{self._session}_{os.getpid()}_{self._messages}",
            "msg_type": kind,
            "username": "bench",
            "session": self._session,
            "date": "2026-01-01T00:00:00.000000Z",
            "version": "5.4",
        }
        parts = [json.dumps(header).encode(), parent, b"{}", content]
        signature = hmac.digest(self._key, b"".join(parts), "sha256").hex().encode()
        channel.send_multipart([*identities, DELIMITER, signature, *parts, *buffers])

    def _publish(self, kind: str, parent: bytes, content: bytes, buffers: tuple[bytes, ...] = ()) -> None:
        self._send(self._iopub, [b"kernel." + kind.encode()], kind, parent, content, buffers)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._shell, zmq.POLLIN)
        poller.register(self._control, zmq.POLLIN)
        while True:
            for channel, _ in poller.poll():
                if not self._handle(channel, channel.recv_multipart()):
                    return

    def _handle(self, channel: zmq.Socket[bytes], frames: list[bytes]) -> bool:
        at = frames.index(DELIMITER)
        identities, signature, parts = frames[:at], frames[at + 1], frames[at + 2 :]
        good = hmac.digest(self._key, b"".join(parts[:4]), "sha256").hex().encode()
        if not hmac.compare_digest(signature, good):
            return True
        kind = json.loads(parts[0])["msg_type"]
        if kind == "execute_request":
            self._execute(channel, identities, parts[0], json.loads(parts[3]))
        elif kind == "kernel_info_request":
            self._publish("status", parts[0], b'{"execution_state":"busy"}')
            self._send(channel, identities, "kernel_info_reply", parts[0], json.dumps(INFO).encode())
            self._publish("status", parts[0], b'{"execution_state":"idle"}')
        elif kind == "shutdown_request":
            self._send(channel, identities, "shutdown_reply", parts[0], parts[3])
            return False
        elif kind == "interrupt_request":
            self._send(channel, identities, "interrupt_reply", parts[0], b'{"status":"ok"}')
        return True

    def _execute(
        self, channel: zmq.Socket[bytes], identities: list[bytes], parent: bytes, content: dict[str, Any]
    ) -> None:
        self._publish("status", parent, b'{"execution_state":"busy"}')
        code = content["code"]
        if not content.get("silent", False):
            self._executions += 1
            shown = {"code": code, "execution_count": self._executions}
            self._publish("execute_input", parent, json.dumps(shown).encode())
        self._work(parent, *(code.split() or ["pass"]))
        reply = {
            "status": "ok",
            "execution_count": self._executions,
            "payload": [],
            "user_expressions": {},
        }
        self._send(channel, identities, "execute_reply", parent, json.dumps(reply).encode())
        self._publish("status", parent, b'{"execution_state":"idle"}')

    def _work(self, parent: bytes, word: str, *rest: str) -> None:
        count, *more = [int(text) for text in rest] or [0]
        if word == "flood":
            text = json.dumps({"name": "stdout", "text": "x" * (more[0] - 1) + "\n"}).encode()
            for _ in range(count):
                self._publish("stream", parent, text)
        elif word in ("pace", "burst"):
            self._stamped(parent, count, more[0], more[1] / 1000 if word == "pace" else 0)
        elif word == "comm":
            body = json.dumps({"comm_id": "bench", "data": {}}).encode()
            blob = os.urandom(more[0])
            for _ in range(count):
                self._publish("comm_msg", parent, body, (blob,))
        elif word == "big":
            self._publish("stream", parent, b'{"name":"stdout","text":"' + b"x" * count + b'"}')
        elif word == "display":
            text = b'{"data":{"text/plain":"' + b"x" * count + b'"},"metadata":{},"transient":{}}'
            self._publish("display_data", parent, text)

    def _stamped(self, parent: bytes, count: int, size: int, gap_seconds: float) -> None:
        due = time.monotonic()
        for _ in range(count):
            text = str(time.monotonic_ns()).ljust(size)
            self._publish("stream", parent, json.dumps({"name": "stdout", "text": text}).encode())
            if gap_seconds:
                due += gap_seconds
                time.sleep(max(0.0, due - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-f", required=True, type=Path)
    parser.add_argument("--hwm", type=int)
    options = parser.parse_args()
    NullKernel(json.loads(options.f.read_bytes()), options.hwm).run()


if __name__ == "__main__":
    main()

"""A kernel that answers at once and does next to nothing: for tests of what is around a kernel.

Its code is a word: `say TEXT` prints TEXT, `write FILE` adds a line to FILE, `hold FIFO` waits for a byte, `fail` is an
error, `swallow NUMBER` numbers messages that are never sent as when a publisher drops them, `swallow idle` loses its
own idle, anything else does nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import zmq

DELIMITER = b"<IDS|MSG>"
INFO = {
    "status": "ok",
    "protocol_version": "5.4",
    "implementation": "null",
    "implementation_version": "1",
    "language_info": {"name": "null", "version": "1", "mimetype": "text/plain", "file_extension": ".txt"},
    "banner": "",
}


class NullKernel:
    """Binds the sockets of a connection file and answers until it is told to shut down."""

    def __init__(self, info: dict[str, Any]) -> None:
        self._key = info["key"].encode()
        self._swallows_idle = False
        self._session = uuid.uuid4().hex
        self._count = 0
        self._messages = 0
        self._context = zmq.Context()
        kinds = {
            "shell": zmq.ROUTER,
            "control": zmq.ROUTER,
            "stdin": zmq.ROUTER,
            "iopub": zmq.PUB,
            "hb": zmq.ROUTER,
        }
        self._sockets = {name: self._context.socket(kind) for name, kind in kinds.items()}
        between = "-" if info["transport"] == "ipc" else ":"
        for name, bound in self._sockets.items():
            bound.linger = 200
            bound.bind(f"{info['transport']}://{info['ip']}{between}{info[f'{name}_port']}")

    def run(self) -> None:
        poller = zmq.Poller()
        for name in ("shell", "control", "hb"):
            poller.register(self._sockets[name], zmq.POLLIN)
        while True:
            for ready, _ in poller.poll():
                frames = ready.recv_multipart()
                if ready is self._sockets["hb"]:
                    ready.send_multipart(frames)
                elif not self._handle(ready, frames):
                    self._context.destroy(linger=200)
                    return

    def _handle(self, channel: zmq.Socket[bytes], frames: list[bytes]) -> bool:
        at = frames.index(DELIMITER)
        identities, signature, parts = frames[:at], frames[at + 1], frames[at + 2 :]
        if not hmac.compare_digest(signature, self._sign(parts[:4])):
            return True
        kind = json.loads(parts[0])["msg_type"]
        self._publish("status", parts[0], {"execution_state": "busy"})
        if kind == "execute_request":
            self._execute(channel, identities, parts[0], json.loads(parts[3]))
        elif kind == "kernel_info_request":
            self._send(channel, identities, "kernel_info_reply", parts[0], INFO)
        elif kind.endswith("_request"):
            reply = kind.removesuffix("_request") + "_reply"
            self._send(channel, identities, reply, parts[0], {"status": "ok", **json.loads(parts[3])})
        if self._swallows_idle:
            self._messages += 1
        else:
            self._publish("status", parts[0], {"execution_state": "idle"})
        self._swallows_idle = False
        return kind != "shutdown_request"

    def _execute(
        self, channel: zmq.Socket[bytes], identities: list[bytes], parent: bytes, content: dict[str, Any]
    ) -> None:
        self._count += 1
        code = content["code"]
        self._publish("execute_input", parent, {"code": code, "execution_count": self._count})
        word, _, rest = code.partition(" ")
        reply: dict[str, Any] = {"status": "ok", "execution_count": self._count, "user_expressions": {}}
        if word == "say":
            self._publish("stream", parent, {"name": "stdout", "text": rest + "\n"})
        elif word == "write":
            with open(rest, "a") as file:
                file.write("written\n")
        elif word == "hold":
            with open(rest, "rb", buffering=0) as fifo:
                fifo.read(1)
        elif word == "swallow" and rest == "idle":
            self._swallows_idle = True
        elif word == "swallow":
            self._messages += int(rest)
        elif word == "fail":
            error = {"ename": "Failed", "evalue": rest, "traceback": [f"Failed: {rest}"]}
            self._publish("error", parent, error)
            reply |= {"status": "error", **error}
        self._send(channel, identities, "execute_reply", parent, reply)

    def _publish(self, kind: str, parent: bytes, content: dict[str, Any]) -> None:
        self._send(self._sockets["iopub"], [kind.encode()], kind, parent, content)

    def _send(
        self,
        channel: zmq.Socket[bytes],
        identities: list[bytes],
        kind: str,
        parent: bytes,
        content: dict[str, Any],
    ) -> None:
        self._messages += 1
        header = {
            "msg_id": f"{self._session}_{os.getpid()}_{self._messages}",
            "msg_type": kind,
            "session": self._session,
            "username": "null",
            "date": "2026-01-01T00:00:00.000000Z",
            "version": "5.4",
        }
        parts = [json.dumps(header).encode(), parent, b"{}", json.dumps(content).encode()]
        channel.send_multipart([*identities, DELIMITER, self._sign(parts), *parts])

    def _sign(self, parts: list[bytes]) -> bytes:
        return hmac.new(self._key, b"".join(parts), hashlib.sha256).hexdigest().encode()


if __name__ == "__main__":
    NullKernel(json.loads(Path(sys.argv[-1]).read_bytes())).run()

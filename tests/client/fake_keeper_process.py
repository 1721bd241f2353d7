"""Stands in for the keeper's process: behaves at its start as FAKE_KEEPER says, then waits to be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    config = json.loads(Path(arguments["--config"]).read_text())
    ready = int(arguments["--ready-fd"])
    behaviour = os.environ.get("FAKE_KEEPER", "ready")
    print("fake keeper", behaviour, file=sys.stderr, flush=True)
    facts = {
        "argv0": sys.argv[0],
        "cwd": os.getcwd(),
        "session": os.getsid(0),
        "pid": os.getpid(),
        "environment": dict(os.environ),
        "descriptors": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in _descriptors()},
        "ready": ready,
    }
    Path(config["state"], "facts.json").write_text(json.dumps(facts))
    if behaviour == "ready":
        link = Path(config["sockets"], "link.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(link))
        listener.listen()
        pointer = Path(config["pointer"])
        data = json.loads(pointer.read_text())
        pointer.write_text(json.dumps(data | {"link": str(link), "pid": os.getpid(), "state": "open"}))
        os.write(ready, json.dumps({"ready": True, "link": str(link), "pid": os.getpid()}).encode() + b"\n")
        os.close(ready)
        signal.pause()
    elif behaviour == "error":
        os.write(
            ready, b'{"error": {"code": "no_such_kernel", "message": "no kernel spec is called julia"}}\n'
        )
        sys.exit(1)
    elif behaviour == "crash":
        raise RuntimeError("the fake crashed")
    elif behaviour == "garbage":
        os.write(ready, b"\xff\xfenot json\n")
        signal.pause()
    elif behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()


def _descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{name}") or os.path.islink(f"/proc/self/fd/{name}"):
            found.append(int(name))
    return found


if __name__ == "__main__":
    main()

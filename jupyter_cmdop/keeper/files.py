"""Small files that others read while they are written: whole or not at all, for their owner only."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any


def write_private(path: Path, content: bytes) -> None:
    """Replace `path` atomically, with mode 0600: by all of `content`, or on a full disk not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    try:
        with open(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, 0o600)
            rest = memoryview(content)
            while rest:  # a disk that fills up takes a part, and says so at the next write
                rest = rest[file.write(rest) :]
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def process_facts(pid: int) -> dict[str, Any]:
    """What makes a process the same one: pid, start time (clock ticks since boot), boot id, host."""
    return {"pid": pid, "start_time": start_time(pid), "boot_id": boot_id(), "host": socket.gethostname()}


def start_time(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        import psutil

        try:
            return str(psutil.Process(pid).create_time())
        except psutil.Error:
            return ""
    return stat.rpartition(b")")[2].split()[19].decode()


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        import psutil

        return str(int(psutil.boot_time()))

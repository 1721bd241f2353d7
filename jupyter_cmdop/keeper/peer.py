"""Who is at the other end of the link: the Unix user, and whether he calls from below a session's backend."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

MAX_ANCESTORS = 64
KEEPER_MODULE = b"jupyter_cmdop.keeper"


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected.

    Attributes:
        keeper: pid of the keeper below whose backend it runs, or None.
    """

    uid: int
    pid: int | None
    keeper: int | None


def peer_of(connection: socket.socket) -> Peer:
    """Look up the other end of a connected Unix socket."""
    if hasattr(socket, "SO_PEERCRED"):
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(uid, pid, keeper_above(pid))
    # LOCAL_PEERCRED (sys/un.h): version u32, uid u32, then groups; LOCAL_PEERPID gives the pid.
    _, uid = struct.unpack_from("II", connection.getsockopt(0, 1, 76))
    (pid,) = struct.unpack("i", connection.getsockopt(0, 2, 4))
    return Peer(uid, pid, keeper_above(pid))


def keeper_above(pid: int) -> int | None:
    """The nearest ancestor of `pid` that is a keeper, found by its command line.

    A process could only pose as one, and would lose the owner's identity by it, so the lookup needs no proof. What a
    caller can do is leave the tree (a double fork): attribution below the Unix user is cooperative.
    """
    for _ in range(MAX_ANCESTORS):
        facts = _parent_and_command(pid)
        if facts is None:
            return None
        parent, _ = facts
        if parent <= 1:
            return None
        above = _parent_and_command(parent)
        if above is None:
            return None
        if KEEPER_MODULE in above[1]:
            return parent
        pid = parent
    return None


def _parent_and_command(pid: int) -> tuple[int, list[bytes]] | None:
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return None
        return int(stat.rpartition(b")")[2].split()[1]), command
    import psutil

    try:
        process = psutil.Process(pid)
        return process.ppid(), [os.fsencode(part) for part in process.cmdline()]
    except psutil.Error:
        return None

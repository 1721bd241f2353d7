"""Which process a pid means: start time, state, boot and host, read without a library on Linux."""

from __future__ import annotations

import os
import sys
from typing import Literal

ProcessState = Literal["running", "zombie", "gone"]

_LINUX = sys.platform.startswith("linux")
# Linux: fields of /proc/<pid>/stat counted from the state, which is field 3 (proc_pid_stat(5)).
_STATE, _START_TIME = 0, 19
_NO_PID = 2**31


def host_name() -> str:
    return os.uname().nodename


def boot_id() -> str:
    """A string that changes with each boot of this machine, "" where the system has none."""
    if _LINUX:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""
    import psutil

    return str(int(psutil.boot_time()))


def process_state(pid: int) -> ProcessState:
    if _LINUX:
        fields = _stat_fields(pid)
        if fields is None:
            return "gone"
        return "zombie" if fields[_STATE] in ("Z", "X", "x") else "running"
    import psutil

    if not 0 < pid < _NO_PID:
        return "gone"
    try:
        status = psutil.Process(pid).status()
    except psutil.Error:
        return "gone"
    return "zombie" if status == psutil.STATUS_ZOMBIE else "running"


def start_time(pid: int) -> str | None:
    """Clock ticks since boot as a string on Linux, psutil's creation time elsewhere; None for no such process."""
    if _LINUX:
        fields = _stat_fields(pid)
        return None if fields is None else fields[_START_TIME]
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _stat_fields(pid: int) -> list[str] | None:
    if not 0 < pid < _NO_PID:
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            raw = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and parentheses; what follows its last ")" cannot.
    return raw[raw.rindex(b")") + 2 :].decode("ascii", "replace").split()

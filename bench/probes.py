"""What a process costs: processor time, memory, descriptors. Exact on Linux, in psutil's clock ticks elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

MIB = 2**20
LIMIT_SECONDS = 60.0


def cpu_seconds(pid: int) -> float:
    """Seconds that the threads of a process were on a CPU."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        stats = [Path(f"/proc/{pid}/task/{task}/schedstat").read_bytes() for task in tasks]
        return sum(int(stat.split()[0]) for stat in stats) / 1e9
    except OSError:
        user, system = psutil.Process(pid).cpu_times()[:2]
        return float(user + system)


def rss_mib(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / MIB


def uss_mib(pid: int) -> float:
    """What would be given back if the process ended: memory that it shares with nobody."""
    return float(psutil.Process(pid).memory_full_info().uss) / MIB


def descriptors(pid: int) -> int:
    return int(psutil.Process(pid).num_fds())


def reset_peak(pid: int) -> None:
    """Let the kernel's high-water mark of resident memory begin anew."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        pass  # not Linux: `peak_mib` says what it is now


def peak_mib(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return rss_mib(pid)


def wait_until(what: str, holds: Callable[[], object], limit_seconds: float = LIMIT_SECONDS) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + limit_seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def wait_quiet(pids: Iterable[int], during: Callable[[], object] = lambda: None) -> None:
    """Return when processes have used next to no time for half a second; after a limit they are as they are.

    Args:
        during: called again and again meanwhile, to read what arrives.
    """
    pids = list(pids)
    deadline = time.monotonic() + LIMIT_SECONDS / 2
    while time.monotonic() < deadline:
        before = sum(map(cpu_seconds, pids))
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            during()
            time.sleep(0.02)
        if sum(map(cpu_seconds, pids)) - before < 0.001 * max(1, len(pids)):
            return

"""strace on a process of ours: what its system calls are, and what happens when one of them fails or is its last."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

from tests.support import LIMIT_SECONDS

_CALL = re.compile(r"(\d+) +(\w+)\(")


def why_not() -> str:
    """Why strace cannot be used here; empty when it can."""
    program = shutil.which("strace")
    if program is None:
        return "strace is not installed (apt-get install strace)"
    done = subprocess.run(
        [program, "-qq", "-o", "/dev/null", "-e", "inject=getppid:error=EPERM", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"strace cannot trace here: {done.stderr.strip()}" if done.returncode else ""


needs_strace = pytest.mark.skipif(bool(reason := why_not()), reason=reason)


@dataclass(frozen=True)
class Call:
    """A system call of a process: which of its threads makes it (by their age), which call, the how-manyth of these."""

    thread: int
    name: str
    count: int

    def __str__(self) -> str:
        return f"{self.thread}.{self.name}.{self.count}"


class Strace:
    """A strace that is attached to a process, or one of its threads, for as long as the context lasts."""

    def __init__(self, pid: int, output: Path, *arguments: str) -> None:
        command = ["strace", "-o", str(output), *arguments, "-p", str(pid)]
        self.output = output
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        said = []
        while "attached" not in (line := self._process.stderr.readline()):
            said.append(line)
            assert line, f"strace did not attach: {''.join(said)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def detach(self) -> None:
        """Let the process go on by itself."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=LIMIT_SECONDS)


def threads_of(process: psutil.Process) -> list[int]:
    """The threads of a process, the oldest first."""
    return sorted(thread.id for thread in process.threads())


def watch_calls(process: psutil.Process, output: Path) -> Strace:
    """Attach and write down every call; `calls_of` reads them afterwards."""
    return Strace(process.pid, output, "-f")


def calls_of(threads: list[int], output: Path) -> list[Call]:
    """What was called, in the order in which the calls began."""
    counts: Counter[tuple[int, str]] = Counter()
    found = []
    for line in output.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if match is None or int(match[1]) not in threads:
            continue
        key = (threads.index(int(match[1])), match[2])
        counts[key] += 1
        found.append(Call(*key, counts[key]))
    return found


def kill_at(process: psutil.Process, call: Call, output: Path) -> Strace:
    """Attach to the call's thread: the whole process dies when it is about to make this call, instead of making it."""
    return Strace(
        threads_of(process)[call.thread],
        output,
        f"--trace={call.name}",
        f"--inject={call.name}:signal=SIGKILL:when={call.count}",
    )


def fail_each(process: psutil.Process, name: str, error: str, output: Path) -> Strace:
    """Attach to all threads: from now on each such call fails."""
    return Strace(process.pid, output, "-f", f"--trace={name}", f"--inject={name}:error={error}")

"""Launches a kernelspec's kernel on private ipc sockets, and ends it with everything it started.

The kernel is started through jupyter_client's provisioners, so whatever a kernelspec asks for works. It is told to die
with its parent (Linux), it is the process that the out-of-memory killer prefers, and its connection file is removed
once it has been read: the key of the real kernel is given to no actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import queue
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

log = logging.getLogger(__name__)

KERNEL_OOM_SCORE = 500  # of 1000: the kernel goes before its keeper does
PR_SET_PDEATHSIG = 1
POLITE_SECONDS = 2.0  # between asking a kernel to end and killing it


class LaunchFailed(Exception):
    """The kernel could not be started; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel process that has been started (it need not listen yet).

    Attributes:
        pid: its process id, or None for a kernel that a provisioner runs elsewhere.
        key: signing key of its messages.
        endpoints: ZMQ address of each of shell, control, stdin, iopub and hb.
        outputs: descriptors of its raw stdout and stderr, non-blocking; the keeper reads and closes them.
        interrupt_mode: `signal` or `message`, from the kernelspec.
        language: from the kernelspec, lower case.
    """

    incarnation: int
    pid: int | None
    pid_start: float | None
    key: bytes
    endpoints: dict[str, str]
    outputs: dict[str, int]
    interrupt_mode: str
    language: str
    connection_file: Path


class _QuietManager(AsyncKernelManager):
    """A kernel manager that opens no socket of its own: the keeper owns the only sockets to the kernel."""

    def _connect_control_socket(self) -> None:
        self._control_socket = None


@dataclass
class KernelProcess:
    """Starts and ends the kernel of one session; each incarnation has its own key and sockets.

    Attributes:
        umask: the user's, which the files that his code makes get; the keeper's own is stricter.

    Everything that may block runs in one thread of its own, which lives as long as the keeper: a kernel is told to die
    with the *thread* that started it (see PR_SET_PDEATHSIG in prctl(2)).
    """

    spec_name: str
    directory: Path
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    umask: int | None = None

    def __post_init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._manager: AsyncKernelManager | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._oom_kills: dict[Path, int] = {}
        self._thread = threading.Thread(target=self._run, name="kernel-launcher", daemon=True)
        self._thread.start()

    # -------------------------------------------------------------- from the keeper's thread

    def launch(self, incarnation: int, done: Callable[[Launched | LaunchFailed], None]) -> None:
        """Start the kernel; `done` is called from the launcher thread."""

        def work() -> None:
            try:
                result: Launched | LaunchFailed = self._loop.run_until_complete(self._launch(incarnation))
            except NoSuchKernel:
                result = LaunchFailed(_no_such_spec(self.spec_name))
            except LaunchFailed as failed:
                result = failed
            except (OSError, RuntimeError, ValueError, TypeError) as error:
                result = LaunchFailed(f"the kernel {self.spec_name!r} could not be started: {error}")
            done(result)

        self._work.put(work)

    def end(self, done: Callable[[list[int]], None], *, force: bool = False) -> None:
        """End the kernel and its descendants; `done` is told their pids, from the launcher thread.

        The keeper has already asked the kernel to shut down; unless `force`, it gets `POLITE_SECONDS` for that.
        """
        self._work.put(lambda: done(self._loop.run_until_complete(self._end(force))))

    def interrupt(self) -> bool:
        """Send SIGINT to the kernel's process group; False when there is no process to signal."""
        process = self._process
        if process is None or process.poll() is not None:
            return False
        try:
            os.killpg(process.pid, signal.SIGINT)
        except ProcessLookupError:
            return False
        except PermissionError:
            os.kill(process.pid, signal.SIGINT)
        return True

    def exit_reason(self) -> str | None:
        """In words how the kernel process ended, or None while it runs (or runs elsewhere)."""
        process = self._process
        code = None if process is None else process.poll()
        if code is None:
            return None
        if code >= 0:
            return f"the kernel exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"the kernel was ended by {name}" + (
            " (it ran out of memory)" if code == -signal.SIGKILL and self._was_short_of_memory() else ""
        )

    def note_memory_limits(self) -> None:
        """Remember how often memory has run out so far where this kernel is counted.

        To be called again when it is ready: what starts it may have moved it.
        """
        if self._process is not None:
            for place, kills in oom_kills(self._process.pid).items():
                self._oom_kills.setdefault(place, kills)

    def _was_short_of_memory(self) -> bool:
        return any(_oom_count(place) > before for place, before in self._oom_kills.items())

    def poll_remote(self, done: Callable[[bool], None]) -> None:
        """Ask a provisioner that has no local process whether its kernel lives."""

        async def ask() -> bool:
            return self._manager is not None and await self._manager.is_alive()

        self._work.put(lambda: done(self._loop.run_until_complete(ask())))

    def close_sockets_to_others(self) -> None:
        """The kernel has made its sockets, under the user's umask: leave them to this user alone."""
        manager = self._manager
        for path in [] if manager is None else self.directory.glob(f"{Path(manager.ip).name}-*"):
            with contextlib.suppress(OSError):  # removed meanwhile: made anew with the next incarnation
                path.chmod(0o600)

    def stop_thread(self) -> None:
        self._work.put(None)
        self._thread.join(timeout=10)

    # -------------------------------------------------------------- in the launcher thread

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        while (work := self._work.get()) is not None:
            work()
        self._loop.close()

    async def _launch(self, incarnation: int) -> Launched:
        await self._forget()
        specs = KernelSpecManager()
        spec = specs.get_kernel_spec(self.spec_name)
        make_private(self.directory.parent, self.directory)  # a temporary directory may have been cleaned
        prefix = self.directory / f"k{incarnation}"
        manager = _QuietManager(
            kernel_name=self.spec_name,
            kernel_spec_manager=specs,
            transport="ipc",
            ip=str(prefix),
            connection_file=str(self.directory / f"k{incarnation}.json"),
            autorestart=False,
        )
        manager.kernel_id = f"{self.directory.name}-{incarnation}"
        provisioner = KernelProvisionerFactory.instance().create_provisioner_instance(
            manager.kernel_id, spec, parent=manager
        )
        manager.provisioner = provisioner
        options: dict[str, Any] = {"cwd": self.cwd, "env": {**os.environ, **self.env}}
        if isinstance(provisioner, LocalProvisioner):
            options.update(
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=_prepare_child(os.getpid(), self.umask),
                # The keeper, not its parent's pid written into the environment, decides when this kernel ends.
                independent=True,
            )
        self._manager = manager
        try:
            await manager.start_kernel(**options)
        except FileNotFoundError as error:
            raise LaunchFailed(
                f"the kernelspec {self.spec_name!r} names a program that is not there: {error.filename or error}"
            ) from error
        except PermissionError as error:
            raise LaunchFailed(f"the kernel {self.spec_name!r} may not be started: {error}") from error
        process = getattr(provisioner, "process", None)
        self._process = process if isinstance(process, subprocess.Popen) else None
        self._oom_kills = {}
        self.note_memory_limits()
        outputs: dict[str, int] = {}
        if self._process is not None:
            for name in ("stdout", "stderr"):
                stream = getattr(self._process, name)
                if stream is not None:
                    descriptor = os.dup(stream.fileno())
                    os.set_blocking(descriptor, False)
                    stream.close()
                    outputs[name] = descriptor
        info: dict[str, Any] = dict(manager.get_connection_info())
        return Launched(
            incarnation=incarnation,
            pid=self._process.pid if self._process else None,
            pid_start=_start_time(self._process.pid) if self._process else None,
            key=info["key"],
            endpoints={
                channel: f"ipc://{info['ip']}-{info[f'{channel}_port']}"
                if info["transport"] == "ipc"
                else f"tcp://{info['ip']}:{info[f'{channel}_port']}"
                for channel in ("shell", "control", "stdin", "iopub", "hb")
            },
            outputs=outputs,
            interrupt_mode=spec.interrupt_mode,
            language=(spec.language or "").lower(),
            connection_file=Path(manager.connection_file),
        )

    async def _end(self, force: bool) -> list[int]:
        process = self._process
        ended: list[int] = []
        if process is not None:
            family = _descendants(process.pid)
            if not force:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLITE_SECONDS)  # this thread has nothing else to do
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = [process.pid, *_kill_all(family)]
        elif self._manager is not None and await self._manager.is_alive():
            await self._manager.shutdown_kernel(now=True)
        await self._forget()
        return ended

    async def _forget(self) -> None:
        """Drop what the previous incarnation left: its manager, its sockets' files, its connection file."""
        manager, self._manager, self._process = self._manager, None, None
        if manager is None:
            return
        if manager.provisioner is not None:
            await manager.provisioner.cleanup(restart=False)
        manager.cleanup_connection_file()
        for path in self.directory.glob(f"{Path(manager.ip).name}-*"):
            path.unlink(missing_ok=True)


def make_private(*directories: Path) -> None:
    """Make directories that are missing, and what is missing above the first, and look at them all.

    Raises:
        OSError: one of them is not this user's alone: somebody has made it after ours was removed.
    """
    for path in directories:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "it is not a directory of this user alone", str(path))


def _no_such_spec(name: str) -> str:
    known = sorted(KernelSpecManager().find_kernel_specs())
    return f"there is no kernelspec {name!r}; installed: {', '.join(known) or 'none (pip install ipykernel)'}"


def _prepare_child(parent: int, umask: int | None) -> Callable[[], None]:
    """What runs in the child between fork and exec."""
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def prepare() -> None:
        # The keeper ignores these, and what is ignored stays so through exec: the kernel and its children would, too.
        for name in (signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_DFL)
        if umask is not None:
            os.umask(umask)
        if libc is None:
            return
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the keeper died between fork and prctl
            os._exit(1)
        try:
            descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        except OSError:
            return
        try:
            os.write(descriptor, str(KERNEL_OOM_SCORE).encode())
        except OSError:  # not allowed in some containers: the system's own choice stays
            return
        finally:
            os.close(descriptor)

    return prepare


def _start_time(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill_all(processes: list[psutil.Process]) -> list[int]:
    ended = []
    for process in processes:
        try:
            process.kill()  # psutil checks the start time: a pid that was used again is left alone
        except psutil.NoSuchProcess:
            continue
        ended.append(process.pid)
    psutil.wait_procs(processes, timeout=2)
    return ended


def oom_kills(
    pid: int, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> dict[Path, int]:
    """How often the out-of-memory killer has come so far, by the file that counts it: that of the process's memory
    cgroup and of those above it, one of which has the limit."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return {}
    found: dict[Path, int] = {}
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        roots: list[Path] = []
        if number == "0" and not controllers:  # version 2, mounted alone or beside version 1
            roots = [cgroups, cgroups / "unified"]
        elif "memory" in controllers.split(","):
            roots = [cgroups / "memory"]
        for root in roots:
            place = root / group.lstrip("/")
            while place.is_relative_to(root):
                for counter in (place / "memory.events", place / "memory.oom_control"):
                    if counter.exists():
                        found[counter] = _oom_count(counter)
                place = place.parent
    return found


def _oom_count(counter: Path) -> int:
    try:
        lines = counter.read_text().splitlines()
    except OSError:  # the group is gone
        return 0
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts and counts[0].isdecimal() else 0

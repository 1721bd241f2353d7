"""One session's process: wires loop, journal, kernel and endpoints, and ends them in order."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import zmq

from ..backends.kernel_channels import IO_THREADS
from ..backends.kernel_process import KernelProcess, make_private
from ..clocks import session_seconds
from ..core import effects as fx
from ..core import events as ev
from ..core.grants import MAX_GRANTS, Attachment
from ..core.operations import MAIN_LANE
from ..journal.errors import JournalError
from ..journal.store import JournalStore
from ..wire.kernel import encode_json
from .clients import Client, Published
from .config import KeeperConfig
from .files import process_facts, write_private
from .grant_endpoints import GrantEndpoints
from .journal_desk import JournalDesk, messages_of
from .kernel_requests import KernelRequests, Request
from .kernel_side import KernelSide
from .kernel_talk import still_busy
from .link_endpoint import LinkServer
from .link_verbs import LinkVerbs
from .loop import Loop
from .recorder import LostTheJournal, Recorder
from .runner import LiveOperation, Runner
from .settle import settle
from .stamps import Origin
from .time_watch import TimeWatch
from .websocket_desk import WebsocketDesk

log = logging.getLogger(__name__)

LINGER_SECONDS = 30.0  # a session whose backend is lost stays readable so long after the last one has left
FAREWELL_SECONDS = 1.0  # for the last frames to reach their readers
UPKEEP_SECONDS = 1.0
MAX_SOCKETS = 8 * MAX_GRANTS + 64  # of libzmq: seven of each grant, five of the kernel, and a few more
NICENESS = 5
PATHS_SECONDS = 60.0  # between two looks at whether the sockets' files are still there


@dataclass
class Keeper:
    """Everything that one session needs while it lives.

    Args:
        config: what it is told at its start.
        ready: called once, with None when the session can be used or with the reason why not.
        umask: the user's, for the kernel; None leaves the process's own.
    """

    config: KeeperConfig
    ready: Callable[[str | None], None]
    umask: int | None = None
    exit_code: int = 0
    _stop_at: float | None = None
    _ended_pids: list[int] = field(default_factory=list)
    _has_failed: bool = False

    def __post_init__(self) -> None:
        config = self.config
        self.loop = Loop()
        state = Path(config.state)
        self.recorder = Recorder(JournalStore.open(state, config.id), post=self.loop.post)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=IO_THREADS)
        self.context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self.runner = Runner(config, self.loop, self.recorder)
        sockets = Path(config.sockets)
        process = KernelProcess(
            config.spec, sockets, config.cwd or str(Path.home()), dict(config.env), umask=self.umask
        )
        self.kernel = KernelSide(
            self.runner, self.context, process, started=self._kernel_started, stopped=self._kernel_stopped
        )
        self.requests = KernelRequests(self.runner, self.kernel, repeat_result=self._repeat_result)
        self.grants = GrantEndpoints(self.runner, self.kernel, self.requests, self.context)
        self.kernel.viewers = self
        self.kernel.listen.clients = self.clients
        self.runner.backend = self.kernel
        self.journal = JournalDesk(state, self.loop)
        self.websockets = WebsocketDesk(self.runner, self.kernel, self.requests, self.journal)
        self.link = LinkServer(self.runner, self.grants, sockets / "link.sock")
        self.verbs = LinkVerbs(
            self.runner,
            self.kernel,
            self.grants,
            self.journal,
            self.link,
            websockets=self.websockets,
            status=self.status,
            activity=self.activity,
        )
        self.link.status = lambda: self.status(processes=False)  # asked by every hello, also those of `ls`
        self.runner.endpoints = self
        self._lost_at: float | None = None
        self._upkeep_at = time.monotonic() + UPKEEP_SECONDS
        self._paths_at = time.monotonic() + PATHS_SECONDS
        self.time_watch = TimeWatch()
        self.loop.woken = self._woken
        self.loop.add_timer(lambda: self._stop_at)
        self.loop.add_timer(self._next_upkeep)
        self.runner.note(
            "opened",
            actor=config.opened_by or self.runner.owner.id,
            durable=True,
            data={
                "name": config.name,
                "kind": config.kind,
                "spec": config.spec,
                "policy": config.policy,
                "workspace": config.workspace or "",
                "group": config.group or "",
                "cwd": config.cwd,
                "keeper": process_facts(os.getpid()),
            },
        )

    # ------------------------------------------------------------------ running

    def run(self) -> int:
        """Live until the session ends; returns the exit code."""
        for name in (signal.SIGTERM,):
            signal.signal(name, lambda *_: self.loop.post(self._terminate))
        signal.signal(signal.SIGCONT, lambda *_: self.time_watch.continued())
        for name in (signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        self._write_pointer("starting")
        self.kernel.start()
        try:
            while not self.loop.stopped:
                self._turn()
        except LostTheJournal as lost:
            # Somebody else acts for this session: do nothing more in its name.
            log.critical("%s: this keeper stops", lost)
            self.exit_code = 3
        except Exception as error:  # a fault of ours ends here, and the record says so
            log.exception("this keeper fails")
            self.exit_code = 4
            self._has_failed = True
            self._write_session_record("lost", f"its keeper failed: {type(error).__name__}: {error}")
        finally:
            self._close()
        return self.exit_code

    def _turn(self) -> None:
        self.loop.turn()
        if self.loop.is_time:
            self._run_timers()
        self.runner.commit()
        for endpoint in self.grants.endpoints():
            if endpoint.has_waiting:
                endpoint.flush()
        self.verbs.waiting.after_commit()
        self.websockets.after_commit()
        self.verbs.activity.after_commit()
        if self.recorder.is_preparing:  # what has been said is recorded, however long it is
            return
        if self._stop_at is not None and (time.monotonic() >= self._stop_at or self._is_quiet()):
            self.loop.stop()

    def _woken(self, due: float) -> None:
        for finding in self.time_watch.look(due):
            log.warning("the time is odd: %s", finding)
            if finding.kind == "clock":
                self.runner.note(
                    "clock", actor="keeper", data={"set_by_seconds": round(finding.seconds, 1)}, durable=True
                )
                continue
            self.kernel.excuse()
            self.websockets.excuse()
            self.link.excuse()
            self.runner.stood_still(finding.kind, finding.seconds)
            # Viewers were told that it does not answer, or saw nothing move: they are told how things are.
            self.runner.recorder.show(self.verbs.tell_back, finding.seconds)
            self.runner.recorder.show(self._show_state)

    def _show_state(self) -> None:
        """Tell those with a websocket whether the kernel works."""
        busy = still_busy(self.runner, self.kernel.state)
        if busy is None:
            if not self.kernel.is_ready:
                return
            origin = Origin(self.runner.keeper.actor, "")
            stamp = self.runner.stamp_now(origin)
            parts = self.kernel.state.voice.status("idle", b"{}", b'{"cmdop":' + stamp + b"}")
            busy = Published(b"status", parts)
        for client in self.websockets.clients():
            client.publish(busy)

    def _run_timers(self) -> None:
        self.runner.run_timers()
        self.kernel.run_timers()
        self.grants.run_timers()
        self.websockets.run_timers()
        self.verbs.waiting.run_timers()
        self._upkeep()

    def _is_quiet(self) -> bool:
        return self.verbs.waiting.is_quiet and not any(c.is_backed_up for c in self.link.connections)

    def _next_upkeep(self) -> float | None:
        if self._lost_at is not None:
            return self._upkeep_at
        due = [self._paths_at]
        if self.config.idle_hours > 0:
            due.append(self.runner.touched_at + self.config.idle_hours * 3600)
        return min(due)

    def _upkeep(self) -> None:
        now = time.monotonic()
        if now < (self._next_upkeep() or 0.0):
            return
        self._upkeep_at = now + UPKEEP_SECONDS
        present = any(a.persistent for a in self.runner.session.attachments.values())
        if self._lost_at is not None:
            if present:
                self._lost_at = now
            elif now - self._lost_at >= LINGER_SECONDS and self._stop_at is None:
                self._finish("lost", self.kernel.lost_reason or "its backend has ended")
            return
        if now >= self._paths_at:
            self._paths_at = now + PATHS_SECONDS
            self._keep_paths()
        if self.config.idle_hours <= 0 or now < self.runner.touched_at + self.config.idle_hours * 3600:
            return
        session = self.runner.session
        if present or any(lane.running or lane.queue for lane in session.lanes.values()):
            self.runner.touched_at = now
        else:
            self.runner.note(
                "idle",
                actor="keeper",
                data={"reason": f"nobody touched it for {self.config.idle_hours:g} h"},
            )
            self._terminate()

    def _keep_paths(self) -> None:
        """Sockets live in a temporary directory, which may be cleaned: keep them young, and make them again."""
        if not Path(self.config.pointer).exists():
            self._write_pointer(self._state())
        directory = Path(self.config.sockets)
        if directory.exists() and self.link.is_reachable():
            for path in (directory, *directory.iterdir()):
                with contextlib.suppress(OSError):
                    os.utime(path, follow_symlinks=False)
            return
        log.warning("the sockets in %s were removed: making them again", directory)
        try:
            make_private(directory.parent, directory)
            self.link.listen_again()
            self.grants.bind_again()
        except OSError as error:
            log.error("the sockets could not be made again: %s", error)

    def _terminate(self) -> None:
        if self._stop_at is None and self.runner.session.backend != "closed":
            self.runner.submit(ev.Lifecycle(self.runner.keeper.id, "close", force=True))

    # ------------------------------------------------------------------ the kernel's news

    def clients(self) -> Iterator[Client]:
        """Everybody who sees what the kernel publishes."""
        yield from self.grants.endpoints()
        yield from self.websockets.clients()

    def kernel_is_ready(self) -> None:
        if self.runner.session.incarnation > 1:
            self._write_pointer("open")  # it names the process of the new incarnation
            self._keep_paths()
        self.requests.kernel_is_ready()

    def kernel_has_left(self, *, asked: bool) -> None:
        """Tell clients that wait for the kernel that it comes again.

        `restarting` is the word of jupyter_client's restarter for a kernel that died; JupyterLab opens a dialog that
        says so. A restart that somebody asked for begins like a start.
        """
        origin = Origin(self.runner.keeper.actor, "")
        stamp = self.runner.stamp_now(origin)
        state = "starting" if asked else "restarting"
        parts = self.kernel.state.voice.status(state, b"{}", b'{"cmdop":' + stamp + b"}")
        self.runner.recorder.send(self.kernel.listen.show, Published(b"status", parts))

    def _kernel_started(self, problem: str | None) -> None:
        if problem is None:
            self._write_pointer("open")
            self._run_setup()
            gc.collect()
            gc.freeze()
            gc.set_threshold(20_000, 20, 50)
            _trim()
            _step_back()
            self.runner.recorder.send(self.ready, None)
            return
        self.exit_code = 1
        self.runner.recorder.send(self.ready, problem)
        self._finish("lost", problem)

    def _run_setup(self) -> None:
        """The session's own first operation, in its owner's name."""
        if self.config.setup is None:
            return
        attachment = Attachment("setup", self.runner.owner, "owner", "link", persistent=False, client="setup")
        self.runner.submit(ev.Attach(attachment))
        self.verbs.run_for(attachment, self.config.setup)

    def _kernel_stopped(self, pids: list[int]) -> None:
        self._ended_pids = pids
        self.runner.note("backend_ended", actor="keeper", data={"pids": [str(pid) for pid in pids]})
        self.runner.recorder.show(self.verbs.tell_closed, pids)
        self._finish("closed", "")

    def _finish(self, state: str, reason: str) -> None:
        self._write_session_record(state, reason)
        self._stop_at = time.monotonic() + FAREWELL_SECONDS

    # ------------------------------------------------------------------ what the core wants of the endpoints

    def open_grant(self, grant: str) -> None:
        try:
            self.grants.open(self.runner.session.grants[grant])
        except (OSError, zmq.ZMQError) as error:  # no descriptors, or no space
            log.error("the endpoint of grant %s cannot be opened: %s", grant, error)
            self.grants.problem = error
            self.runner.submit(ev.Revoke(self.runner.keeper.id, grant))

    def close_grant(self, grant: str, reason: str) -> None:
        self.grants.close(grant)
        self.grants.files.pop(grant, None)
        self.websockets.drop(attachment=None, actor=None, grant=grant, reason=reason)
        self.link.close_grant(grant, reason)

    def tell(self, effect: fx.Tell) -> None:
        self.verbs.tell(effect)

    def announce(self, effect: fx.Announce) -> None:
        if effect.kind == "backend" and effect.data.get("state") == "lost":
            self._lost_at = time.monotonic()
        self.verbs.announce(effect)

    def renamed(self, name: str) -> None:
        self.runner.name = name
        self._write_pointer("open")
        self._write_session_record("open", "")

    def _repeat_result(self, operation: str, request: Request) -> None:
        live = self.runner.operations.get(operation)
        first = 0 if live is None else live.first_seq

        def told(result: Any) -> None:
            if isinstance(result, JournalError):
                log.error("the result of %s cannot be read: %s", operation, result)
                result = []
            self.requests.show_result(request, result, operation)

        self.journal.ask(lambda reader: messages_of(reader, operation, first), told)

    # ------------------------------------------------------------------ looking

    def activity(self) -> dict[str, Any]:
        """What a Jupyter server shows of a kernel, and culls it by."""
        return {
            "name": self.runner.name,
            "state": self._state(),
            "execution_state": self._execution_state(),
            "incarnation": self.runner.session.incarnation,
            "connections": self._connections(),
            "last_activity": self.runner.active.moment.isoformat(),
            "reason": self.kernel.lost_reason or self._oddity(),
            "driver": self.runner.session.floor.driver,
            "generation": self.runner.session.floor.generation,
            "policy": self.runner.session.policy,
            "queued": sum(len(lane.queue) for lane in self.runner.session.lanes.values()),
            "refused": self.runner.refused,
            "journal_waiting": self.recorder.last_seq - self.recorder.committed_seq,
        }

    def _connections(self) -> int:
        return self.websockets.count + self.grants.present

    def status(self, *, processes: bool = True) -> dict[str, Any]:
        """The shape `Status` of the link.

        Args:
            processes: whether to look for the kernel's processes, which means to look at all of the machine's.
        """
        session, config = self.runner.session, self.config
        floor = session.floor
        running = [session.operations[lane.running] for lane in session.lanes.values() if lane.running]
        wall = self.verbs.wall
        prompt = next(iter(session.prompts.items()), None)
        head = self.recorder.store.head
        lease = session.lease_until()
        return {
            "name": self.runner.name,
            "id": config.id,
            "kind": config.kind,
            "state": self._state(),
            "driver": floor.driver,
            "floor": floor.state.value,
            "since": wall(floor.since),
            "generation": floor.generation,
            "incarnation": session.incarnation,
            "policy": session.policy,
            "kernel_id": config.id,
            "spec": config.spec,
            "group": config.group,
            "execution_state": self._execution_state(),
            "presence": [self._presence(a) for a in session.attachments.values() if a.persistent],
            "queue": [self._operation(name) for lane in session.lanes.values() for name in lane.queue],
            "running": [self._operation(op.id) for op in running],
            "pending_input": None
            if prompt is None
            else {
                "operation": prompt[0],
                "actor": session.operations[prompt[0]].actor.id,
                "prompt": prompt[1]["text"],
                "password": prompt[1]["password"],
                "prompt_id": prompt[1]["prompt"],
                "since": wall(prompt[1]["since"]),
            },
            "processes": self._processes() if processes else [],
            "journal": {
                "seq": head.seq,
                "hash": head.hash,
                "path": config.state,
                "unavailable": self.recorder.unavailable,
                "wal": self.recorder.store.wal,
            },
            "lease": {"until_seconds": round(lease - session_seconds(), 1)}
            if floor.driver is not None and lease is not None
            else None,
            "iopub": "may_drop" if self.kernel.state.may_drop else "waits_for_reader",
            "connections": self._connections(),
            "last_activity": self.runner.active.moment.isoformat(),
            "level": "cooperative",
            "workspace": config.workspace,
            "cwd": config.cwd,
            "created": config.created,
            "reason": self.kernel.lost_reason or self._oddity(),
        }

    def _state(self) -> str:
        backend = self.runner.session.backend
        if backend == "mute" or (backend == "ready" and self.kernel.watch.unresponsive is not None):
            return "unresponsive"
        return "open" if backend == "ready" else backend

    def _oddity(self) -> str | None:
        """Why the session is not simply open, while its kernel lives."""
        if self.runner.session.backend == "mute":
            return "the kernel publishes nothing any more: restart it"
        return self.kernel.watch.reason if self.runner.session.backend == "ready" else None

    def _execution_state(self) -> str:
        session = self.runner.session
        if self._state() == "unresponsive":
            return "unresponsive"
        if session.backend != "ready":
            return "dead" if session.backend in ("lost", "closed") else "starting"
        return "busy" if session.lanes[MAIN_LANE].running else "idle"

    def _presence(self, attachment: Attachment) -> dict[str, Any]:
        return {
            "actor": attachment.actor.id,
            "kind": attachment.actor.kind,
            "name": attachment.actor.display_name,
            "on_behalf_of": attachment.actor.on_behalf_of,
            "role": attachment.role,
            "transport": attachment.transport,
            "attachment": attachment.id,
            "client": attachment.client,
            "via": attachment.via,
            "since": self.runner.attached_at.get(attachment.id),
        }

    def _operation(self, name: str) -> dict[str, Any]:
        core = self.runner.session.operations[name]
        live: LiveOperation | None = self.runner.operations.get(name)
        return {
            "operation": name,
            "actor": core.actor.id,
            "adopted_by": core.adopted_by,
            "lane": core.lane,
            "since": self.verbs.wall(core.since),
            "status": core.state,
            "message": core.message_type,
            "preview": "" if live is None else live.preview,
        }

    def _processes(self) -> list[dict[str, Any]]:
        pid = self.kernel.pid
        if pid is None:
            return []
        try:
            root = psutil.Process(pid)
            family = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        found = []
        for process in family:
            try:
                found.append({"pid": process.pid, "name": process.name(), "parent": process.ppid()})
            except psutil.NoSuchProcess:
                continue
        return found

    # ------------------------------------------------------------------ files

    def _write_pointer(self, state: str) -> None:
        config = self.config
        pid = self.kernel.pid
        pointer = {
            "id": config.id,
            "name": self.runner.name,
            "kind": config.kind,
            "state": state,
            **process_facts(os.getpid()),
            "sockets": config.sockets,
            "link": str(Path(config.sockets) / "link.sock"),
            "workspace": config.workspace,
            "protocol": 1,
            "backend": None if pid is None else process_facts(pid),
            "spec": config.spec,
            "group": config.group,
            "created": config.created,
        }
        path = Path(config.pointer)
        with self._complaining(path):
            make_private(path.parent)  # a runtime directory may go at logout
            write_private(path, encode_json(pointer))

    def _write_session_record(self, state: str, reason: str) -> None:
        config = self.config
        record = {
            "id": config.id,
            "name": self.runner.name,
            "kind": config.kind,
            "created": config.created,
            "closed": None if state == "open" else datetime.now(UTC).isoformat(timespec="seconds"),
            "spec": config.spec,
            "workspace": config.workspace,
            "policy": self.runner.session.policy,
            "group": config.group,
            "state": state,
            "reason": reason,
        }
        path = Path(config.state) / "session.json"
        with self._complaining(path):
            write_private(path, encode_json(record))

    @contextlib.contextmanager
    def _complaining(self, path: Path) -> Iterator[None]:
        """A full disk leaves what others see as it was; it ends no session."""
        try:
            yield
        except OSError as error:
            log.error("%s cannot be written: %s", path, error)

    def _close(self) -> None:
        """Leave nothing behind: no process, no socket, no file but the record."""
        self.websockets.close_all("the session has ended")
        self.grants.close_all()
        self.link.close()
        self.kernel.abandon()
        self.kernel.process.stop_thread()
        self.journal.stop()
        try:
            self.recorder.close()
        except JournalError as error:
            log.error("the journal could not be closed cleanly: %s", error)
        if self.recorder.unavailable is not None:
            self._settle()
        self.context.destroy(linger=0)
        self.loop.close()
        if not self._has_failed:  # else it shows the session as lost until somebody has taken note
            Path(self.config.pointer).unlink(missing_ok=True)
        shutil.rmtree(self.config.sockets, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: somebody has put a file of his own there
            Path(self.config.connections).rmdir()

    def _settle(self) -> None:
        """What was to be recorded and could not be is lost: say of each operation what can be known."""
        try:
            settle(Path(self.config.state), self.config.id)
        except JournalError as error:
            log.error("the record has no end yet: %s", error)
            self._has_failed = True  # the pointer stays, and whoever tidies it away tries again


def _step_back() -> None:
    """Let what works in the kernel, and libzmq's threads that read what it prints, have a core before this thread.

    A thread has a priority of its own on Linux only. Kernels are started by a thread that is not changed: what is
    given up here could not be taken back by them.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _trim() -> None:
    """Give back what starting has left free: a session may stay for weeks."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc has no such call
            ctypes.CDLL(None).malloc_trim(0)

"""Start a session: reserve its name, make its directories, start its keeper, and undo all of it when that fails.

The keeper must outlive us, so it gets a session of its own, no descriptor but the one on which it reports, and, where
a systemd user manager runs, a transient scope: a logout or the end of our unit's cgroup would otherwise end it.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jupyter_cmdop.core.actor import check_session_name

from . import places
from .errors import SpawnFailed
from .identity import owner_name
from .registry import Record, Registry, remove_private_dir, remove_socket_dir

READY_SECONDS = 60.0
"""A keeper is ready in about a second; a cold network file system may need half a minute for its imports."""
PROGRESS_SECONDS = 1.0
END_SECONDS = 5.0
"""How long a keeper that failed to become ready has to end after SIGTERM."""
LOG_LINES = 10
KEEPER = (sys.executable, "-m", "jupyter_cmdop.keeper")
_READY_BYTES = 64 * 1024

# What would make the keeper, or the kernel below it, believe that it is somebody else's child. A grant file is the
# caller's credential: code in the new session has no business with it, and is recognised by its ancestors anyway.
_NOT_INHERITED = frozenset(
    {
        "CMDOP_GRANT_FILE",
        "JPY_PARENT_PID",
        "JPY_INTERRUPT_EVENT",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "LISTEN_PID",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "_ARGCOMPLETE",
    }
)

Progress = Callable[[float], None]
"""Called about each second with the seconds that have passed since the keeper was started."""


class _Keeper(subprocess.Popen[bytes]):
    """A child that is meant to outlive us: leaving it behind is no mistake to warn of."""

    def __del__(self) -> None:
        self.returncode = self.returncode or 0


_children: list[_Keeper] = []


@dataclass(frozen=True, slots=True)
class Spawned:
    id: str
    name: str
    link: str
    pid: int
    spec: str


def reap() -> None:
    """Collect keepers of ours that have ended, so that they do not stay zombies in a long-lived process."""
    _children[:] = [child for child in _children if child.poll() is None]


def spawn(
    name: str,
    *,
    spec: str = "python3",
    policy: str | None = None,
    cwd: str | Path | None = None,
    group: str | None = None,
    setup: str | None = None,
    env: Mapping[str, str] | None = None,
    workspace: str | None = None,
    session_id: str | None = None,
    opened_by: str | None = None,
    ready_seconds: float = READY_SECONDS,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> Spawned:
    """Make a session and wait until its keeper answers.

    Args:
        setup: code that runs first, as an operation of the owner.
        env: variables for the kernel, on top of what it inherits.
        opened_by: id of the actor who asked for it, where that is not the owner.
        workspace: real path of the directory whose Jupyter server lists it; the working directory unless given.

    Raises:
        BadName: `name` may not name a session.
        Refused: `name_taken`.
        IdTaken: a session, live or past, has `session_id`.
        SpawnFailed: with the keeper's message and the end of its log. Nothing is left behind.
        PlaceError: a directory cannot be made or trusted.
    """
    check_session_name(name)
    reap()
    directory = _working_directory(cwd)
    registry = registry or Registry.of_user()
    workspace = workspace or directory
    sockets = places.make_socket_dir()
    chosen_id = session_id or str(uuid.uuid4())
    try:
        pointer = registry.reserve(
            name,
            session_id=chosen_id,
            sockets=str(sockets),
            workspace=workspace,
            spec=spec,
            group=group,
        )
    except BaseException:
        remove_socket_dir(sockets)
        raise
    try:
        state = _make_state(registry, pointer.id)
        registry.write_record(
            Record(
                id=pointer.id,
                name=name,
                created=pointer.created,
                spec=spec,
                workspace=workspace,
                policy=policy,
                group=group,
            )
        )
        owner, full_name = owner_name()
        config: dict[str, object] = {
            "id": pointer.id,
            "name": name,
            "kind": "kernel",
            "spec": spec,
            "cwd": directory,
            "workspace": workspace,
            "group": group,
            "env": dict(env or {}),
            "owner": {"id": owner, "name": full_name},
            "setup": setup,
            "sockets": str(sockets),
            "state": str(state),
            "connections": str(places.private_dir(registry.connections_dir(pointer.id))),
            "pointer": str(registry.pointer_path(pointer.id)),
            "created": pointer.created,
            "opened_by": opened_by,
        }
        idle_hours = os.environ.get("CMDOP_IDLE_HOURS")
        if idle_hours is not None:
            config["idle_hours"] = _hours(idle_hours)
        if policy is not None:
            config["policy"] = policy
        places.write_private_file(state / "config.json", msgspec.json.encode(config))
        return _start(_Plan(pointer.id, name, spec, state, sockets, ready_seconds, progress))
    except BaseException:
        _undo(registry, pointer.id, sockets)
        raise


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours < float("inf"):
        raise SpawnFailed(
            f"CMDOP_IDLE_HOURS is {text!r}: it is the number of hours after which an unused session ends",
            next=("CMDOP_IDLE_HOURS=24", "CMDOP_IDLE_HOURS=0 for never"),
        )
    return hours


def _working_directory(cwd: str | Path | None) -> str:
    try:
        directory = os.path.realpath(cwd if cwd is not None else os.getcwd())
    except FileNotFoundError as error:
        raise SpawnFailed(
            "the directory you are in has been removed", next=("cd somewhere else, or give --cwd",)
        ) from error
    if not os.path.isdir(directory):
        raise SpawnFailed(f"{directory} is no directory", next=("give --cwd a directory that exists",))
    return directory


def _make_state(registry: Registry, session_id: str) -> Path:
    if registry.sessions.parent == places.state_dir():
        places.private_dir(registry.sessions.parent)
    return places.private_dir(places.private_dir(registry.sessions) / session_id)


def _undo(registry: Registry, session_id: str, sockets: Path) -> None:
    registry.remove(session_id)
    remove_socket_dir(sockets)
    remove_private_dir(registry.connections_dir(session_id))
    remove_private_dir(registry.sessions / session_id)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be started, once its files are there."""

    id: str
    name: str
    spec: str
    state: Path
    sockets: Path
    ready_seconds: float
    progress: Progress | None


def _start(plan: _Plan) -> Spawned:
    try:
        return _attempt(plan, scope_prefix(plan.id))
    except _ScopeUnusable:
        return _attempt(plan, [])


class _ScopeUnusable(Exception):
    """systemd-run ended before it became the keeper; without it the keeper may still start."""


def scope_prefix(session_id: str) -> list[str]:
    """The words before the keeper's command that put it into a scope of the user manager; empty where none runs."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if not sys.platform.startswith("linux") or not runtime:
        return []
    program = shutil.which("systemd-run")
    if program is None or not os.path.exists(os.path.join(runtime, "systemd", "private")):
        return []
    unit = f"--unit=cmdop-{session_id[:8]}"
    return [program, "--user", "--scope", "--quiet", "--collect", unit, "--"]


def _attempt(plan: _Plan, scope: list[str]) -> Spawned:
    ready, report = os.pipe()
    try:
        child = _launch(scope, plan.state, report)
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(report)
    try:
        line = _read_report(ready, plan)
        message = _report_of(line)
        if "ready" not in message:
            status = None if line else _status_of(child)
            if scope and status and not _has_log(plan.state):
                raise _ScopeUnusable
            raise _failure(message.get("error"), plan.state, line, status=status)
    except BaseException:
        _end(child)
        raise
    finally:
        os.close(ready)
    _children.append(child)
    return Spawned(
        id=plan.id,
        name=plan.name,
        link=str(message.get("link") or plan.sockets / "link.sock"),
        pid=int(message.get("pid", child.pid)),
        spec=plan.spec,
    )


def _launch(scope: list[str], state: Path, report: int) -> _Keeper:
    command = [*scope, *KEEPER, "--config", str(state / "config.json"), "--ready-fd", str(report)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(state / "keeper.log", flags, 0o600)
    try:
        return _Keeper(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            close_fds=True,
            pass_fds=(report,),
            start_new_session=True,
            cwd="/",  # the kernel has its own; the keeper must not keep a mount busy
            env={key: value for key, value in os.environ.items() if key not in _NOT_INHERITED},
        )
    except OSError as error:
        raise SpawnFailed(f"the keeper cannot be started ({error.strerror})") from error
    finally:
        os.close(log)


def _read_report(ready: int, plan: _Plan) -> bytes:
    """The keeper's one line; empty when it ended before it wrote it.

    Raises:
        SpawnFailed: time is up.
    """
    begun = time.monotonic()
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(ready, selectors.EVENT_READ)
        while (passed := time.monotonic() - begun) < plan.ready_seconds:
            if not selector.select(min(PROGRESS_SECONDS, plan.ready_seconds - passed)):
                if plan.progress is not None:
                    plan.progress(time.monotonic() - begun)
                continue
            data = os.read(ready, _READY_BYTES)
            line += data
            if not data or b"\n" in line or len(line) > _READY_BYTES:
                return line
    raise SpawnFailed(
        f"the keeper was not ready after {plan.ready_seconds:.0f} s",
        code="not_ready",
        next=("try again", "jupyter cmdop doctor"),
    )


def _report_of(line: bytes) -> dict[str, Any]:
    try:
        message = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _status_of(child: _Keeper) -> int | None:
    """How a process ended that has closed the descriptor on which it reports; None when it goes on all the same."""
    try:
        return child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _failure(error: object, state: Path, line: bytes, *, status: int | None) -> SpawnFailed:
    log = last_lines(state / "keeper.log")
    if isinstance(error, dict):
        return SpawnFailed(
            str(error.get("message", "the keeper gave no reason")),
            code=str(error.get("code", "spawn_failed")),
            log=log,
            next=_advice(str(error.get("code", ""))),
        )
    if line:
        message = "the keeper reported something that is no report"
    elif status is None:
        message = "the keeper closed its report without saying that it is ready"
    else:
        message = f"the keeper ended before it was ready (exit status {status})"
    return SpawnFailed(message, log=log, next=("jupyter cmdop doctor",))


def _advice(code: str) -> tuple[str, ...]:
    return (
        ("jupyter kernelspec list", "jupyter cmdop doctor") if "kernel" in code else ("jupyter cmdop doctor",)
    )


def last_lines(path: Path, count: int = LOG_LINES) -> tuple[str, ...]:
    """The end of a log; empty when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16 * 1024))
            return tuple(file.read().decode("utf-8", "replace").splitlines()[-count:])
    except OSError:
        return ()


def _has_log(state: Path) -> bool:
    """Whether Python has begun: systemd-run's own complaint is one line that names it."""
    lines = last_lines(state / "keeper.log")
    return any("Traceback" in line or "jupyter_cmdop" in line for line in lines)


def _end(child: _Keeper) -> None:
    """End a keeper that did not become ready, and wait for it; it leads a process group that we made."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            continue

"""Which sessions there are: pointers to keepers that should be alive, and records of all sessions.

A pointer (`<uuid>.json` in the runtime directory) exists from the moment a name is reserved until the session is
closed or swept; a record (`session.json` beside the journal) exists for ever. Every change of a pointer happens under
one lock, so that a name is given once. Reading takes no lock: files are replaced whole.

Liveness has two halves. The facts (pid, start time, boot, host, zombie) cost microseconds and can prove a session
*lost*; only an answer on the link proves it *alive* (see `census`). A sweep acts on facts alone, looks again under the
lock, and leaves everything that it cannot prove lost: a session of another host that shares this home directory is
not ours to judge.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from jupyter_cmdop.core.refusal import Refusal

from . import places, processes
from .errors import IdTaken, PlaceError, Refused, UnknownSession

LOCK_SECONDS = 10.0
"""How long a change waits for the registry lock; its holders only write one small file."""
LOST_SECONDS = 24 * 3600.0
"""How long a session that was tidied away by itself is still told of, unless a person has put it away."""
SETTLER = (sys.executable, "-m", "jupyter_cmdop.keeper.settle")
SETTLE_SECONDS = 30.0
STARTING_SECONDS = 120.0
"""A reserved name whose spawner is gone is given up after this; its spawner would have removed it."""

T = TypeVar("T")
State = Literal["alive", "starting", "unresponsive", "lost"]
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)


class ProcessRef(msgspec.Struct, frozen=True, kw_only=True):
    """A process that a pid alone would not name for sure."""

    pid: int
    start_time: str | int | float | None = None


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str = "kernel"
    state: str = ""
    pid: int | None = None
    start_time: str | int | float | None = None
    boot_id: str = ""
    host: str = ""
    sockets: str | None = None
    link: str | None = None
    workspace: str | None = None
    protocol: int | None = None
    backend: ProcessRef | None = None
    spec: str | None = None
    group: str | None = None
    created: str = ""
    spawner: ProcessRef | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    kind: str = "kernel"
    created: str = ""
    closed: str | None = None
    spec: str | None = None
    workspace: str | None = None
    policy: str | None = None
    group: str | None = None
    state: str = "open"
    reason: str | None = None
    put_away: bool = False  # somebody has seen that it is lost


@dataclass(frozen=True, slots=True)
class Liveness:
    """What is known about a session's keeper, and why."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for: a pointer when a keeper should be there, else only the record of a past session."""

    id: str
    name: str
    pointer: Pointer | None
    record: Record | None
    liveness: Liveness

    @property
    def is_live(self) -> bool:
        return self.pointer is not None and self.liveness.state != "lost"


@dataclass(frozen=True, slots=True)
class Swept:
    """A lost session that has been tidied away; its journal stays."""

    id: str
    name: str
    reason: str


def facts(pointer: Pointer) -> Liveness:
    """Judge without asking the keeper; `alive` here means only that nothing speaks against it."""
    here = processes.host_name()
    if pointer.host and pointer.host != here:
        return Liveness("unresponsive", f"it runs on host {pointer.host}, this is {here}: ask there")
    if pointer.boot_id and (boot := processes.boot_id()) and pointer.boot_id != boot:
        return Liveness("lost", "the machine has been started again since")
    if pointer.pid is None:
        return _facts_of_spawn(pointer)
    problem = _process_problem(pointer.pid, pointer.start_time)
    if problem:
        return Liveness("lost", f"its keeper {problem}")
    if pointer.link is None:
        return Liveness("starting", f"its keeper (process {pointer.pid}) is starting")
    return Liveness("alive")


def _facts_of_spawn(pointer: Pointer) -> Liveness:
    if pointer.spawner is not None:
        if not _process_problem(pointer.spawner.pid, pointer.spawner.start_time):
            return Liveness("starting", f"process {pointer.spawner.pid} is starting its keeper")
        # The spawner may have been killed after its keeper began and before that wrote its pid.
        if _age_seconds(pointer.created) < STARTING_SECONDS:
            return Liveness("starting", "its keeper has not reported yet")
    elif _age_seconds(pointer.created) < STARTING_SECONDS:
        return Liveness("starting", "its keeper has not reported yet")
    return Liveness("lost", "its keeper never started")


def _process_problem(pid: int, start_time: str | float | None) -> str:
    state = processes.process_state(pid)
    if state == "gone":
        return f"(process {pid}) is gone"
    if state == "zombie":
        return f"(process {pid}) has ended"
    if start_time is not None and not _same_start(start_time, processes.start_time(pid)):
        return f"is gone; process {pid} is another one now"
    return ""


def _same_start(known: str | float, actual: str | None) -> bool:
    if actual is None:
        return False
    # Clock ticks may have been written as a number, psutil's seconds with another number of digits.
    if str(known) == actual:
        return True
    try:
        return abs(float(known) - float(actual)) < 0.01
    except (ValueError, OverflowError):  # no number, or one that no clock has shown
        return False


def _age_seconds(created: str) -> float:
    try:
        return time.time() - datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError, OSError):  # no date, or one that the system's calendar does not have
        return STARTING_SECONDS + 1


def now_iso() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Registry:
    """The two directories; no state of its own, so that it can be made for each question."""

    pointers: Path
    sessions: Path

    @classmethod
    def of_user(cls) -> Registry:
        return cls(pointers=places.pointers_dir(), sessions=places.sessions_dir())

    # --- reading

    def list_pointers(self) -> list[Pointer]:
        """All pointers, by name; a file that is no pointer is skipped.

        Raises:
            PlaceError: the directory is not ours alone, so what is in it proves nothing.
        """
        if not os.path.lexists(self.pointers):
            return []
        places.check_private_dir(self.pointers)
        found = []
        for path in self.pointers.glob("*.json"):
            data = _read_json(path)
            pointer = _convert(Pointer, data)
            if pointer is not None and pointer.id == path.stem and _UUID.fullmatch(pointer.id):
                found.append(pointer)
        return sorted(found, key=lambda pointer: pointer.name.casefold())

    def list_records(self) -> list[Record]:
        """All records, the youngest first.

        Raises:
            PlaceError: the directory cannot be read, or is not ours alone, so that what is in it proves nothing.
        """
        try:
            if not self._may_believe_records():
                return []
            paths = list(self.sessions.glob("*/session.json"))
        except OSError as error:
            raise self._unreadable(error) from error
        records = []
        for path in paths:
            record = _convert(Record, _read_json(path))
            if record is not None and record.id == path.parent.name:
                records.append(record)
        return sorted(records, key=lambda record: record.closed or record.created, reverse=True)

    def list_lost(self) -> list[Record]:
        """Those that were lost lately, were tidied away, and nobody has put away; the youngest first.

        A Jupyter server tidies at once. Whoever looks in the morning shall learn what happened in the night.
        """
        since = time.time() - LOST_SECONDS
        records = []
        try:
            os.lstat(self.sessions)
        except OSError:  # where nothing can be read nothing of ours was lost: what lives is told all the same
            return []
        paths = list(self.sessions.glob("*/session.json")) if self._may_believe_records() else []
        for path in paths:
            try:
                if path.stat().st_mtime < since:
                    continue
            except OSError:
                continue
            record = _convert(Record, _read_json(path))
            if (
                record is not None
                and record.id == path.parent.name
                and record.state == "lost"
                and not record.put_away
            ):
                records.append(record)
        return sorted(records, key=lambda record: record.closed or record.created, reverse=True)

    def record(self, session_id: str) -> Record | None:
        if not _UUID.fullmatch(session_id) or not self._may_believe_records():
            return None
        return _convert(Record, _read_json(self.sessions / session_id / "session.json"))

    def _unreadable(self, error: OSError) -> PlaceError:
        advice = "choose another with CMDOP_STATE_DIR"
        return PlaceError(self.sessions, f"cannot be read ({error.strerror})", advice)

    def _may_believe_records(self) -> bool:
        """Whether there are records; raises PlaceError when somebody else could have written them."""
        try:
            os.lstat(self.sessions)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unreadable(error) from error
        if self.sessions.parent == places.state_dir():
            places.check_private_dir(self.sessions.parent)
        places.check_private_dir(self.sessions)
        return True

    def resolve(self, name: str) -> Found:
        """Find the live session of this name, else the last that bore it.

        Args:
            name: a name, `NAME@<uuid prefix>`, or a whole uuid.

        Raises:
            UnknownSession: nothing bears it; `next` holds names that look alike.
        """
        wanted, _, prefix = name.partition("@")
        prefix = prefix.lower()
        as_id = _as_uuid(name)

        def matches(session_id: str, session_name: str) -> bool:
            if as_id is not None and session_id == as_id:
                return True
            return session_name.casefold() == wanted.casefold() and session_id.startswith(prefix)

        pointers = [pointer for pointer in self.list_pointers() if matches(pointer.id, pointer.name)]
        judged = [(pointer, facts(pointer)) for pointer in pointers]
        for pointer, liveness in judged:
            if liveness.state != "lost":
                return Found(pointer.id, pointer.name, pointer, None, liveness)
        records = [record for record in self.list_records() if matches(record.id, record.name)]
        if prefix and len({record.id for record in records}) > 1:
            options = tuple(f"{record.name}@{record.id[:13]}" for record in records[:5])
            raise UnknownSession(
                name, reason=f"{name!r} fits {len(records)} sessions: give more of the id", next=options
            )
        for record in records:
            lost = next(((p, verdict) for p, verdict in judged if p.id == record.id), None)
            return Found(
                record.id,
                record.name,
                lost[0] if lost else None,
                record,
                lost[1] if lost else Liveness("lost", past_reason(record)),
            )
        for pointer, liveness in judged:
            return Found(pointer.id, pointer.name, pointer, None, liveness)
        raise UnknownSession(name, next=self._alike(wanted))

    def _alike(self, name: str) -> tuple[str, ...]:
        import difflib

        names = sorted({pointer.name for pointer in self.list_pointers()})
        close = difflib.get_close_matches(name, names, n=3)
        if close:
            return (f"did you mean {' or '.join(close)}?",)
        return ("jupyter cmdop ls", f"jupyter cmdop new {name}")

    # --- changing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the registry lock.

        Raises:
            PlaceError: somebody else has held it for `LOCK_SECONDS`, or the file system has no locks.
        """
        places.private_dir(self.pointers)
        path = self.pointers / "registry.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor, path)
            yield
        finally:
            os.close(descriptor)  # which also unlocks

    def reserve(
        self,
        name: str,
        *,
        session_id: str | None = None,
        kind: str = "kernel",
        sockets: str | None = None,
        workspace: str | None = None,
        spec: str | None = None,
        group: str | None = None,
    ) -> Pointer:
        """Give `name` to a new session whose keeper is about to be started, at once or not at all.

        Raises:
            Refused: `name_taken`, by a session that is not known to be lost; names that differ only in case clash.
            IdTaken: a session, live or past, has `session_id`.
        """
        pointer = self._starting(
            name,
            session_id=session_id,
            kind=kind,
            sockets=sockets,
            workspace=workspace,
            spec=spec,
            group=group,
        )
        with self.locked():
            self._free_name(name, except_id=pointer.id)
            if os.path.lexists(self.pointer_path(pointer.id)) or os.path.lexists(self.sessions / pointer.id):
                raise IdTaken(f"a session has or had the id {pointer.id}")
            self._write(pointer.id, msgspec.to_builtins(pointer))
        return pointer

    def _starting(self, name: str, *, session_id: str | None = None, **fields: str | None) -> Pointer:
        import uuid

        pid = os.getpid()
        return msgspec.convert(
            {
                **fields,
                "id": session_id or str(uuid.uuid4()),
                "name": name,
                "state": "starting",
                "boot_id": processes.boot_id(),
                "host": processes.host_name(),
                "created": now_iso(),
                "spawner": {"pid": pid, "start_time": processes.start_time(pid)},
            },
            Pointer,
        )

    def _free_name(self, name: str, *, except_id: str) -> None:
        for other in self.list_pointers():
            if other.name.casefold() != name.casefold() or other.id == except_id:
                continue
            liveness = facts(other)
            if liveness.state != "lost":
                raise Refused(_name_taken(other, liveness))
            self.settle(other.id)
            self._tidy(other, liveness.reason)

    def update(self, session_id: str, **changes: Any) -> None:
        """Change fields of a pointer; fields of a newer version stay. Without a pointer nothing happens.

        Once the keeper runs the pointer is its own, and nobody else may change it.
        """
        with self.locked():
            data = _read_json(self._path(session_id))
            if data is not None:
                self._write(session_id, {**data, **changes})

    @contextmanager
    def holding(self, name: str, *, session_id: str) -> Iterator[None]:
        """Keep `name` from everybody else while this session takes it over from another name.

        Raises:
            Refused: `name_taken`.
        """
        with self.locked():
            self._free_name(name, except_id=session_id)
            placeholder = self._starting(name)
            self._write(placeholder.id, msgspec.to_builtins(placeholder))
        try:
            yield
        finally:
            self.remove(placeholder.id)

    def remove(self, session_id: str) -> None:
        with self.locked():
            self._path(session_id).unlink(missing_ok=True)

    def write_record(self, record: Record) -> None:
        directory = places.private_dir(places.private_dir(self.sessions) / record.id)
        places.write_private_file(directory / "session.json", msgspec.json.encode(record))

    def sweep(self, *, put_away: bool = False) -> list[Swept]:
        """Tidy away what is proved lost: pointer and sockets go, the record says why, the journal stays.

        Args:
            put_away: a person asks for it: what is lost, also what was tidied away before, leaves `ls`.

        Returns:
            What was tidied or put away now.
        """
        swept = []
        if os.path.lexists(self.pointers):
            swept = self._sweep()
        if put_away:
            swept += self._put_away({item.id for item in swept})
        return swept

    def _put_away(self, known: set[str]) -> list[Swept]:
        lost = self.list_lost()
        for record in lost:
            path = self.sessions / record.id / "session.json"
            data = _read_json(path)
            if data is not None:
                places.write_private_file(path, msgspec.json.encode({**data, "put_away": True}))
        return [Swept(r.id, r.name, past_reason(r)) for r in lost if r.id not in known]

    def _sweep(self) -> list[Swept]:
        swept = []
        for pointer in self.list_pointers():  # not under the lock: a long journal takes its time
            if facts(pointer).state == "lost":
                self.settle(pointer.id)
        with self.locked():
            for pointer in self.list_pointers():
                liveness = facts(pointer)
                if liveness.state == "lost":
                    self._tidy(pointer, liveness.reason)
                    swept.append(Swept(pointer.id, pointer.name, liveness.reason))
            # Under the lock a directory of connection files without a pointer belongs to nobody any more.
            for path in self.pointers.iterdir():
                if _UUID.fullmatch(path.name) and not self._path(path.name).exists():
                    remove_private_dir(path)
        return swept

    def settle(self, session_id: str) -> None:
        """Let the journal of a lost session say how each operation ended, as far as anybody can know.

        What cannot be settled (a damaged journal, a full disk) stays as it is: nothing in it becomes wrong.
        """
        import subprocess

        directory = self.sessions / session_id if _UUID.fullmatch(session_id) else None
        if directory is None or not (directory / "journal.sqlite").is_file():
            return
        try:
            subprocess.run(
                [*SETTLER, str(directory), session_id],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                timeout=SETTLE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return

    def _tidy(self, pointer: Pointer, reason: str) -> None:
        record = (
            _read_json(self.sessions / pointer.id / "session.json") if _UUID.fullmatch(pointer.id) else None
        )
        if record is not None and record.get("state", "open") == "open":
            changed = {**record, "state": "lost", "reason": reason, "closed": now_iso()}
            places.write_private_file(
                self.sessions / pointer.id / "session.json", msgspec.json.encode(changed)
            )
        if pointer.sockets and places.is_in_socket_root(pointer.sockets):
            still_used = any(
                other.sockets == pointer.sockets and other.id != pointer.id for other in self.list_pointers()
            )
            if not still_used:
                remove_socket_dir(pointer.sockets)
        self._path(pointer.id).unlink(missing_ok=True)
        remove_private_dir(self.connections_dir(pointer.id))

    def connections_dir(self, session_id: str) -> Path:
        """Where the keeper of this session writes the connection files of its grants."""
        return self._path(session_id).with_suffix("")

    def pointer_path(self, session_id: str) -> Path:
        return self._path(session_id)

    def _path(self, session_id: str) -> Path:
        if not _UUID.fullmatch(session_id):
            raise AssertionError(f"{session_id!r} is no uuid, so it names no pointer")
        return self.pointers / f"{session_id}.json"

    def _write(self, session_id: str, data: dict[str, Any]) -> None:
        places.write_private_file(self._path(session_id), msgspec.json.encode(data))


def remove_socket_dir(path: str | Path) -> None:
    """Remove a directory below our socket root, if it is ours alone; a link there is left as it is."""
    try:
        places.check_private_dir(places.socket_root())
    except PlaceError:
        return
    remove_private_dir(Path(path))


def remove_private_dir(path: Path) -> None:
    """Remove a directory that is ours alone, with what is in it; anything else is left as it is."""
    import shutil

    try:
        places.check_private_dir(path)
    except PlaceError:
        return
    shutil.rmtree(path, ignore_errors=True)


def past_reason(record: Record) -> str:
    """Why a session without a pointer is not there."""
    if record.state == "closed":
        return f"it was closed {record.closed or ''}".rstrip()
    if record.state == "lost":
        return record.reason or "its keeper is gone"
    return "nothing points to its keeper any more"


def _name_taken(other: Pointer, liveness: Liveness) -> Refusal:
    where = f" ({liveness.reason})" if liveness.reason else ""
    return Refusal(
        code="name_taken",
        message=f"a session is called {other.name} already{where}",
        next=(f"jupyter cmdop attach {other.name}", "choose another name"),
    )


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                raise PlaceError(
                    path,
                    f"this file system has no locks ({error.strerror})",
                    "set JUPYTER_RUNTIME_DIR to a local directory",
                ) from error
        if time.monotonic() > deadline:
            raise PlaceError(
                path, f"another process has held this lock for {LOCK_SECONDS:.0f} s", f"see: fuser {path}"
            )
        time.sleep(0.005)


def _as_uuid(text: str) -> str | None:
    text = text.lower()
    if len(text) == 32 and text.isalnum():
        text = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return text if _UUID.fullmatch(text) else None


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object of a regular file that no link leads to, or None."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        with open(descriptor, "rb") as file:
            data = msgspec.json.decode(file.read(1 << 20))
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _convert(kind: type[T], data: object) -> T | None:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return None

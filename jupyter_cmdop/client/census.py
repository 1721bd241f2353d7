"""Ask all keepers at once how they are: one hello each, half a second for all of them together."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from dataclasses import dataclass, field

from . import places
from .errors import ClientError, KeeperGone, PlaceError
from .identity import OWNER
from .protocol import LinkProtocol, Welcome
from .registry import Liveness, Pointer, Record, Registry, facts, past_reason
from .shapes import LsItem, Status, read_as
from .sockets import check_peer

ANSWER_SECONDS = 0.5
_READ_BYTES = 64 * 1024
_CLIENT = "jupyter cmdop ls"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one keeper said, or why it said nothing."""

    pointer: Pointer
    liveness: Liveness
    welcome: Welcome | None = None


@dataclass(slots=True)
class _Caller:
    """One link that is being asked."""

    pointer: Pointer
    socket: socket.socket
    path: str
    protocol: LinkProtocol = field(default_factory=LinkProtocol)
    is_connected: bool = False
    outbox: bytes = b""

    def __post_init__(self) -> None:
        self.outbox = self.protocol.hello(client=_CLIENT, identity=OWNER, persistent=False)

    def advance(self) -> bool:
        """Do what can be done without waiting; True when there is nothing more to wait for."""
        try:
            return self._try_connect() and self._try_talk()
        except OSError as error:
            self.protocol.closed(f"nobody listens on its link ({error.strerror})")
        except PlaceError as error:
            self.protocol.closed(str(error))
        return True

    def _try_connect(self) -> bool:
        if self.is_connected:
            return True
        code = self.socket.connect_ex(self.path)
        if code in (errno.EAGAIN, errno.EINPROGRESS):  # its backlog is full: it has not accepted for a while
            return False
        if code not in (0, errno.EISCONN):
            raise OSError(code, errno.errorcode.get(code, "error"))
        check_peer(self.socket, self.path)
        self.is_connected = True
        return True

    def _try_talk(self) -> bool:
        try:
            if self.outbox:
                self.outbox = self.outbox[self.socket.send(self.outbox) :]
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.protocol.closed()
        self.protocol.feed(data)
        return self.protocol.welcome is not None or self.protocol.failure is not None


def ask_all(pointers: list[Pointer], *, timeout_seconds: float = ANSWER_SECONDS) -> list[Answer]:
    """Ask every keeper that may be alive, all at the same time; answers in the order of `pointers`."""
    judged = {pointer.id: facts(pointer) for pointer in pointers}
    callers = [
        _call(pointer)
        for pointer in pointers
        if judged[pointer.id].state == "alive" and pointer.link is not None
    ]
    try:
        _advance_all([caller for caller in callers if caller is not None], timeout_seconds)
        by_id = {caller.pointer.id: caller for caller in callers if caller is not None}
        return [_answer(pointer, judged[pointer.id], by_id.get(pointer.id)) for pointer in pointers]
    finally:
        for caller in callers:
            if caller is not None:
                caller.socket.close()


def _call(pointer: Pointer) -> _Caller | None:
    try:
        path = places.check_socket_path(pointer.link or "")
    except PlaceError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    return _Caller(pointer, connection, path)


def _advance_all(callers: list[_Caller], timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds
    waiting = [caller for caller in callers if not caller.advance()]
    with selectors.DefaultSelector() as selector:
        for caller in waiting:
            selector.register(caller.socket, selectors.EVENT_READ, caller)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            # An unconnected socket is not readable in a useful way, so those are tried again by the clock.
            pending = any(not caller.is_connected for caller in waiting)
            for key, _ in selector.select(min(left, 0.02) if pending else left):
                if key.data.advance():
                    selector.unregister(key.fileobj)
            if pending:
                for key in list(selector.get_map().values()):
                    if not key.data.is_connected and key.data.advance():
                        selector.unregister(key.fileobj)


def _answer(pointer: Pointer, liveness: Liveness, caller: _Caller | None) -> Answer:
    if liveness.state != "alive":
        return Answer(pointer, liveness)
    if caller is None:
        return Answer(pointer, Liveness("unresponsive", "its link has a path that no socket can have"))
    if caller.protocol.welcome is not None:
        return Answer(pointer, liveness, caller.protocol.welcome)
    failure: ClientError = caller.protocol.failure or KeeperGone(
        f"process {pointer.pid} runs and did not answer within {ANSWER_SECONDS:.1f} s"
    )
    # It may have ended while it was asked.
    now = facts(pointer)
    return Answer(pointer, now if now.state == "lost" else Liveness("unresponsive", failure.message))


def take_census(registry: Registry, *, past: bool = False) -> list[LsItem]:
    """All live, starting, silent and lost sessions by name, then those that ended, youngest first.

    Args:
        past: all that ended; else those that were lost within a day and nobody has put away.
    """
    pointers = registry.list_pointers()
    items = [describe(answer) for answer in ask_all(pointers)]
    known = {pointer.id for pointer in pointers}
    if past:
        return items + [describe_past(record) for record in registry.list_records() if record.id not in known]
    # One whose name somebody has given to another session since is not missed any more.
    names = {pointer.name.casefold() for pointer in pointers}
    for record in registry.list_lost():
        if record.id not in known and record.name.casefold() not in names:
            names.add(record.name.casefold())
            items.append(describe_past(record))
    return items


def describe(answer: Answer) -> LsItem:
    pointer = answer.pointer
    if answer.welcome is None:
        return LsItem(
            name=pointer.name,
            id=pointer.id,
            kind=pointer.kind,
            state=answer.liveness.state,
            kernel_id=_kernel_id(pointer.kind, pointer.id),
            spec=pointer.spec,
            group=pointer.group,
            workspace=pointer.workspace,
            created=pointer.created or None,
            reason=answer.liveness.reason or None,
        )
    try:
        status = read_as(Status, answer.welcome.session)
    except ClientError as error:
        return LsItem(
            name=pointer.name, id=pointer.id, kind=pointer.kind, state="unresponsive", reason=str(error)
        )
    return LsItem(
        name=status.name,
        id=status.id,
        kind=status.kind,
        state=status.state,
        driver=status.driver,
        generation=status.generation,
        incarnation=status.incarnation,
        policy=status.policy,
        kernel_id=status.kernel_id,
        spec=status.spec,
        group=status.group or pointer.group,
        workspace=status.workspace,
        execution_state=status.execution_state,
        running=len(status.running),
        queued=len(status.queue),
        attached=len(status.presence),
        input_pending=status.pending_input is not None,
        created=pointer.created or None,
        reason=status.reason,
    )


def describe_past(record: Record) -> LsItem:
    return LsItem(
        name=record.name,
        id=record.id,
        kind=record.kind,
        state="closed" if record.state == "closed" else "lost",
        policy=record.policy,
        kernel_id=_kernel_id(record.kind, record.id),
        spec=record.spec,
        group=record.group,
        workspace=record.workspace,
        created=record.created or None,
        reason=past_reason(record),
    )


def status_of(item: LsItem, reason: str | None) -> Status:
    """What can be said of a session that nobody can be asked about."""
    return Status(
        name=item.name,
        id=item.id,
        kind=item.kind,
        state=item.state,
        policy=item.policy,
        kernel_id=item.kernel_id,
        spec=item.spec,
        group=item.group,
        workspace=item.workspace,
        reason=reason,
    )


def _kernel_id(kind: str, session_id: str) -> str | None:
    return session_id if kind == "kernel" else None

"""The keeper's Unix socket: who connected, his frames in and out, bounded; what he asks is in `link_verbs`."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..core import events as ev
from ..core.actor import ACTOR_KINDS, Actor, ActorKind, BadName, check_actor_id
from ..core.grants import Attachment, Role
from ..core.refusal import Refusal
from ..wire.errors import WireError
from ..wire.link import (
    OLDEST_PROTOCOL,
    PROTOCOL,
    FrameDecoder,
    encode_frame,
    encode_spilling,
    spilled_head,
    unspill,
)
from .peer import Peer, peer_of

if TYPE_CHECKING:
    from .grant_endpoints import GrantEndpoints
    from .runner import Runner

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
READ_BYTES = 256 * 1024
OUTBOX_BYTES = 64 * 1024 * 1024  # a connection that does not read what it asked for is closed
PAUSE_BYTES = 1024 * 1024  # nothing more is fetched for a reader that has so much unread
REQUEST_BYTES = 256 * 1024 * 1024  # of what one request carries beyond its header
HELLO_SECONDS = 10.0  # a connection that has not said who it is by then makes room for others
LINK_BACKLOG = 128
MAX_DESCRIPTORS = 16  # handed over in one piece


class VerifiedActor(msgspec.Struct):
    """A user whom a Jupyter server, a process of the owner, has verified, and in whose name it asks."""

    id: str
    kind: str = "human"
    name: str = ""
    on_behalf_of: str | None = None
    role: Role = "peer"
    grant: str | None = None


class Hello(msgspec.Struct):
    """The client's first frame."""

    protocol: int = 0
    oldest: int = 0
    client: str = ""
    actor: str | None = None
    kind: str | None = None
    token: str | None = None
    persistent: bool = False
    verified: VerifiedActor | None = None


class LinkConnection:
    """One client on the link.

    Attributes:
        attachment: None until it has said hello.
    """

    def __init__(self, server: LinkServer, connection: socket.socket, peer: Peer) -> None:
        self._server = server
        self._socket = connection
        self.peer = peer
        self.attachment: Attachment | None = None
        self.closed = False
        self._decoder = FrameDecoder(max_payload=REQUEST_BYTES)
        self._out: list[memoryview] = []
        self._out_bytes = 0
        self._writing = False
        self._closing = False
        self.opened_at = time.monotonic()
        self.descriptors: collections.deque[int] = collections.deque()
        self.on_close: list[Callable[[], None]] = []
        self.on_drain: list[Callable[[], None]] = []
        server.runner.loop.add_reader(connection.fileno(), self._ready)

    @property
    def is_backed_up(self) -> bool:
        return self._out_bytes > PAUSE_BYTES

    def send(self, header: dict[str, Any]) -> None:
        """Queue a frame; the connection is closed when too much waits."""
        if self.closed:
            return
        try:
            frame = encode_spilling(header, "item" if "item" in header else "result")
        except WireError as error:
            log.error("an answer cannot be sent: %s", error)
            frame = encode_frame(
                {"id": header.get("id"), "error": {"code": "too_large", "message": str(error)}}
            )
        self._queue(frame)

    def send_long(self, header: dict[str, Any], key: str, value: bytes) -> None:
        """Queue a frame whose `key` is given as JSON, which is not copied."""
        if not self.closed:
            self._queue(spilled_head(header, key, len(value)), value)

    def _queue(self, *parts: bytes) -> None:
        size = sum(map(len, parts))
        self._out.extend(map(memoryview, parts))
        self._out_bytes += size
        limit = OUTBOX_BYTES + size
        # One long answer may be more than all that may wait, and does not count.
        if self._out_bytes > limit and self._out_bytes - max(map(len, self._out)) > limit:
            log.warning("a link client does not read: closed with %d bytes unread", self._out_bytes)
            self.close("it did not read")
            return
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                self._out_bytes -= sent
                if sent == len(self._out[0]):
                    self._out.pop(0)
                else:
                    self._out[0] = self._out[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.close("it has gone")
            return
        if bool(self._out) != self._writing:
            self._writing = bool(self._out)
            self._server.runner.loop.watch_writes(self._socket.fileno(), self._ready, writing=self._writing)
        if not self._out and self._closing:
            self.close("done")
        elif not self.is_backed_up and self.on_drain:
            calls, self.on_drain = self.on_drain, []
            for call in calls:
                call()

    def close_after_sending(self) -> None:
        self._closing = True
        if not self._out:
            self.close("done")

    def _ready(self) -> None:
        if self._out:
            self._flush()
        if self.closed:
            return
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, READ_BYTES, MAX_DESCRIPTORS)
            self.descriptors.extend(descriptors)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close("closed by the client")
            return
        if len(self.descriptors) > MAX_DESCRIPTORS:
            self.close("it sent descriptors that nobody asked for")
            return
        if self._closing:  # what he says after his last answer is not heard
            return
        try:
            frames = self._decoder.feed(data)
        except WireError as error:
            self.send({"error": {"code": "bad_frame", "message": str(error)}})
            self.close_after_sending()
            return
        for header, payload in frames:
            self._server.handle(self, header, payload)

    def close(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._server.runner.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        while self.descriptors:
            os.close(self.descriptors.popleft())
        self._out.clear()
        calls, self.on_close = self.on_close, []
        for call in calls:
            call()
        self._server.forget(self, reason)


Verb = Callable[[LinkConnection, int, dict[str, Any], bytes], None]


class LinkServer:
    """Listens on the link socket and knows who may come."""

    def __init__(self, runner: Runner, desk: GrantEndpoints, path: Path) -> None:
        self.runner = runner
        self._desk = desk
        self._path = path
        self.connections: set[LinkConnection] = set()
        self._count = 0
        self.verb: Callable[[LinkConnection, int, str, dict[str, Any], bytes], None] | None = None
        self.cancel: Callable[[LinkConnection, int], None] | None = None
        self.status: Callable[[], dict[str, Any]] = dict
        self._socket = self._listen()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.bind(str(self._path))
        self._path.chmod(0o600)
        listener.listen(LINK_BACKLOG)
        self.runner.loop.add_reader(listener.fileno(), self._accept)
        return listener

    def is_reachable(self) -> bool:
        return self._path.exists()

    def listen_again(self) -> None:
        """After the socket's file was removed: connections that there are go on, new ones find the new file."""
        self.runner.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._socket = self._listen()

    def _accept(self) -> None:
        for _ in range(LINK_BACKLOG):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.error("a link connection cannot be accepted: %s", error)
                return
            connection.setblocking(False)
            self._drop_silent()
            try:
                peer = peer_of(connection)
            except OSError:
                connection.close()
                continue
            if peer.uid != os.getuid() or len(self.connections) >= MAX_CONNECTIONS:
                log.warning("a link connection of uid %d (pid %s) is refused", peer.uid, peer.pid)
                connection.close()
                continue
            self.connections.add(LinkConnection(self, connection, peer))

    def excuse(self) -> None:
        """Nobody listened for a while: a hello may lie unread."""
        for connection in self.connections:
            connection.opened_at = time.monotonic()

    def _drop_silent(self) -> None:
        """Close what has been connected for long without a hello: it holds a place that somebody may need."""
        latest = time.monotonic() - HELLO_SECONDS
        for connection in [c for c in self.connections if c.attachment is None and c.opened_at < latest]:
            connection.close("it did not say who it is")

    # ------------------------------------------------------------------ frames

    def handle(self, connection: LinkConnection, header: dict[str, Any], payload: bytes) -> None:
        if connection.closed:  # by a frame before this one
            return
        if connection.attachment is None:
            self._hello(connection, header)
            return
        if "beat" in header:
            self.runner.submit(ev.Alive(connection.attachment.id))
        elif "cancel" in header:
            if self.cancel is not None and isinstance(header["cancel"], int):
                self.cancel(connection, header["cancel"])
        else:
            self._request(connection, header, payload)

    def _request(self, connection: LinkConnection, header: dict[str, Any], payload: bytes) -> None:
        number, verb = header.get("id"), header.get("verb")
        try:
            args = unspill(header, payload).get("args", {})
        except WireError:
            args = None
        if not isinstance(number, int) or not isinstance(verb, str) or not isinstance(args, dict):
            connection.send(
                {
                    "id": number if isinstance(number, int) else None,
                    "error": {
                        "code": "bad_request",
                        "message": "a request is {id: number, verb: text, args: object}",
                    },
                }
            )
            return
        if self.verb is None:
            raise AssertionError("the link has no verbs")
        if connection.attachment is not None and connection.attachment.persistent:
            self.runner.submit(ev.Alive(connection.attachment.id))
        self.verb(connection, number, verb, args, payload)

    # ------------------------------------------------------------------ who it is

    def _hello(self, connection: LinkConnection, header: dict[str, Any]) -> None:
        try:
            hello = msgspec.convert(header.get("hello"), Hello)
        except msgspec.ValidationError as error:
            self._turn_away(connection, Refusal("unsupported", f"the first frame must be a hello: {error}"))
            return
        if hello.protocol < OLDEST_PROTOCOL or hello.oldest > PROTOCOL:
            self._turn_away(
                connection,
                Refusal(
                    "unsupported",
                    f"this keeper speaks link protocol {OLDEST_PROTOCOL} to {PROTOCOL}, the client {hello.oldest} to "
                    f"{hello.protocol}; the journal can still be read",
                    next=(f"jupyter cmdop log {self.runner.name}", "pip install --upgrade jupyter_cmdop"),
                ),
            )
            return
        found = self._identify(connection.peer, hello)
        if isinstance(found, Refusal):
            self.runner.note(
                "refused",
                data={"code": found.code, "message": found.message, "what": "hello"},
                basis="intended",
            )
            self._turn_away(connection, found)
            return
        actor, role, grant, via = found
        self._count += 1
        attachment = Attachment(
            f"l{self._count}",
            actor,
            role,
            "link",
            grant,
            persistent=hello.persistent,
            client=hello.client[:200],
            via=via,
        )
        self.runner.submit(ev.Attach(attachment))
        connection.attachment = attachment
        connection.send(
            {
                "hello": {
                    "protocol": min(PROTOCOL, hello.protocol),
                    "session": self.status(),
                    "attachment": attachment.id,
                    "actor": {
                        "id": actor.id,
                        "kind": actor.kind,
                        "name": actor.display_name,
                        "on_behalf_of": actor.on_behalf_of,
                    },
                    "rights": sorted(attachment.rights),
                    "level": "cooperative",
                    "version": __version__,
                }
            }
        )

    def _turn_away(self, connection: LinkConnection, refusal: Refusal) -> None:
        connection.send({"refusal": refusal.to_dict()})
        connection.close_after_sending()

    def _identify(self, peer: Peer, hello: Hello) -> tuple[Actor, Role, str | None, str | None] | Refusal:
        """The actor behind a connection: (actor, role, grant, via)."""
        if hello.token is not None:
            endpoint = self._desk.by_token(hello.token)
            if endpoint is None:
                return Refusal(
                    "revoked",
                    "this grant is not (or no longer) valid here",
                    next=("ask for a new invitation",),
                )
            grant = endpoint.grant
            if hello.actor is not None and hello.actor != grant.actor.id:
                return Refusal("forbidden", f"this grant is that of {grant.actor.id}, not of {hello.actor}")
            return grant.actor, grant.role, grant.id, None
        below = self._below_a_backend(peer)
        if below is not None:
            if hello.actor is not None and hello.actor != below[0].id:
                return Refusal(
                    "forbidden",
                    f"what runs inside a session acts as {below[0].id} and not under another name",
                )
            return below
        owner = self.runner.owner
        if hello.verified is not None:
            return self._verified(hello.verified, owner)
        if hello.actor is None or hello.actor == owner.id:
            return owner, "owner", None, None
        return self._named(hello, owner)

    def _verified(
        self, user: VerifiedActor, owner: Actor
    ) -> tuple[Actor, Role, str | None, str | None] | Refusal:
        """A user of the owner's Jupyter server, whose word is as good as the owner's."""
        if user.id == owner.id:
            return owner, user.role, user.grant, None
        try:
            check_actor_id(user.id)
        except BadName as error:
            return Refusal("forbidden", str(error))
        kind: ActorKind = next((k for k in ACTOR_KINDS if k == user.kind), "human")
        return Actor(user.id, kind, user.name, user.on_behalf_of), user.role, user.grant, None

    def _named(self, hello: Hello, owner: Actor) -> tuple[Actor, Role, str | None, str | None] | Refusal:
        """A name that the owner gives somebody who acts through his account."""
        name = hello.actor or ""
        try:
            check_actor_id(name)
        except BadName as error:
            return Refusal("forbidden", str(error))
        if any(grant.actor.id == name for grant in self.runner.session.grants.values()):
            return Refusal(
                "forbidden",
                f"{name} was invited and has a grant of its own: come with it",
                next=("CMDOP_GRANT_FILE=FILE", "--grant-file FILE"),
            )
        kind: ActorKind = next((k for k in ACTOR_KINDS if k == hello.kind), "agent")
        return Actor(name, kind, name, owner.id), "peer", None, None

    def _below_a_backend(self, peer: Peer) -> tuple[Actor, Role, str | None, str | None] | None:
        """Who calls from below a kernel or shell acts as the author of what runs there, never as the owner."""
        if peer.keeper is None:
            return None
        if peer.keeper == os.getpid():
            lanes = self.runner.session.lanes.values()
            running = next((lane.running for lane in lanes if lane.running is not None), None)
            if running is not None:
                return self.runner.session.operations[running].actor, "peer", None, running
            return (
                Actor(f"session:{self.runner.name}", "service", self.runner.name),
                "peer",
                None,
                "background",
            )
        name = _session_of(peer.keeper, Path(self.runner.config.pointer).parent)
        return Actor(f"session:{name}", "service", name), "peer", None, f"session {name}"

    # ------------------------------------------------------------------ upkeep

    def forget(self, connection: LinkConnection, reason: str) -> None:
        self.connections.discard(connection)
        if connection.attachment is not None:
            self._desk.let_go(connection.attachment.id)
            self.runner.submit(ev.Detach(connection.attachment.id, reason))

    def close_grant(self, grant: str, reason: str) -> None:
        for connection in list(self.connections):
            if connection.attachment is not None and connection.attachment.grant == grant:
                connection.send({"event": {"kind": "closed", "reason": reason}})
                connection.close_after_sending()

    def close(self) -> None:
        self.runner.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for connection in list(self.connections):
            connection.close("the session has ended")
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def _session_of(keeper: int, pointers: Path) -> str:
    """The name of the session whose keeper has this pid, or its pid where no pointer says."""
    for path in pointers.glob("*.json"):
        try:
            pointer = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError, RecursionError):
            continue
        if isinstance(pointer, dict) and pointer.get("pid") == keeper:
            return str(pointer.get("name", keeper))
    return f"pid-{keeper}"

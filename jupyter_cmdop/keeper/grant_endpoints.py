"""The kernel-protocol endpoints of all grants: opened, present, revoked."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
import zmq.utils.z85

from ..backends.kernel_process import make_private
from ..backends.zmq_frames import receive, send
from ..core import events as ev
from ..core.grants import Attachment, Grant
from .clients import Published
from .kernel_endpoint import KernelEndpoint
from .stamps import Origin

if TYPE_CHECKING:
    from .kernel_requests import KernelRequests
    from .kernel_side import KernelSide
    from .runner import Runner

ALIVE_SECONDS = 5.0


class GrantEndpoints:
    """Each grant's sockets, and who of its clients is there.

    Attributes:
        held: grants that end with a link, and the attachment that this link is.
    """

    def __init__(
        self,
        runner: Runner,
        kernel: KernelSide,
        requests: KernelRequests,
        context: zmq.Context[zmq.Socket[bytes]],
    ) -> None:
        self.runner = runner
        self.kernel = kernel
        self._requests = requests
        self._context = context
        self._endpoints: dict[str, KernelEndpoint] = {}
        self._alive_at = time.monotonic() + ALIVE_SECONDS
        self._zap = _Zap(context, self)
        self.files: dict[str, tuple[str, float]] = {}
        self.held: dict[str, Attachment] = {}
        self.problem: Exception | None = None  # why the last one that could not be opened could not
        runner.loop.add_timer(self._next_timer)

    def endpoints(self) -> Iterable[KernelEndpoint]:
        return self._endpoints.values()

    def endpoint(self, grant: str) -> KernelEndpoint | None:
        return self._endpoints.get(grant)

    def by_token(self, token: str) -> KernelEndpoint | None:
        return next((e for e in self._endpoints.values() if e.token == token), None)

    def open(self, grant: Grant) -> KernelEndpoint:
        """Open a grant's sockets and write its connection file."""
        runner = self.runner
        endpoint = KernelEndpoint(
            self._context,
            runner.loop,
            grant,
            directory=Path(runner.config.sockets),
            receive=lambda channel, frames: self._receive(grant.id, channel, frames),
            presence=lambda: self._presence(grant.id),
            marker=self._marker,
            alive=lambda: self.kernel.is_ready,
        )
        self._endpoints[grant.id] = endpoint
        if grant.transport == "tcp":
            self._zap.start()
        safe = "".join(c if c.isalnum() or c in "._-" else "-" for c in grant.actor.id)
        directory = Path(runner.config.connections)
        make_private(
            directory.parent, directory
        )  # a runtime directory may go at logout, and come back as somebody else's
        path = directory / f"{runner.name}-{safe}-{grant.id}.json"
        endpoint.write_connection_file(
            path,
            session={"session": runner.config.id, "name": runner.name},
            kernel_name=runner.config.spec,
        )
        return endpoint

    @property
    def present(self) -> int:
        """How many grants have a client here, those aside that only a server's own extensions use."""
        return sum(e.is_present and e.grant.id not in self.held for e in self._endpoints.values())

    def let_go(self, attachment: str) -> None:
        """A link ends, and with it the grants that it held."""
        for grant in [grant for grant, holder in self.held.items() if holder.id == attachment]:
            self.runner.submit(ev.Revoke(attachment, grant))

    def close(self, grant: str) -> None:
        self.held.pop(grant, None)
        endpoint = self._endpoints.pop(grant, None)
        if endpoint is not None:
            self._requests.forget(endpoint)
            self.runner.forget_client(endpoint)
            endpoint.close()

    def bind_again(self) -> None:
        """After the sockets' files were removed."""
        for endpoint in self._endpoints.values():
            endpoint.bind_again()

    def close_all(self) -> None:
        for grant in list(self._endpoints):
            self.close(grant)
        self._zap.stop()

    def allowed_key(self, domain: str, key: bytes) -> bool:
        endpoint = self._endpoints.get(domain)
        return endpoint is not None and endpoint.public_key is not None and endpoint.public_key == key

    def _next_timer(self) -> float | None:
        looks = (look for endpoint in self._endpoints.values() if (look := endpoint.next_look()) is not None)
        return min((self._alive_at, *looks)) if self._endpoints else None

    def run_timers(self) -> None:
        now = time.monotonic()
        if now < self._alive_at:
            return
        self._alive_at = now + ALIVE_SECONDS
        for endpoint in list(self._endpoints.values()):
            if endpoint.is_present and endpoint.attachment in self.runner.session.attachments:
                # What a server's extension keeps open is no sign that its user is still there.
                if endpoint.grant.id not in self.held:
                    self.runner.submit(ev.Alive(endpoint.attachment))
            else:
                self._presence(endpoint.grant.id)

    def _marker(self, skipped: int, cursor: str) -> Published:
        text = (
            f"[{skipped} messages were not sent, because this client did not read them in time; all are kept: "
            f"jupyter cmdop read {self.runner.name} --after {_before(cursor)}]\n"
        )
        origin = Origin(self.runner.keeper.actor, "")
        stamp = self.runner.stamp_now(origin)
        content = {"name": "stderr", "text": text}
        parts = self.kernel.state.voice.say("stream", b"{}", content, b'{"cmdop":' + stamp + b"}")
        return Published(b"stream.stderr", parts)

    def _receive(self, grant: str, channel: str, frames: list[bytes]) -> None:
        endpoint = self._endpoints.get(grant)
        if endpoint is not None:
            self._attach(endpoint)
            self._requests.receive_frames(endpoint, channel, frames)

    def _attach(self, endpoint: KernelEndpoint) -> None:
        """A grant's attachment begins when its first client speaks or subscribes."""
        if endpoint.attachment in self.runner.session.attachments:
            return
        grant = endpoint.grant
        holder = self.held.get(grant.id)
        self.runner.submit(
            ev.Attach(
                Attachment(
                    endpoint.attachment,
                    grant.actor,
                    grant.role,
                    grant.transport,
                    grant.id,
                    persistent=holder is None,
                    client="kernel protocol" if holder is None else holder.client,
                )
            )
        )

    def _presence(self, grant: str) -> None:
        endpoint = self._endpoints.get(grant)
        if endpoint is None:
            return
        if endpoint.is_present:
            self._attach(endpoint)
        elif endpoint.attachment in self.runner.session.attachments:
            self.runner.submit(ev.Detach(endpoint.attachment, "its last client has gone"))


def _before(cursor: str) -> str:
    incarnation, _, seq = cursor.partition(":")
    return f"{incarnation}:{max(0, int(seq) - 1)}" if seq else cursor


class _Zap:
    """Answers libzmq's ZAP questions (rfc.zeromq.org/spec/27): only the keypair in a grant's file may connect."""

    ADDRESS = "inproc://zeromq.zap.01"

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], desk: GrantEndpoints) -> None:
        self._context = context
        self._desk = desk
        self._socket: zmq.Socket[bytes] | None = None

    def start(self) -> None:
        if self._socket is not None:
            return
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(self.ADDRESS)
        self._desk.runner.loop.add_socket(self._socket, self._read)

    def _read(self) -> None:
        socket = self._socket
        if socket is None:
            return
        while (frames := receive(socket)) is not None:
            split_at = frames.index(b"") + 1 if b"" in frames else 0
            envelope, body = frames[:split_at], frames[split_at:]
            if len(body) < 6:
                continue
            version, sequence, domain, _, _, mechanism, *credentials = body
            key = zmq.utils.z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
            allowed = self._desk.allowed_key(domain.decode(errors="replace"), key)
            status = (b"200", b"OK", domain) if allowed else (b"400", b"unknown key", b"")
            send(socket, [*envelope, version, sequence, *status, b""])
            self._desk.runner.loop.touch(socket)

    def stop(self) -> None:
        if self._socket is not None:
            self._desk.runner.loop.remove_socket(self._socket)
            self._socket.close(0)
            self._socket = None

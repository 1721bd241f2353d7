"""`attach`: a Jupyter console on a connection file of one's own, with a way to interrupt what one runs.

The console is a child with the same terminal, so Ctrl-C reaches both of us. It cannot interrupt a kernel that it did
not start; we can, through the link, and we interrupt only what the caller himself runs: at an idle prompt Ctrl-C stays
what it is in every console.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from jupyter_cmdop.client import calls, shapes
from jupyter_cmdop.client.blocking import Stream
from jupyter_cmdop.client.errors import ClientError, KeeperGone, RequestFailed
from jupyter_cmdop.client.identity import Identity
from jupyter_cmdop.client.session import BEAT_SECONDS, Session

from . import exits, render
from .interrupts import Signals
from .opening import identity_of, open_session, server_of
from .output import error_line, note
from .reading import show_outputs

GRANT_SECONDS = 7 * 86400.0
"""The grant is revoked when the console ends; this is for the case that we are killed before."""

END_SECONDS = 5.0
"""How long a console has to end after SIGTERM."""


def attach(args: argparse.Namespace) -> int:
    """Exit code: the console's."""
    if args.read_only:
        return _watch(args)
    with open_session(args, persistent=True) as session:
        identity = Identity(args.as_actor) if server_of(args) is not None else identity_of(args)
        with _credential(session, identity, args) as connection_file:
            note(render.one_line(f"jupyter console --existing {shlex.quote(connection_file)}"))
            code = _Console(session, connection_file).run()
        _farewell(session, args)
    return code


@contextmanager
def _credential(session: Session, identity: Identity, args: argparse.Namespace) -> Iterator[str]:
    """A connection file to go in with: the caller's grant if he came with one, else one for the time of this call."""
    server = server_of(args)
    if server is not None:
        from jupyter_cmdop.client.remote_console import RemoteConsole

        if identity.actor is not None:
            raise RequestFailed(
                "bad_request", "a console by URL is that of the credential's actor", next=("leave --as out",)
            )
        with RemoteConsole(server, session.id, tell=note) as path:
            yield path
        return
    if identity.file is not None:
        yield identity.file
        return
    # Under another name (`--as`) one has a peer's rights, and peers do not invite: it is the owner who lends the name.
    with ExitStack() as stack:
        host = session
        if identity.actor is not None:
            host = stack.enter_context(Session.open(args.name, client="jupyter cmdop attach"))
        invite = host.invite(session.actor or None, kind=identity.kind, expires_seconds=GRANT_SECONDS)
        stack.callback(_revoke, host, invite.grant)
        if invite.connection_file is None:
            raise ClientError("the session gave no connection file", next=("jupyter cmdop doctor",))
        yield invite.connection_file


def _watch(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        try:
            show_outputs(session.follow())
        except KeyboardInterrupt:
            _farewell(session, args)
    return exits.DONE


class _Console:
    """The child while it runs, and what reaches us meanwhile."""

    def __init__(self, session: Session, connection_file: str) -> None:
        self._session = session
        self._link = session.connection
        self._command = [sys.executable, "-m", "jupyter_console", "--existing", connection_file]
        self._asides: list[Stream] = []
        self._is_end_told = False

    def run(self) -> int:
        with Signals(signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP) as signals:
            child = subprocess.Popen(self._command)
            try:
                self._attend(child, signals)
            finally:
                code = _end(child)
        return code if code >= 0 else 128 - code

    def _attend(self, child: subprocess.Popen[bytes], signals: Signals) -> None:
        next_beat = time.monotonic() + BEAT_SECONDS
        while child.poll() is None:
            self._pump(signals, max(0.0, next_beat - time.monotonic()))
            came = signals.take()
            if signal.SIGTERM in came or signal.SIGHUP in came:
                return
            if signal.SIGINT in came:
                self._interrupt_own()
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_SECONDS
                self._link.beat()
            self._tell_end()
            self._link.events()  # nobody reads them here; the console shows what happens

    def _pump(self, signals: Signals, timeout_seconds: float) -> None:
        if self._link.failure is None:
            self._link.pump(timeout_seconds, [signals.fileno()])
            self._asides = [aside for aside in self._asides if not self._settled(aside)]
            return
        import select

        select.select([signals.fileno()], [], [], timeout_seconds)

    def _tell_end(self) -> None:
        """Say once that the session is gone: the console would only fall silent."""
        if self._link.failure is not None and not self._is_end_told:
            self._is_end_told = True
            note(f"\r\nnote: {self._link.failure.message}; leave the console with Ctrl-D\r")

    def _interrupt_own(self) -> None:
        """Interrupt, or withdraw, what this actor has under way; nothing of anybody else."""
        if self._link.failure is not None:
            return
        try:
            status = self._session.status()
        except ClientError:
            return  # the console's own message is on the screen; a second one would only disturb
        under_way = [(item.operation, item.actor) for item in status.running]
        under_way += [(item.operation, item.actor) for item in status.queue]
        for operation, actor in under_way:
            if actor == self._session.actor:
                self._asides.append(self._session.start(calls.interrupt(operation)))

    def _settled(self, aside: Stream) -> bool:
        if not aside.is_ended:
            return False
        try:
            aside.outcome()
        except ClientError as error:
            note(error_line(error.message, error.next))
        return True


def _end(child: subprocess.Popen[bytes]) -> int:
    """The exit status of the console, which is ended when it has not ended itself."""
    if child.poll() is None:
        child.terminate()
    try:
        return child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _revoke(session: Session, grant: str) -> None:
    try:
        session.revoke(grant)
    except KeeperGone:
        pass  # and the grant with it
    except ClientError as error:
        note(error_line(f"the grant {grant} could not be revoked: {error.message}", error.next))


def _farewell(session: Session, args: argparse.Namespace) -> None:
    """Say what goes on and how to end it."""
    name = render.one_line(args.name)
    try:
        status = session.status()
    except ClientError as error:
        note(error_line(f"{args.name} does not go on: {error.message}", error.next))
        return
    note(f"{name} goes on{_work(status)}; end it with: jupyter cmdop close {name}")


def _work(status: shapes.Status) -> str:
    if not status.running:
        return ""
    first = status.running[0]
    return render.one_line(f", running {first.operation} of {first.actor}")

"""A session from synchronous Python: find it or make it, and its verbs as methods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from . import calls, shapes
from .blocking import Connection, Stream
from .calls import ActorKindName, BusyChoice, Call, QueueChoice, RunningChoice, View
from .errors import ClientError, KeeperGone, LinkTimeout, Refused
from .identity import OWNER, Identity
from .reach import explain, find_live, link_of
from .registry import Registry

if TYPE_CHECKING:
    from .spawn import Progress

T = TypeVar("T")
BEAT_SECONDS = 10.0
"""A persistent client's sign of life; the keeper gives up on one that is silent for much longer."""


def sessions(*, all: bool = False, registry: Registry | None = None) -> list[shapes.LsItem]:  # noqa: A002
    """Every session with its state, as `ls` shows it; with `all` the past ones too."""
    from .census import take_census

    return take_census(registry or Registry.of_user(), past=all)


class Session:
    """One session, reached over one link. Methods bear the names of the verbs; each may raise `Refused`."""

    def __init__(
        self, connection: Connection, registry: Registry, *, link: str, identity: Identity, client: str
    ) -> None:
        self._connection = connection
        self._registry = registry
        self._link = link
        self._identity = identity
        self._client = client

    @classmethod
    def open(
        cls,
        name: str,
        *,
        identity: Identity = OWNER,
        client: str = "jupyter_cmdop",
        persistent: bool = False,
        registry: Registry | None = None,
    ) -> Self:
        """Reach the live session called `name` (or `NAME@<uuid prefix>`, or a uuid).

        Args:
            persistent: whether this link is a presence that others see, and whose loss is noticed.

        Raises:
            UnknownSession, KeeperGone, Refused, LinkTimeout, PlaceError: as their names say.
        """
        registry = registry or Registry.of_user()
        found = find_live(name, identity, registry)
        link = link_of(found)
        try:
            connection = Connection.connect(link, identity=identity, client=client, persistent=persistent)
        except (KeeperGone, LinkTimeout) as error:
            raise explain(found, error) from error
        return cls(connection, registry, link=link, identity=identity, client=client)

    @classmethod
    def create(
        cls,
        name: str,
        *,
        kernel: str = "python3",
        policy: str | None = None,
        cwd: str | Path | None = None,
        group: str | None = None,
        setup: str | None = None,
        env: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        identity: Identity = OWNER,
        client: str = "jupyter_cmdop",
    ) -> Self:
        """Start a new session and reach it.

        Raises:
            Refused: `name_taken`.
            SpawnFailed: its keeper did not start; nothing is left behind.
        """
        from .spawn import spawn

        spawned = spawn(
            name,
            spec=kernel,
            policy=policy,
            cwd=cwd,
            group=group,
            setup=setup,
            env=env,
            progress=progress,
        )
        return cls.open(spawned.id, identity=identity, client=client)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close the link; the session goes on."""
        self._connection.close()

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def name(self) -> str:
        """Its name when the link was opened."""
        return str(self._connection.welcome.session.get("name", ""))

    @property
    def id(self) -> str:
        return str(self._connection.welcome.session.get("id", ""))

    @property
    def actor(self) -> str:
        """As whom the keeper knows this link."""
        return str(self._connection.welcome.actor.get("id", ""))

    def _dial(self, *, persistent: bool) -> Connection:
        """Another link to the same keeper."""
        return Connection.connect(
            self._link, identity=self._identity, client=self._client, persistent=persistent
        )

    def _do(self, call: Call[T]) -> T:
        return call.read(self._connection.request(call.verb, call.args, timeout_seconds=call.timeout_seconds))

    def start(self, call: Call[T]) -> Stream:
        """Begin a call of `calls` without waiting, for a caller with a loop of his own."""
        return self._connection.start(call.verb, call.args)

    # --- looking

    def status(self) -> shapes.Status:
        return self._do(calls.status())

    def read(
        self, view: View = "outputs", *, after: str | None = None, limit_bytes: int | None = None
    ) -> shapes.ReadResult:
        """Everything kept after the cursor `after`, oldest first; `more` says that the limit cut it."""
        call = calls.read(view, after=after, limit_bytes=limit_bytes)
        with self.start(call) as stream:
            items = tuple(shapes.read_as(shapes.OutputItem, item.data) for item in stream)
            end = stream.outcome()
        return shapes.ReadResult(items=items, cursor=end.get("cursor"), more=bool(end.get("more", False)))

    def follow(self, view: View = "outputs", *, after: str | None = None) -> Iterator[shapes.OutputItem]:
        """Outputs after `after`, then those to come, until the session ends or the iterator is closed."""
        with self.start(calls.read(view, after=after, follow=True)) as stream:
            for item in stream:
                yield shapes.read_as(shapes.OutputItem, item.data)

    def log(
        self,
        *,
        after: int | None = None,
        actor: str | None = None,
        operation: str | None = None,
        types: Sequence[str] | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Journal entries, oldest first; with `follow` also those to come."""
        call = calls.log(
            after=after, actor=actor, operation=operation, types=types, limit=limit, follow=follow
        )
        with self.start(call) as stream:
            for item in stream:
                yield dict(item.data.get("entry", {}))

    def verify(self, receipt: str | None = None) -> shapes.VerifyReport:
        """Check the journal; `receipt` is `SEQ:HASH` from an earlier reply."""
        return self._do(calls.verify(receipt))

    def wait(
        self,
        operation: str | None = None,
        *,
        request_id: str | None = None,
        wait_seconds: float | None = None,
    ) -> shapes.RunResult:
        """Wait for an operation, or, when none is named, until the session is idle."""
        return self._do(calls.wait(operation, request_id=request_id, wait_seconds=wait_seconds))

    # --- acting

    def run(
        self,
        code: str,
        *,
        request_id: str | None = None,
        generation: int | None = None,
        silent: bool = False,
        stop_on_error: bool = True,
        if_busy: BusyChoice = "queue",
        wait_seconds: float | None = None,
        max_bytes: int | None = None,
        on_item: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> shapes.RunResult:
        """Execute `code` and wait for its outcome, `wait_seconds` at most.

        Args:
            on_item: gets `accepted`, `output` and `input_request` items as they come.
        """
        call = calls.run(
            code,
            request_id=request_id,
            generation=generation,
            silent=silent,
            stop_on_error=stop_on_error,
            if_busy=if_busy,
            wait_seconds=wait_seconds,
            stream=on_item is not None,
            max_bytes=max_bytes,
        )
        if on_item is None:
            return self._do(call)
        with self.start(call) as stream:
            for item in stream:
                on_item(item.data)
            return call.read(stream.outcome())

    def take(
        self,
        reason: str | None = None,
        *,
        running: RunningChoice = "let",
        queue: QueueChoice = "drop",
        lease_seconds: float | None = None,
    ) -> shapes.Floor:
        return self._do(calls.take(reason, running=running, queue=queue, lease_seconds=lease_seconds))

    def hand_back(self, to: str | None = None, *, note: str | None = None) -> shapes.Floor:
        return self._do(calls.hand_back(to, note=note))

    def release(self) -> shapes.Floor:
        return self._do(calls.release())

    def policy(self, name: str) -> shapes.Floor:
        return self._do(calls.policy(name))

    def interrupt(self, operation: str | None = None) -> shapes.Interrupted:
        return self._do(calls.interrupt(operation))

    def answer(self, text: str, *, prompt_id: str | None = None) -> shapes.Answered:
        return self._do(calls.answer(text, prompt_id=prompt_id))

    def note(self, text: str) -> shapes.Noted:
        """Write a remark into the session's journal; it reaches no backend."""
        return self._do(calls.note(text))

    def invite(
        self,
        actor: str | None = None,
        *,
        kind: ActorKindName | None = None,
        role: Literal["peer", "observer"] = "peer",
        expires_seconds: float | None = None,
        transport: Literal["ipc", "tcp"] = "ipc",
    ) -> shapes.Invite:
        return self._do(
            calls.invite(actor, kind=kind, role=role, expires_seconds=expires_seconds, transport=transport)
        )

    def grants(self) -> tuple[shapes.GrantItem, ...]:
        return self._do(calls.grants()).grants

    def revoke(self, grant: str) -> shapes.Revoked:
        return self._do(calls.revoke(grant))

    def rename(self, name: str) -> shapes.Renamed:
        """Give it another name, which must be free as for a new session."""
        with self._registry.holding(name, session_id=self.id):
            return self._do(calls.rename(name))

    def restart(self) -> shapes.Restarted:
        return self._do(calls.restart())

    def close(self, *, force: bool = False) -> shapes.Closed:
        """End the session for everybody; `disconnect` only closes this link."""
        return self._do(calls.close(force=force))

    @contextmanager
    def drive(
        self,
        reason: str | None = None,
        *,
        running: RunningChoice = "let",
        queue: QueueChoice = "drop",
        note: str | None = None,
    ) -> Iterator[shapes.Floor]:
        """Take the floor, keep it with signs of life, and give it back at the end.

        Whoever drove before gets it back; when nobody did, it is free. Somebody who has taken it meanwhile keeps it.
        """
        with self._dial(persistent=True) as link:
            before = link.welcome.session.get("driver")
            me = link.welcome.actor.get("id")
            taking = calls.take(reason, running=running, queue=queue)
            floor = taking.read(link.request(taking.verb, taking.args))
            with _beating(link):
                try:
                    yield floor
                finally:
                    leaving: Call[shapes.Floor] = (
                        calls.hand_back(note=note) if before not in (None, me) else calls.release()
                    )
                    _give_back(link, leaving)


def _give_back(link: Connection, leaving: Call[shapes.Floor]) -> None:
    try:
        link.request(leaving.verb, leaving.args)
    except Refused as refused:
        # Taken over, or expired: then there is nothing to give back.
        if refused.refusal.code not in ("not_driver", "stale_generation"):
            raise
    except KeeperGone:
        pass  # and the floor with it


@contextmanager
def _beating(link: Connection) -> Iterator[None]:
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT_SECONDS):
            try:
                link.beat()
            except (ClientError, OSError):
                return

    thread = threading.Thread(target=beat, name="cmdop beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

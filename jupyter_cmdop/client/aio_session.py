"""A session from asyncio: the same verbs as `session.Session`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from . import calls, shapes
from .aio import AsyncConnection, AsyncStream
from .calls import ActorKindName, BusyChoice, Call, QueueChoice, RunningChoice, View
from .errors import KeeperGone, LinkTimeout, Refused
from .identity import OWNER, Identity
from .reach import explain, find_live, link_of
from .registry import Registry
from .session import BEAT_SECONDS

T = TypeVar("T")


async def sessions(*, all: bool = False, registry: Registry | None = None) -> list[shapes.LsItem]:  # noqa: A002
    """Every session with its state, as `ls` shows it; with `all` the past ones too."""
    from .session import sessions as blocking_sessions

    return await asyncio.to_thread(blocking_sessions, all=all, registry=registry)


class AsyncSession:
    """One session, reached over one link. Methods bear the names of the verbs; each may raise `Refused`."""

    def __init__(
        self, connection: AsyncConnection, registry: Registry, *, link: str, identity: Identity, client: str
    ) -> None:
        self._connection = connection
        self._registry = registry
        self._link = link
        self._identity = identity
        self._client = client

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        identity: Identity = OWNER,
        client: str = "jupyter_cmdop",
        persistent: bool = False,
        registry: Registry | None = None,
    ) -> Self:
        """Reach the live session called `name` (or `NAME@<uuid prefix>`, or a uuid).

        Raises:
            UnknownSession, KeeperGone, Refused, LinkTimeout, PlaceError: as their names say.
        """
        registry = registry or Registry.of_user()
        found = await asyncio.to_thread(find_live, name, identity, registry)
        link = link_of(found)
        try:
            connection = await AsyncConnection.connect(
                link, identity=identity, client=client, persistent=persistent
            )
        except (KeeperGone, LinkTimeout) as error:
            raise explain(found, error) from error
        return cls(connection, registry, link=link, identity=identity, client=client)

    @classmethod
    async def create(
        cls,
        name: str,
        *,
        kernel: str = "python3",
        policy: str | None = None,
        cwd: str | Path | None = None,
        group: str | None = None,
        setup: str | None = None,
        env: Mapping[str, str] | None = None,
        identity: Identity = OWNER,
        client: str = "jupyter_cmdop",
    ) -> Self:
        """Start a new session and reach it.

        Raises:
            Refused: `name_taken`.
            SpawnFailed: its keeper did not start; nothing is left behind.
        """
        from .spawn import spawn

        spawned = await asyncio.to_thread(
            spawn, name, spec=kernel, policy=policy, cwd=cwd, group=group, setup=setup, env=env
        )
        return await cls.open(spawned.id, identity=identity, client=client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the link; the session goes on."""
        await self._connection.close()

    @property
    def connection(self) -> AsyncConnection:
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

    async def _do(self, call: Call[T]) -> T:
        return call.read(
            await self._connection.request(call.verb, call.args, timeout_seconds=call.timeout_seconds)
        )

    async def start(self, call: Call[T]) -> AsyncStream:
        """Begin a call of `calls`, and read its answers as they come."""
        return await self._connection.stream(call.verb, call.args)

    # --- looking

    async def status(self) -> shapes.Status:
        return await self._do(calls.status())

    async def read(
        self, view: View = "outputs", *, after: str | None = None, limit_bytes: int | None = None
    ) -> shapes.ReadResult:
        """Everything kept after the cursor `after`, oldest first; `more` says that the limit cut it."""
        async with await self.start(calls.read(view, after=after, limit_bytes=limit_bytes)) as stream:
            items = tuple([shapes.read_as(shapes.OutputItem, item.data) async for item in stream])
            end = await stream.outcome()
        return shapes.ReadResult(items=items, cursor=end.get("cursor"), more=bool(end.get("more", False)))

    async def follow(
        self, view: View = "outputs", *, after: str | None = None
    ) -> AsyncIterator[shapes.OutputItem]:
        """Outputs after `after`, then those to come, until the session ends or the iterator is closed."""
        async with await self.start(calls.read(view, after=after, follow=True)) as stream:
            async for item in stream:
                yield shapes.read_as(shapes.OutputItem, item.data)

    async def log(
        self,
        *,
        after: int | None = None,
        actor: str | None = None,
        operation: str | None = None,
        types: Sequence[str] | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[dict[str, Any]]:
        """Journal entries, oldest first; with `follow` also those to come."""
        call = calls.log(
            after=after, actor=actor, operation=operation, types=types, limit=limit, follow=follow
        )
        async with await self.start(call) as stream:
            async for item in stream:
                yield dict(item.data.get("entry", {}))

    async def verify(self, receipt: str | None = None) -> shapes.VerifyReport:
        """Check the journal; `receipt` is `SEQ:HASH` from an earlier reply."""
        return await self._do(calls.verify(receipt))

    async def wait(
        self,
        operation: str | None = None,
        *,
        request_id: str | None = None,
        wait_seconds: float | None = None,
    ) -> shapes.RunResult:
        """Wait for an operation, or, when none is named, until the session is idle."""
        return await self._do(calls.wait(operation, request_id=request_id, wait_seconds=wait_seconds))

    # --- acting

    async def run(
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
            return await self._do(call)
        async with await self.start(call) as stream:
            async for item in stream:
                on_item(item.data)
            return call.read(await stream.outcome())

    async def take(
        self,
        reason: str | None = None,
        *,
        running: RunningChoice = "let",
        queue: QueueChoice = "drop",
        lease_seconds: float | None = None,
    ) -> shapes.Floor:
        return await self._do(calls.take(reason, running=running, queue=queue, lease_seconds=lease_seconds))

    async def hand_back(self, to: str | None = None, *, note: str | None = None) -> shapes.Floor:
        return await self._do(calls.hand_back(to, note=note))

    async def release(self) -> shapes.Floor:
        return await self._do(calls.release())

    async def policy(self, name: str) -> shapes.Floor:
        return await self._do(calls.policy(name))

    async def interrupt(self, operation: str | None = None) -> shapes.Interrupted:
        return await self._do(calls.interrupt(operation))

    async def answer(self, text: str, *, prompt_id: str | None = None) -> shapes.Answered:
        return await self._do(calls.answer(text, prompt_id=prompt_id))

    async def note(self, text: str) -> shapes.Noted:
        """Write a remark into the session's journal; it reaches no backend."""
        return await self._do(calls.note(text))

    async def invite(
        self,
        actor: str | None = None,
        *,
        kind: ActorKindName | None = None,
        role: Literal["peer", "observer"] = "peer",
        expires_seconds: float | None = None,
        transport: Literal["ipc", "tcp"] = "ipc",
    ) -> shapes.Invite:
        return await self._do(
            calls.invite(actor, kind=kind, role=role, expires_seconds=expires_seconds, transport=transport)
        )

    async def grants(self) -> tuple[shapes.GrantItem, ...]:
        return (await self._do(calls.grants())).grants

    async def revoke(self, grant: str) -> shapes.Revoked:
        return await self._do(calls.revoke(grant))

    async def rename(self, name: str) -> shapes.Renamed:
        """Give it another name, which must be free as for a new session."""
        holding = self._registry.holding(name, session_id=self.id)
        await asyncio.to_thread(holding.__enter__)
        try:
            return await self._do(calls.rename(name))
        finally:
            await asyncio.to_thread(holding.__exit__, None, None, None)

    async def restart(self) -> shapes.Restarted:
        return await self._do(calls.restart())

    async def close(self, *, force: bool = False) -> shapes.Closed:
        """End the session for everybody; `disconnect` only closes this link."""
        return await self._do(calls.close(force=force))

    @asynccontextmanager
    async def drive(
        self,
        reason: str | None = None,
        *,
        running: RunningChoice = "let",
        queue: QueueChoice = "drop",
        note: str | None = None,
    ) -> AsyncIterator[shapes.Floor]:
        """Take the floor, keep it with signs of life, and give it back at the end.

        Whoever drove before gets it back; when nobody did, it is free. Somebody who has taken it meanwhile keeps it.
        """
        async with await AsyncConnection.connect(
            self._link, identity=self._identity, client=self._client, persistent=True
        ) as link:
            before = link.welcome.session.get("driver")
            me = link.welcome.actor.get("id")
            taking = calls.take(reason, running=running, queue=queue)
            floor = taking.read(await link.request(taking.verb, taking.args))
            beats = asyncio.create_task(_beat(link), name="cmdop beat")
            try:
                yield floor
            finally:
                beats.cancel()
                await asyncio.gather(beats, return_exceptions=True)
                leaving: Call[shapes.Floor] = (
                    calls.hand_back(note=note) if before not in (None, me) else calls.release()
                )
                await _give_back(link, leaving)


async def _give_back(link: AsyncConnection, leaving: Call[shapes.Floor]) -> None:
    try:
        await link.request(leaving.verb, leaving.args)
    except Refused as refused:
        # Taken over, or expired: then there is nothing to give back.
        if refused.refusal.code not in ("not_driver", "stale_generation"):
            raise
    except KeeperGone:
        pass  # and the floor with it


async def _beat(link: AsyncConnection) -> None:
    while link.failure is None:
        await asyncio.sleep(BEAT_SECONDS)
        await link.beat()
